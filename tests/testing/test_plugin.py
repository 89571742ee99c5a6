"""An app's own tests: the fixtures are there without an import, and close what they opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

APP_TESTS = """
import pytest
from b4run.agents import Agent
from b4run.errors import ScriptMismatch
from b4run.testing import script

AGENT = Agent(model="none:none", prompt="Work.")

@pytest.mark.asyncio
async def test_a_run(agent_harness):
    model = script().user("go").calls("writeFile", path="a.txt", content="hi").calls("readFile", path="a.txt").replies("done")
    harness = await agent_harness(AGENT, model=model)
    run = await harness.run("go")
    assert run.tool_calls.names == ("writeFile", "readFile")
    assert run.tool_results.named("readFile")[0].output == "hi"
    assert run.final_message == "done"

@pytest.mark.asyncio
async def test_the_fake(fake_sandbox):
    sandbox = await fake_sandbox.acquire("t-1", POLICY)
    assert (await sandbox.exec.run("anything")).exit_code == 0

@pytest.mark.asyncio
async def test_answers_never_asked_for_fail(agent_harness):
    harness = await agent_harness(AGENT, model=script().user("go").replies("done").user("more").replies("never"))
    await harness.run("go")

from b4run.sandbox.policy import Deny, SandboxPolicy
POLICY = SandboxPolicy(network=Deny())
"""


def test_the_fixtures_are_there_without_an_import(tmp_path: Path) -> None:
    (tmp_path / "test_app.py").write_text(APP_TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", "asyncio_default_fixture_loop_scope=function", "."]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.splitlines()[-1].startswith("3 passed, 1 error"), done.stdout
    assert "ERROR test_app.py::test_answers_never_asked_for_fail" in done.stdout
    assert "ScriptMismatch" in done.stdout
