# Everything a working copy needs. `make demo` and `make test` do all the set-up by themselves and repeat none of it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
GUEST_SOURCES := $(shell find guest/src guest/.cargo guest/Cargo.toml guest/Cargo.lock -type f 2>/dev/null)
GUEST := src/b4run/_guest/.built

.PHONY: demo test test-python test-guest guest lint format bench docs lock clean help

help: ## show this list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## set up, then watch an agent fix a failing test suite in a sandbox
	@$(BIN)/b4 demo

test: test-guest test-python ## set up, then run all tests

test-guest: $(VENV)/.installed
	cargo test --quiet --locked --manifest-path guest/Cargo.toml

test-python: $(VENV)/.installed
	$(BIN)/python -m pytest -q $(PYTEST_ARGS)

guest: $(GUEST) ## build the guest

lint: $(VENV)/.installed ## every linter and type check
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m docs.generate --check
	cargo fmt --check --manifest-path guest/Cargo.toml
	cargo clippy --quiet --locked --all-targets --manifest-path guest/Cargo.toml -- -D warnings

format: $(VENV)/.installed ## rewrite the sources in the house style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	cargo fmt --manifest-path guest/Cargo.toml

bench: $(VENV)/.installed ## measure, as medians of one run
	$(BIN)/python -m bench

docs: $(VENV)/.installed ## write the generated pages again
	$(BIN)/python -m docs.generate

lock: LOCK_FLAGS ?= --upgrade
lock: $(VENV)/.installed ## resolve the requirement files again
	for set in "runtime.txt" "dev.txt --group dev"; do \
	  $(BIN)/uv pip compile pyproject.toml --extra bubblewrap --extra docker --extra kubernetes --extra postgres --extra metrics --extra tracing --universal --python-version 3.11 --generate-hashes $(LOCK_FLAGS) \
	    --no-header --no-annotate --no-emit-index-url --quiet -o requirements/$$set || exit 1; done

clean: ## remove what was built here
	rm -rf $(VENV) src/b4run/_guest guest/target

$(GUEST): hatch_build.py $(GUEST_SOURCES)
	@$(PYTHON) hatch_build.py
	@touch $@

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(0 if v >= (3, 11) else "b4run needs Python 3.11 or newer; this is %d.%d. Name another: make PYTHON=python3.12 demo" % v[:2])'
	@$(PYTHON) -m venv $(VENV) || { echo "Python's venv module is missing: on Debian and Ubuntu, apt-get install python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.required: $(VENV)/.python requirements/dev.txt
	@echo "installing the locked requirements (about a minute, once)"
	@$(BIN)/pip --disable-pip-version-check install --quiet --require-hashes -r requirements/dev.txt
	@touch $@

$(VENV)/.installed: $(VENV)/.required $(GUEST) pyproject.toml
	@$(BIN)/pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --no-index --editable .
	@touch $@
