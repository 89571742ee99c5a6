"""Writes the generated pages: `python -m docs.generate`; with `--check` it only tells whether they are current (exit code 1 if not).

`docs/reference/http.md` comes from the server's table of endpoints, `docs/reference/errors.md` from the error classes,
`docs/reference/capabilities.md` from the providers and the conformance suite,
`docs/performance.md` from `docs/performance.json`, which `python -m bench --json docs/performance.json` measures.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import pkgutil
import sys
from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from pathlib import Path

import b4run
from b4run.errors import B4Error
from b4run.sandbox import Capability
from b4run.sandbox.providers.bubblewrap import controls as bubblewrap_controls
from b4run.sandbox.providers.docker import controls as docker_controls
from b4run.sandbox.providers.kubernetes import controls as kubernetes_controls
from b4run.sandbox.testing import FakeProvider
from b4run.sandbox.testing.suite import cases
from b4run.server.openapi import DOCUMENTED
from b4run.server.refusals import FILE_STATUS, LIFECYCLE
from bench.__main__ import FIGURES, row

DOCS = Path(__file__).parent


def errors() -> str:
    """The table of every refusal, by code."""
    lines = [
        "# Errors",
        "",
        "Every refusal has a stable code: 1xxx configuration, 2xxx sandbox, 3xxx permissions, 4xxx models, 5xxx run time.",
        "Several classes may share a code; callers tell them apart by class. `<…>` stands for what the error names.",
        "",
        "| code | class | message | what to do |",
        "| --- | --- | --- | --- |",
    ]
    for kind in sorted(_error_classes(), key=lambda kind: (kind.code, kind.__name__)):
        message = " ".join(inspect.cleandoc(kind.__doc__ or "").split())
        lines.append(f"| `{kind.code}` | `{kind.__name__}` | {_cell(message)} | {_cell(kind.hint)} |")
    return "\n".join(lines) + "\n"


def _error_classes() -> Iterator[type[B4Error]]:
    for module in pkgutil.walk_packages(b4run.__path__, "b4run."):
        if "__main__" not in module.name and "migrations" not in module.name and "demo_project" not in module.name:
            importlib.import_module(module.name)
    waiting: list[type[B4Error]] = [B4Error]
    while waiting:
        kind = waiting.pop()
        waiting.extend(kind.__subclasses__())
        yield kind


def _cell(text: str) -> str:
    for mark, shown in (("|", "\\|"), ("{", "<"), ("}", ">"), ("!r>", ">"), (":g>", ">")):
        text = text.replace(mark, shown)
    return text.replace("<", "&lt;").replace(">", "&gt;") if text else "–"


def capabilities() -> str:
    """What each provider declares, and how many cases of the suite look at it."""
    docker = docker_controls.CAPABILITIES
    declared = {
        "fake": FakeProvider.capabilities,
        "bubblewrap": bubblewrap_controls.ALWAYS,
        "Docker": docker | docker_controls.HOST_KERNEL,
        "Docker with gVisor": docker,
        "Kubernetes": kubernetes_controls.CAPABILITIES,
    }
    needs = [case.needs for case in cases()]
    lines = [
        "# Capabilities",
        "",
        "Everything that may differ between providers is a capability, which a provider declares; whatever else there is means the same",
        f"on all. Of the {len(needs)} cases of the conformance suite, {sum(not need for need in needs)} are for every provider, the others",
        "for those that declare what the case needs. [Your own provider](../guide/providers.md) tells how to run it.",
        "",
        f"| capability | what holds | cases | {' | '.join(declared)} |",
        "| --- | --- | --- |" + " --- |" * len(declared),
    ]
    for capability, meaning in _members(Capability):
        marks = ["yes" if capability in found else "–" for found in declared.values()]
        if host := bubblewrap_controls.BY_HOST.get(capability):
            marks[1] = f"with {host}"
        lines.append(f"| `{capability}` | {_cell(meaning)} | {sum(capability in need for need in needs)} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def _members(kind: type[StrEnum]) -> Iterator[tuple[StrEnum, str]]:
    """The members of an enumeration with the text that stands below each."""
    (definition,) = ast.parse(inspect.getsource(kind)).body
    assert isinstance(definition, ast.ClassDef)
    for statement, text in pairwise(definition.body):
        match statement, text:
            case ast.Assign(value=ast.Constant(value=str(name))), ast.Expr(value=ast.Constant(value=str(meaning))):
                yield kind(name), inspect.cleandoc(meaning)


def performance() -> str:
    """The measured figures beside their goals."""
    values = json.loads((DOCS / "performance.json").read_text())
    table = "\n".join(row(figure, values) for figure in FIGURES if figure.name in values)
    return f"""# Performance

Medians of one run on a virtual machine with two cores, as measured by

```
make bench                                        # prints this table
python -m bench --json docs/performance.json      # writes the figures; `make docs` makes this page from them
python -m bench --only exec floor                 # some of them
```

```
{table}
```

Floors are measured in the same run, so that ratios hold where absolute times do not: `floor.fork_exec_ms` starts and awaits
`/bin/true`, `floor.bwrap_ms` wraps it in a bare bubblewrap, `floor.python_ms` is an empty interpreter. A warm command is
`sandbox.exec.run("true")`, a shell included; the first command counts everything from nothing to its answer. Network is denied in all.
`floor.docker_run_ms` is `docker run --rm IMAGE true`, `peer.docker_exec_ms` is `docker exec` by the command, `peer.aiodocker_exec_ms`
the same through aiodocker. Where no engine answers, these are left out.

`floor.git_clone_1k_files_ms` is `git clone` of 1,000 files of 800 bytes from a folder of the same host, checkout included.
`workspace.*.prepare` fills and verifies a workspace with the same files and a git baseline on compute that is up, the removal of what
was there included; `workspace.*.create` is everything from nothing to a workspace that is ready, its compute included.

`peer.openai_agents_*` are the Docker client of the OpenAI Agents SDK (`session.exec("true")`, a shell included; `first` counts creating and
starting the session), `peer.llm_sandbox_exec_ms` is `session.execute_command("true")` of llm-sandbox, without a shell. Both run on the same
engine and image, without network. `pip install 'b4run[bench]'` brings them; without, they are left out.
"""


def http() -> str:
    lines = [
        "# HTTP",
        "",
        "Generated by `make docs` from the server's own table; `/openapi.json` has the schemas. Bodies are JSON; every refusal is",
        '`{"error": {"kind", "message", "details": {"code", …}}}` with one of the codes below,',
        "beside a registered `code` (`B4_E…`) where there is one.",
        "Answers about a thread carry `cache-control: no-store`.",
        "Every endpoint but the probes may answer 400, 401, 403, 404, 500 and 503 besides.",
        "",
        "| method and path | does | success | may refuse with |",
        "| --- | --- | --- | --- |",
    ]
    for (method, path), endpoint in DOCUMENTED.items():
        success = ", ".join(map(str, endpoint.success))
        lines.append(f"| `{method} {path}` | {_cell(endpoint.summary)} | {success} | {', '.join(map(str, sorted(endpoint.refusals)))} |")
    lines += ["", "## Codes", "", "| code | status |", "| --- | --- |"]
    lines += [f"| `{code}` | {', '.join(map(str, sorted(statuses)))} |" for code, statuses in sorted(_codes().items())]
    lines += [
        "",
        "## Events",
        "",
        "`text/event-stream`: `id: RUN/NUMBER`, `event: TYPE`, `data: JSON on one line`; a comment every 15 seconds.",
        "One `done` or `detached` ends every stream.",
        "",
        "| event | data |",
        "| --- | --- |",
        "| `chunk` | a piece of the agent's text |",
        "| `tool_call`, `tool_result` | `{id, name, input}`, `{id, name, output, durationMs, isError?}` |",
        "| `interrupt` | a prompt that waits for a person |",
        "| `subagent.start`, `.token`, `.tool_call`, `.tool_result`, `.end` | a subagent's, with `call_id`, `name`, `routeId`, `depth` |",
        "| `state` | the first event of `GET …/runs/stream`: `{status, live, values, turn, interrupts, …}` |",
        '| `done` | `{"output"}`: the final text, null while a person is asked, `{"error"}`, or `{"cancelled": true}` |',
        '| `detached` | `{"reason": "overflow" \\| "capacity"}`: come back with `Last-Event-ID` |',
    ]
    return "\n".join(lines) + "\n"


def _codes() -> dict[str, set[int]]:
    """Return every code that the server's sources refuse with, and under which statuses."""
    found: dict[str, set[int]] = {}
    for source in sorted((DOCS.parent / "src" / "b4run" / "server").glob("*.py")):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Refusal" and len(node.args) >= 2:
                status, code = node.args[:2]
                if isinstance(code, ast.Constant):
                    # What is not a plain number is what the app's `auth.py` says.
                    found.setdefault(str(code.value), set()).add(status.value if isinstance(status, ast.Constant) else 401)
    for status, code in LIFECYCLE.values():
        found.setdefault(code, set()).add(status)
    for kind, status in FILE_STATUS.items():
        found.setdefault(f"file_{kind}", set()).add(status)
    return found


PAGES = {"reference/http.md": http, "reference/errors.md": errors, "reference/capabilities.md": capabilities, "performance.md": performance}


def main() -> int:
    check = sys.argv[1:] == ["--check"]
    stale = []
    for name, page in PAGES.items():
        path, text = DOCS / name, page()
        if not path.exists() or path.read_text() != text:
            stale.append(name)
            if not check:
                path.write_text(text)
    for name in stale:
        sys.stdout.write(f"docs/{name} {'is stale: run `make docs`' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
