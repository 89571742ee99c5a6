"""`b4 sandbox` with the fake provider: what the command itself does. Real commands are run in `test_sandbox_real.py`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from .conftest import B4

CONFIG = """
import json
from pathlib import Path
from b4run.config import Config, Deny, Sandbox
from b4run.sandbox import SandboxRecord
from b4run.sandbox.contract import Leftover
from b4run.sandbox.testing import Answer, fake_sandbox

KEPT = Path(__file__).with_name("kept.json")


def answer(command):
    if command.argv[0] == "fail":
        return Answer(stdout="half\\n", stderr="broken\\n", exit_code=7)
    if command.argv[0] == "die":
        return Answer(signal=9)
    return Answer(stdout=json.dumps({"argv": command.argv, "stdin": len(command.stdin)}))


provider = fake_sandbox(answer)
provider.tree("t-1").put("notes.txt", b"h\\xc3\\xa9llo\\0\\n")
provider.tree("t-1").put("odd\\x1bname", b"")


async def list_sandboxes():
    return [SandboxRecord("id-1", "t-1", True, 2048), SandboxRecord("id-2", None, False)]


async def destroyed(thread_id):
    KEPT.write_text(thread_id)


async def prune():
    return [Leftover("reader", "b4-reader-1")]


provider.list_sandboxes = list_sandboxes
provider.prune = prune
provider.on_destroy = destroyed
config = Config(sandbox=Sandbox(provider=provider, network=Deny()))
"""


@pytest.fixture(autouse=True)
def app(b4: B4, tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text(CONFIG)


def test_ls_as_a_table_and_as_json(b4: B4) -> None:
    outcome = b4("sandbox", "ls")
    assert outcome.code == 0
    assert [line.split() for line in outcome.out.splitlines()] == [
        ["THREAD", "STATE", "FILES", "ID"],
        ["t-1", "running", "2.0", "KiB", "id-1"],
        ["-", "stored", "-", "id-2"],
    ]
    assert b4("sandbox", "ls", "--json").json == [
        {"resource_id": "id-1", "thread_id": "t-1", "running": True, "workspace_bytes": 2048},
        {"resource_id": "id-2", "thread_id": None, "running": False, "workspace_bytes": None},
    ]


@pytest.mark.parametrize(
    ("words", "argv"),
    [
        (["ls", "-la"], ["ls", "-la"]),
        (["--", "ls", "--help"], ["ls", "--help"]),
        (["echo", "--", "x"], ["echo", "--", "x"]),
        (["echo hi | wc -c"], ["/bin/sh", "-c", "echo hi | wc -c"]),
        (["--", "grep", "--app", "x", "--debug"], ["grep", "--app", "x", "--debug"]),
    ],
)
def test_exec_takes_words_or_one_text(b4: B4, words: list[str], argv: list[str]) -> None:
    outcome = b4("sandbox", "exec", "--thread", "t-1", "--no-stdin", *words)
    assert outcome.code == 0, outcome.err
    assert json.loads(outcome.out) == {"argv": argv, "stdin": 0}


def test_exec_passes_on_streams_and_code(b4: B4) -> None:
    outcome = b4("sandbox", "exec", "--", "fail", "now")
    assert (outcome.code, outcome.out, outcome.err) == (7, "half\n", "broken\n")
    assert b4("sandbox", "exec", "--", "die", "now").code == 137


def test_read_prints_a_file_as_it_is_and_lists_a_folder(b4: B4) -> None:
    assert b4("sandbox", "read", "--thread", "t-1", "notes.txt").out == "héllo\0\n"
    assert b4("sandbox", "read", "--thread", "t-1").out == "notes.txt\nodd\x1bname\n"
    _, entry = b4("sandbox", "read", "--thread", "t-1", "--json").json
    assert (entry["name"], entry["kind"], entry["size"]) == ("odd\x1bname", "file", 0)


def test_read_refusals(b4: B4) -> None:
    absent = b4("sandbox", "read", "--thread", "t-1", "nope.txt")
    assert (absent.code, absent.out) == (1, "")
    assert "nope.txt" in absent.err and "[B4_E2004]" in absent.err
    nobody = b4("sandbox", "read", "--thread", "t-9", "notes.txt")
    assert (nobody.code, nobody.err) == (
        1,
        "Thread 't-9' has no sandbox.\n    [B4_E2001] `b4 sandbox ls` lists the threads that have one.\n",
    )
    assert b4("sandbox", "read", "--thread", "t-1", "notes.txt", "--json").code == 2


def test_rm_asks_before_it_removes(b4: B4, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = b4("sandbox", "rm", "t-1")
    assert (refused.code, refused.out) == (2, "")
    assert "--yes" in refused.err
    for answer, code in (("n\n", 1), ("\n", 1), ("yes\n", 0)):
        monkeypatch.setattr("sys.stdin", _Terminal(answer))
        outcome = b4("sandbox", "rm", "t-1")
        assert (outcome.code, outcome.out) == (code, "")
        assert (tmp_path / "kept.json").exists() == (code == 0)


def test_rm_of_what_is_not_there_is_refused(b4: B4) -> None:
    outcome = b4("sandbox", "rm", "t-9", "--yes")
    assert (outcome.code, outcome.err.splitlines()[0]) == (1, "Thread 't-9' has no sandbox.")
    assert b4("sandbox", "rm", "t-1", "--yes").code == 0


def test_prune_tells_what_it_removed(b4: B4, tmp_path: Path) -> None:
    outcome = b4("sandbox", "prune")
    assert [line.split() for line in outcome.out.splitlines()] == [["REMOVED", "NAME"], ["reader", "b4-reader-1"]]
    assert b4("sandbox", "prune", "--json").json == [{"kind": "reader", "name": "b4-reader-1"}]
    config = tmp_path / "b4_config.py"
    config.write_text(CONFIG.replace('[Leftover("reader", "b4-reader-1")]', "[]"))
    outcome = b4("sandbox", "prune")
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "Nothing was left behind.\n")
    assert b4("sandbox", "prune", "--json").json == []


def test_prune_of_a_provider_that_leaves_nothing_is_refused(b4: B4, tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text(CONFIG.replace("provider.prune = prune", ""))
    outcome = b4("sandbox", "prune")
    assert (outcome.code, outcome.out) == (1, "")
    assert "leaves nothing" in outcome.err


def test_an_app_without_a_sandbox_says_so(b4: B4, tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text("config = {}")
    outcome = b4("sandbox", "ls")
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith(f"The app in {tmp_path} configures no sandbox")
    assert "--scope" in outcome.err


class _Terminal:
    def __init__(self, answer: str) -> None:
        self._answer = answer

    def isatty(self) -> bool:
        return True

    def readline(self) -> str:
        return self._answer
