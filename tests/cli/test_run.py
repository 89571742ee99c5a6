"""`b4 run`: JSON in, exactly one JSON document out; on a terminal text, calls and approvals."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from .conftest import B4, ENVIRONMENT, PYTHON

CONFIG = """
import asyncio
from b4run.config import Config, Deny, Permissions, Sandbox
from b4run.sandbox.testing import Answer, fake_sandbox

print("a line from b4_config.py")


async def answer(command):
    if "slow" in command.argv[-1]:
        await asyncio.Event().wait()
    return Answer(stdout=f"ran {command.argv[-1]}\\n")


config = Config(permissions=Permissions(allow={"bash": ["ls", "slow"]}), sandbox=Sandbox(provider=fake_sandbox(answer), network=Deny()))
"""

AGENT = """
from b4run.agents import Agent, script

answers = (
    script()
    .user("list").calls("runBash", command="ls").replies("There is nothing.")
    .user("deploy").calls("runBash", command="make deploy\\x1b[2J").replies("Deployed.")
    .user("wait").calls("runBash", command="slow").replies("Waited.")
    .user("{\\"task\\": 1}").replies("Got JSON.")
    .user("again").replies("Again.")
)
agent = Agent(model=answers.model(), prompt="Help.")
"""

FIELDS = {
    "appRoot",
    "startedAt",
    "finishedAt",
    "durationMs",
    "executionSource",
    "mode",
    "output",
    "routeId",
    "routePath",
    "threadId",
    "status",
}


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> Path:
    (tmp_path / "b4_config.py").write_text(CONFIG)
    (tmp_path / "app" / "fix").mkdir(parents=True)
    (tmp_path / "app" / "fix" / "agent.py").write_text(AGENT)
    return tmp_path


@pytest.fixture
def stdin(monkeypatch: pytest.MonkeyPatch) -> Any:
    def give(data: bytes) -> None:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))

    return give


def test_a_turn_is_one_document(b4: B4, app: Path) -> None:
    outcome = b4("run", "/fix", "list the files")
    assert outcome.code == 0, outcome.err
    document = outcome.json
    assert set(document) == FIELDS
    assert (document["status"], document["output"], document["executionSource"]) == ("passed", "There is nothing.", "in-process")
    assert (document["routeId"], document["routePath"], document["mode"]) == ("/fix", str(app / "app/fix/agent.py"), "agent")
    assert document["appRoot"] == str(app)
    assert datetime.fromisoformat(document["startedAt"]) <= datetime.fromisoformat(document["finishedAt"])
    assert document["durationMs"] > 0
    assert "a line from b4_config.py" in outcome.err


def test_warnings_about_the_app_are_diagnostics(b4: B4, app: Path) -> None:
    (app / "b4_config.py").write_text(CONFIG.replace(", network=Deny()", ""))
    (warning,) = b4("run", "/fix", "list").json["diagnostics"]
    assert (warning["severity"], warning["key"]) == ("warning", "sandbox.network")


def test_json_comes_from_standard_input(b4: B4, stdin: Any) -> None:
    stdin(b'"list"')
    assert b4("run", "/fix").json["output"] == "There is nothing."
    stdin(b'{"task": 1}')
    assert b4("run", "/fix", "-").json["output"] == "Got JSON."
    stdin(b'{"messages": [{"role": "user", "content": "again"}]}')
    assert b4("run", "/fix", "-").json["output"] == "Again."


@pytest.mark.parametrize("data", [b"{", b"list the files", b"\xff\xfe"])
def test_input_that_is_not_json_is_wrong_use(b4: B4, stdin: Any, data: bytes) -> None:
    stdin(data)
    outcome = b4("run", "/fix")
    assert outcome.code == 2
    assert outcome.err.startswith("b4 run: standard input is not JSON: ")
    assert (outcome.json["status"], outcome.json["error"]["kind"]) == ("failed", "usage")


def test_a_route_is_named_by_its_file_too(b4: B4) -> None:
    assert b4("run", "app/fix/agent.py", "list").json["routeId"] == "/fix"


def test_an_unknown_route_names_those_there_are(b4: B4) -> None:
    outcome = b4("run", "/fxi", "list")
    assert outcome.code == 1
    assert "There is no route '/fxi'.\n    [B4_E1006] The app's routes: /fix." in outcome.err
    assert outcome.json["error"] == {
        "kind": "B4_E1006",
        "message": "There is no route '/fxi'.",
        "details": {"hint": "The app's routes: /fix."},
    }


def test_an_app_that_cannot_be_used_still_gives_one_document(b4: B4, app: Path) -> None:
    (app / "b4_config.py").write_text("config = {'bogus': 1}")
    outcome = b4("run", "/fix", "list")
    assert (outcome.code, outcome.json["status"], outcome.json["error"]["kind"]) == (1, "failed", "B4_E1002")
    assert not (app / ".b4").exists()


def test_a_model_that_fails_gives_one_document(b4: B4) -> None:
    outcome = b4("run", "/fix", "nothing of the script")
    assert (outcome.code, outcome.json["status"]) == (1, "failed")
    assert outcome.json["error"]["message"] and "Traceback" not in outcome.err


def test_nobody_there_to_ask_is_a_refusal_to_the_model_not_a_pause(b4: B4) -> None:
    outcome = b4("run", "/fix", "deploy")
    assert (outcome.code, outcome.json["output"]) == (0, "Deployed.")


def test_a_run_out_of_time_is_exit_code_124(b4: B4) -> None:
    outcome = b4("run", "/fix", "wait", "--timeout", "0.5")
    assert outcome.code == 124
    assert (outcome.json["status"], outcome.json["error"]["kind"]) == ("failed", "B4_E2006")


def test_a_thread_goes_on(b4: B4) -> None:
    first = b4("run", "/fix", "list").json
    second = b4("run", "/fix", "again", "--thread", first["threadId"]).json
    assert (second["threadId"], second["output"]) == (first["threadId"], "Again.")
    assert b4("run", "/fix", "again").json["threadId"] != first["threadId"]


def test_an_interrupt_ends_the_run_and_still_gives_the_document(app: Path) -> None:
    process = subprocess.Popen(
        [*PYTHON, "run", "/fix", "wait"], cwd=app, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    with process:
        _wait_for(app / ".b4" / "checkpoints.sqlite-wal")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    document = json.loads(out)
    assert (document["status"], document["error"]["kind"]) == ("failed", "interrupted")
    assert b"Traceback" not in err


def _wait_for(path: Path) -> None:
    deadline = time.monotonic() + 30
    while not (path.exists() and path.stat().st_size):
        assert time.monotonic() < deadline, f"{path} did not come"
        time.sleep(0.02)


class Terminal:
    """A pseudo-terminal with `b4` at its other end."""

    def __init__(self, process: subprocess.Popen[bytes], descriptor: int) -> None:
        self.process = process
        self._descriptor = descriptor
        self.seen = ""

    def until(self, text: str) -> str:
        """Read until `text` appears; return what came before it since the last call."""
        deadline = time.monotonic() + 30
        while text not in self.seen:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{text!r} did not come; there was {self.seen!r}"
            self.seen += self._read()
        before, _, self.seen = self.seen.partition(text)
        return before

    def _read(self) -> str:
        try:
            data = os.read(self._descriptor, 65_536)
        except OSError:
            data = b""
        assert data, f"the terminal was closed; there was {self.seen!r}"
        return data.decode()

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())


@contextmanager
def at_terminal(app: Path, *arguments: str) -> Iterator[Terminal]:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PYTHON, "run", *arguments], cwd=app, env=ENVIRONMENT, stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    try:
        yield Terminal(process, ours)
        process.wait(timeout=30)
    finally:
        process.kill()
        process.wait()
        os.close(ours)


def test_a_terminal_shows_text_calls_and_approvals(app: Path) -> None:
    with at_terminal(app, "/fix", "deploy it") as terminal:
        terminal.until("→ runBash make deploy\\x1b[2J")
        asked = terminal.until("[y] once  [a] always  [n] no: ")
        assert "run:" in asked and "make deploy\\x1b[2J" in asked and "\x1b[2J" not in asked
        terminal.type("y\n")
        terminal.until("exit 0  ran make deploy")
        terminal.until("Deployed.")
    assert terminal.process.returncode == 0


def test_always_is_kept_and_a_no_is_told_to_the_model(app: Path, b4: B4) -> None:
    with at_terminal(app, "/fix", "deploy it", "--thread", "t-1") as terminal:
        terminal.until("[n] no: ")
        terminal.type("n\n")
        assert "denied" in terminal.until("Deployed.")
    with at_terminal(app, "/fix", "deploy it", "--thread", "t-1") as terminal:
        terminal.until("[n] no: ")
        terminal.type("a\n")
        terminal.until("Deployed.")
    (grant,) = b4("permissions", "ls", "--json").json
    assert (grant["key"], grant["pattern"], grant["exact"], grant["threadId"]) == ("bash", "make deploy\x1b[2J", True, "t-1")


def test_a_conversation_goes_on_until_the_input_ends(app: Path) -> None:
    with at_terminal(app, "/fix") as terminal:
        terminal.until("> ")
        terminal.type("list\n")
        terminal.until("There is nothing.")
        terminal.until("> ")
        terminal.type("nothing of the script\n")
        terminal.until("[B4_E")
        terminal.until("> ")
        terminal.type("again\n")
        terminal.until("Again.")
        terminal.until("> ")
        terminal.type("\x04")
    assert terminal.process.returncode == 0


def test_ctrl_c_at_a_terminal_is_exit_code_130_without_a_traceback(app: Path) -> None:
    with at_terminal(app, "/fix", "wait") as terminal:
        terminal.until("→ runBash slow")
        terminal.process.send_signal(signal.SIGINT)
    assert terminal.process.returncode == 130
    assert "Traceback" not in terminal.seen
