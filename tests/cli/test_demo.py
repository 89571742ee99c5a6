"""`b4 demo`: the repair is real, the verdict is the test suite's, and what is shown says so."""

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from b4run.agents import script
from b4run.cli.demo_files import difference, packaged_files, read_files, write_files
from b4run.cli.demo_run import Python, find_python, repair
from b4run.cli.demo_script import TASK, steps
from b4run.cli.demo_view import Call, View
from b4run.sandbox import open_sandbox
from b4run.sandbox.testing import Answer, fake_sandbox

from .conftest import ENVIRONMENT, PYTHON

TESTS = "python3 -m unittest"


@pytest.fixture
def host_python(tmp_path):
    """A fake sandbox whose commands run a copy of its files under this interpreter."""

    async def answer(command):
        thread_id = provider.log[-1][1]
        folder = tmp_path / "copy"
        shutil.rmtree(folder, ignore_errors=True)
        for path, data in (await read_files(provider.handle(thread_id).files)).items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_bytes(data)
        assert command.command == TESTS
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-B", "-m", "unittest", cwd=folder, stdout=-1, stderr=-1, env={"PYTHONDONTWRITEBYTECODE": "1"}
        )
        out, err = await asyncio.wait_for(process.communicate(), 60)
        return Answer(out, err, process.returncode)

    provider = fake_sandbox(answer)
    return provider


async def test_the_scripted_repair_makes_failing_tests_pass(host_python):
    seen = []
    result = await repair(host_python, None, TESTS, seen.append)
    assert result.fixed
    assert (result.before.exit_code, result.after.exit_code) == (1, 0)
    assert re.search(r"Ran 15 tests.*FAILED \(failures=7\)", result.before.stderr, re.DOTALL)
    assert re.search(r"Ran 15 tests.*OK", result.after.stderr, re.DOTALL)
    assert [call.tool for call in seen] == [tool for tool, _ in steps(TESTS)]
    assert not any(call.failed for call in seen)
    assert [line for line in result.diff.splitlines() if re.match(r"[+-]{3} ", line)] == [
        "--- a/worklog/durations.py",
        "+++ b/worklog/durations.py",
        "--- a/worklog/spans.py",
        "+++ b/worklog/spans.py",
    ]


async def test_the_thread_is_gone_afterwards(host_python):
    await repair(host_python, None, TESTS, lambda _: None)
    assert host_python.log[-1][0] == "destroy"


async def test_doing_nothing_is_not_a_repair(host_python):
    result = await repair(host_python, script().user(TASK).replies("All is well.").model(), TESTS, lambda _: None)
    assert (result.fixed, result.after.exit_code, result.diff, result.reply) == (False, 1, "", "All is well.")


async def test_emptying_the_tests_is_not_a_repair(host_python):
    cheat = script().user(TASK)
    for name in ("durations", "report", "spans"):
        cheat = cheat.calls("writeFile", path=f"tests/test_{name}.py", content="")
    result = await repair(host_python, cheat.replies("They pass.").model(), TESTS, lambda _: None)
    assert (result.fixed, result.after.exit_code) == (False, 1)
    assert "+++ b/tests/test_spans.py" in result.diff


async def test_a_failing_call_is_shown_and_changes_nothing(host_python):
    lost = script().user(TASK).calls("readFile", path="nowhere.py").replies("Gave up.")
    seen = []
    result = await repair(host_python, lost.model(), TESTS, seen.append)
    assert [(call.tool, call.failed) for call in seen] == [("readFile", True)]
    assert not result.fixed


def test_the_difference_names_what_came_went_and_changed():
    before = {"a": b"1\n2\n", "gone": b"x\n", "same": b"\n", "binary": b"\xff"}
    after = {"a": b"1\n3", "new": b"y\n", "same": b"\n", "binary": b"\xfe"}
    assert difference(before, after) == (
        "--- a/a\n+++ b/a\n@@ -1,2 +1,2 @@\n 1\n-2\n+3\n\\ No newline at end of file\n"
        "Binary files a/binary and b/binary differ\n"
        "--- a/gone\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
        "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+y\n"
    )


async def test_files_come_back_from_a_workspace_as_they_went_in():
    files = packaged_files()
    assert {"README.md", "worklog/spans.py", "tests/__init__.py"} <= set(files)
    async with open_sandbox(fake_sandbox(), thread_id="t-1") as sandbox:
        await write_files(sandbox.files, files)
        await sandbox.files.write("worklog/__pycache__/spans.pyc", b"\0")
        assert await read_files(sandbox.files) == files


class TestView:
    @staticmethod
    def shown(*calls, **console):
        output = StringIO()
        view = View(Console(file=output, width=200, highlight=False, **console))
        for call in calls:
            view.call(call)
        return output.getvalue()

    def test_a_command_shows_its_code_and_last_line(self):
        answer = json.dumps({"stdout": "", "stderr": "x\nFAILED (failures=7)\n", "exitCode": 1})
        line = self.shown(Call("runBash", {"command": "make test"}, answer, False, 1234.5))
        assert re.fullmatch(r"  runBash   make test +1\.23 s  exit 1  FAILED \(failures=7\)\n", line)

    def test_a_text_shows_its_first_line(self):
        line = self.shown(Call("readFile", {"path": "a.py"}, "one\ntwo\n", False, 0.42))
        assert re.fullmatch(r"  readFile  a\.py +0\.4 ms  one … 2 lines\n", line)

    def test_nothing_a_sandbox_wrote_acts_on_the_terminal(self):
        line = self.shown(Call("readFile", {"path": "\x1b[2J[bold]"}, "\x1b]0;title\x07", True, 1))
        assert "\x1b" not in line
        assert r"\x1b[2J[bold]" in line

    def test_colour_is_for_terminals_without_no_color(self, monkeypatch):
        call = Call("listDir", {}, "[]", False, 1)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("NO_COLOR", raising=False)
        assert "\x1b[" in self.shown(call, force_terminal=True)
        assert "\x1b[" not in self.shown(call)
        monkeypatch.setenv("NO_COLOR", "1")
        assert "\x1b[3" not in self.shown(call, force_terminal=True)


def test_the_hosts_python_is_used_where_sandboxes_have_it(monkeypatch):
    monkeypatch.setattr("b4run.cli.demo_run.SYSTEM_PATH", "/nowhere")
    found = find_python()
    assert found.read_only_paths == (Path(sys.base_prefix).resolve(),)
    assert subprocess.run([*found.tests.split(), "--help"], check=False, capture_output=True, timeout=60).returncode == 0
    assert Python("python3").tests == TESTS


class TestCommand:
    """The whole of it, in a bubblewrap sandbox."""

    @staticmethod
    def run(*arguments, **environment):
        return subprocess.run(
            [*PYTHON, "demo", *arguments], check=False, capture_output=True, text=True, timeout=120, env=ENVIRONMENT | environment
        )

    def test_it_repairs_the_project_and_says_so(self, tmp_path):
        result = self.run(TMPDIR=os.fspath(tmp_path))
        assert result.returncode == 0, result.stderr
        calls = re.findall(r"^  (\w+) .* \d+\.\d+ m?s  ", result.stdout, re.MULTILINE)
        assert calls == [tool for tool, _ in steps(TESTS)]
        assert "+            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))" in result.stdout
        assert result.stdout.endswith("Fixed. `python3 -m unittest` in the sandbox ends with exit code 0: OK\n")
        assert "\x1b" not in result.stdout
        assert list(tmp_path.iterdir()) == []

    def test_json_is_one_document(self):
        result = self.run("--json")
        assert result.returncode == 0, result.stderr
        document = json.loads(result.stdout)
        assert (document["fixed"], document["provider"], document["model"]) == (True, "bubblewrap", "scripted")
        assert (document["before"]["exitCode"], document["after"]["exitCode"]) == (1, 0)
        assert all(call["durationMs"] > 0 for call in document["calls"])

    def test_an_unknown_provider_is_wrong_usage(self):
        result = self.run("--provider", "hope")
        assert result.returncode == 2
        assert "bubblewrap" in result.stderr

    def test_a_model_that_cannot_be_loaded_is_refused(self):
        result = self.run("--model", "nobody:nothing")
        assert result.returncode == 1
        assert "nobody" in result.stderr
        assert "Traceback" not in result.stderr
