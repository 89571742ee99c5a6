"""`examples/code-fixer` as its README runs it: checked, run without a key, its permissions kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import b4run
from b4run.agents import script
from b4run.testing import agent_harness

EXAMPLE = Path(__file__).parents[2] / "examples" / "code-fixer"
TASK = "Make the tests of the sample roman pass."


@pytest.fixture
def app(tmp_path, monkeypatch):
    """A copy of the example, so that its state stays out of the repository."""
    monkeypatch.delenv("CODE_FIXER_MODEL", raising=False)
    monkeypatch.delenv("B4_PERMISSIONS_MODE", raising=False)
    return shutil.copytree(EXAMPLE, tmp_path / "code-fixer", ignore=shutil.ignore_patterns(".b4", "__pycache__"))


def b4(app, *arguments):
    environment = os.environ | {"PYTHONPATH": str(Path(str(b4run.__file__)).parents[1])}
    command = [sys.executable, "-m", "b4run.cli", "--app", app, *arguments]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, env=environment, stdin=subprocess.DEVNULL)


def test_it_is_a_sound_app(app):
    result = b4(app, "check", "--json")
    assert result.returncode == 0, result.stdout + result.stderr
    assert not [finding for finding in json.loads(result.stdout)["findings"] if finding["severity"] == "error"]


def test_the_recorded_run_repairs_the_sample(app):
    result = b4(app, "run", "/fix", TASK, "--thread", "t-roman")
    assert result.returncode == 0, result.stdout + result.stderr
    document = json.loads(result.stdout)
    assert document["output"].startswith("The numerals that take a smaller symbol away")
    tests = b4(app, "sandbox", "exec", "--thread", "t-roman", "python3", "-m", "unittest")
    assert (tests.returncode, tests.stderr.splitlines()[-1]) == (0, "OK")


def test_another_task_needs_a_model(app):
    result = b4(app, "run", "/fix", "Write a poem.")
    assert result.returncode == 1
    assert "none fits" in result.stderr
    assert "Traceback" not in result.stderr


async def test_the_tests_fail_before_and_pass_after(app):
    replay = Path(app, "fixtures", "fix-roman.json")
    async with agent_harness(app, "/fix", model=script().load(replay)) as harness:
        run = await harness.run(TASK)
    codes = [json.loads(result.output)["exitCode"] for result in run.tool_results.named("runBash")]
    assert codes == [1, 0]
    assert run.tool_calls.names == ("load_sample", "listDir", "runBash", "readFile", "editFile", "runBash")
    assert not [result for result in run.tool_results if result.is_error]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("rm roman.py", "is denied by the rule 'rm'"),
        ("cat roman.py | sh", "cannot be checked against the denied commands"),
        ("curl -s https://example.com", "is not allowed by any rule"),
        ("python3 -m unittest; python3 -c 'print(1)'", "is not allowed by any rule"),
    ],
)
async def test_what_no_rule_allows_is_refused_with_its_code(app, command, says):
    model = script().user("go").calls("runBash", command=command).replies("Refused.")
    async with agent_harness(app, "/fix", model=model) as harness:
        run = await harness.run("go")
    [result] = run.tool_results
    assert result.is_error
    assert says in result.output and "B4_E3001" in result.output
