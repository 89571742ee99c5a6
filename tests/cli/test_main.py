"""What holds for every command: help, wrong use, refusals, exit codes."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from b4run.cli.main import COMMANDS, main

from .conftest import B4, ENVIRONMENT, PYTHON


def test_help_names_every_command(b4: B4) -> None:
    for option in ("--help", "-h"):
        outcome = b4(option)
        assert (outcome.code, outcome.err) == (0, "")
        for name, summary in COMMANDS.items():
            assert name in outcome.out and summary in outcome.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(b4: B4, command: str) -> None:
    outcome = b4(command, "--help")
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith(f"usage: b4 {command}")
    assert "--app DIR" in outcome.out and "--debug" in outcome.out


def test_the_version_by_option_and_by_command(b4: B4) -> None:
    assert b4("--version") == b4("version")
    assert b4("version").out.startswith("b4run")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ([], "b4: name a command"),
        (["chekc"], "b4: there is no command 'chekc'; did you mean `check`?"),
        (["qqq"], "b4: there is no command 'qqq'\n"),
        (["--bogus"], "b4: there is no option --bogus"),
        (["--app"], "b4: name a command"),
        (["--app", "x", "--debug"], "b4: name a command"),
        (["check", "--jsn"], "b4 check: unrecognized arguments: --jsn"),
        (["check", "--js"], "b4 check: unrecognized arguments: --js"),
        (["sandbox"], "b4 sandbox: name one of its commands"),
        (["sandbox", "sh"], "b4 sandbox: "),
        (["sandbox", "exec"], "b4 sandbox exec: name a command"),
        (["sandbox", "exec", "--timeout", "-1", "ls"], "b4 sandbox exec: argument --timeout: must be"),
        (["sandbox", "exec", "--timeout", "soon", "ls"], "b4 sandbox exec: argument --timeout: "),
        (["permissions", "revoke"], "b4 permissions revoke: name an ID"),
        (["permissions", "revoke", "x"], "b4 permissions revoke: argument ID: "),
        (["run"], "b4 run: the following arguments are required: ROUTE"),
    ],
)
def test_wrong_use_is_exit_code_2_on_stderr(b4: B4, line: Sequence[str], message: str) -> None:
    outcome = b4(*line)
    assert (outcome.code, outcome.out) == (2, "")
    assert outcome.err.startswith(message)
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("line", [["check"], ["routes"], ["config", "show"], ["permissions", "ls"]])
def test_no_app_is_a_refusal_that_says_where_it_looked(b4: B4, tmp_path: Path, line: Sequence[str]) -> None:
    outcome = b4(*line)
    assert (outcome.code, outcome.out) == (1, "")
    message, hint = outcome.err.splitlines()
    assert message == f"no b4_config.py in {tmp_path} or any folder above it"
    assert hint == "    [B4_E1006] An app is a folder with `b4_config.py` and `app/<route>/agent.py`."


@pytest.mark.parametrize("line", [["ls"], ["exec", "true"], ["read"], ["rm", "t-1", "--yes"]])
def test_sandbox_commands_without_an_app_offer_to_do_without(b4: B4, line: Sequence[str]) -> None:
    outcome = b4("sandbox", *line)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("no b4_config.py in ") and "[B4_E1006]" in outcome.err and "--scope" in outcome.err


@pytest.mark.parametrize("place", ["before", "after", "variable", "beneath"])
def test_the_app_is_named_by_option_variable_or_folder(b4: B4, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    app = tmp_path / "elsewhere"
    (app / "app").mkdir(parents=True)
    (app / "b4_config.py").write_text("config = {'app_dir': 'app'}")
    if place == "before":
        outcome = b4("--app", str(app), "config", "show", "--json")
    elif place == "after":
        outcome = b4("config", "show", "--json", f"--app={app}")
    else:
        if place == "variable":
            monkeypatch.setenv("B4_APP", str(app))
        else:
            monkeypatch.chdir(app / "app")
        outcome = b4("config", "show", "--json")
    assert outcome.code == 0
    assert outcome.json["app_dir"] == {"value": "app", "source": "b4_config.py"}
    assert outcome.json["permissions.mode"] == {"value": "interactive", "source": "default"}


def test_a_traceback_only_with_debug(b4: B4, tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text("1 / 0\n")
    plain = b4("config", "show")
    assert (plain.code, plain.out) == (1, "")
    assert plain.err.splitlines()[0] == "b4_config.py, line 1: ZeroDivisionError: division by zero"
    assert "[B4_E5001]" in plain.err and "Traceback" not in plain.err
    debug = b4("config", "show", "--debug")
    assert debug.code == 1 and "Traceback" in debug.err


def test_what_nobody_foresaw_is_told_without_a_traceback(b4: B4, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> str:
        raise LookupError("no such thing")

    monkeypatch.setattr("b4run.cli.version.version", fail)
    outcome = b4("version")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("LookupError: no such thing\n    [B4_E5000] ")


def test_an_interrupt_is_exit_code_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(name: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("b4run.cli.version.version", interrupt)
    assert main(["version"]) == 130


def test_a_reader_that_goes_away_is_met_with_silence() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([*PYTHON, "config", "schema"], stdout=writer, stderr=subprocess.PIPE, timeout=60, check=False, env=ENVIRONMENT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_is_cheap() -> None:
    """Goal: at most four times a bare interpreter; both are measured in turn, so that load strikes both."""
    bare: list[float] = []
    helped: list[float] = []
    for _ in range(9):
        for line, times in (([sys.executable, "-c", "pass"], bare), ([*PYTHON, "--help"], helped)):
            start = time.perf_counter()
            subprocess.run(line, stdout=subprocess.DEVNULL, check=True, timeout=60, env=ENVIRONMENT)
            times.append(time.perf_counter() - start)
    assert statistics.median(helped) <= 4 * statistics.median(bare)


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from b4run.cli.main import main; main(['--help']); print([m for m in sys.modules if m.split('.')[0] in {heavy}])"
    heavy = {"argparse", "asyncio", "pydantic", "langchain", "langgraph", "sqlalchemy", "rich", "inspect", "typing"}
    done = subprocess.run(
        [sys.executable, "-c", code.format(heavy=heavy)], capture_output=True, text=True, check=True, timeout=60, env=ENVIRONMENT
    )
    assert done.stdout.splitlines()[-1] == "[]"
