"""Apps whose threads start from recorded workspaces: through the runtime, the command, and again after a restart."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from b4run.agents import Answer
from b4run.app import open_app
from b4run.errors import ConfigurationError, ResolverFailed
from b4run.sandbox import SandboxSupervisor
from b4run.sandbox.testing import fake_sandbox
from b4run.testing import script

from .conftest import MakeApp

CONFIG = """
from b4run.config import (
    Config, Deny, ExtraFile, Permissions, Resources, Rules, Sandbox, ThreadPermissions, ThreadPolicy, ThreadSandbox, WorkspaceDefinition,
    WorkspaceSource,
)
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox

async def thread(thread):
    task = str(thread.metadata.get("task", ""))
    if task not in ("one", "two"):
        raise ValueError(f"thread {thread.thread_id} names no known task")
    return ThreadSandbox(
        workspace=WorkspaceDefinition(
            source=WorkspaceSource(directory=f"tasks/{task}", include=("TASK.md",), files=(ExtraFile(path="id", text=thread.thread_id),)),
            baseline="git",
        ),
        policy=ThreadPolicy(env={"TASK": task}, resources=Resources(memory_mb=64)),
        permissions=ThreadPermissions(allow=Rules(bash=("cat",))),
    )

config = Config(
    sandbox=Sandbox(provider=bubblewrap_sandbox(scope="managed"), network=Deny(), env={"APP": "1"}, thread=thread),
    permissions=Permissions(allow=Rules(bash=("echo",))),
)
"""
AGENT = 'from b4run.agents import Agent\nagent = Agent(model="openai:none", prompt="Help.")\n'


@pytest.fixture
def app(make_app: MakeApp, tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    files = {"b4_config.py": CONFIG, "app/fix/agent.py": AGENT, "tasks/one/TASK.md": "first\n", "tasks/two/TASK.md": "second\n"}
    return make_app(files)


def metadata(task: str):  # type: ignore[no-untyped-def]
    async def of(thread_id: str) -> dict[str, str]:
        return {"task": task}

    return of


async def run_turn(app: Path, command: str, task: str = "one", thread: str = "t-1"):  # type: ignore[no-untyped-def]
    model = script().user("go").calls("runBash", command=command).replies("done").model()
    async with open_app(app, model=model, metadata_of=metadata(task)) as opened:
        return await opened.runtime.run("/fix", "go", thread_id=thread)


def output(result) -> str:  # type: ignore[no-untyped-def]
    return str(next(json.loads(event.output)["stdout"] for event in result.events if type(event).__name__ == "ToolResult"))


async def test_a_thread_works_on_what_its_resolver_chose_under_its_own_rules(app: Path) -> None:
    result = await run_turn(app, "cat TASK.md id")
    assert output(result) == "first\nt-1"
    # The app's allow list is not the thread's.
    parked = await run_turn(app, "echo hi")
    assert [interrupt.detail["command"] for interrupt in parked.interrupts] == ["echo hi"]
    # What was recorded decides, whatever is said now.
    assert output(await run_turn(app, "cat TASK.md", task="two")) == "first\n"
    assert output(await run_turn(app, "cat TASK.md", task="two", thread="t-2")) == "second\n"


async def test_what_tools_answered_is_read_back_whole_after_a_restart(app: Path, caplog: pytest.LogCaptureFixture) -> None:
    await run_turn(app, "cat TASK.md")
    async with open_app(app, model=script().model()) as opened:
        messages = await opened.runtime.messages("/fix", thread_id="t-1")
    (artifact,) = [message.artifact for message in messages if message.type == "tool"]
    assert "Cause.EXIT" in repr(artifact)
    assert "Blocked" not in caplog.text


async def test_always_holds_for_the_thread_across_restarts_and_ends_with_its_grants(app: Path) -> None:
    model = script().user("go").calls("runBash", command="echo hi").replies("done").model()
    async with open_app(app, model=model, metadata_of=metadata("one")) as opened:
        parked = await opened.runtime.run("/fix", "go", thread_id="t-1")
        await opened.runtime.resume("/fix", {parked.interrupts[0].id: Answer("always")}, thread_id="t-1")
    assert output(await run_turn(app, "echo hi")) == "hi\n"
    assert (await run_turn(app, "echo hi", thread="t-2")).parked
    async with open_app(app, model=script().model()) as opened:
        assert [grant.pattern for grant in await opened.storage.grants.list("t-1")] == ["echo hi"]
        await opened.sandboxes.destroy("t-1")
        assert await opened.storage.grants.list("t-1") == []


async def test_a_thread_that_names_nothing_known_is_told_so(app: Path) -> None:
    with pytest.raises(ResolverFailed, match="thread t-9 names no known task"):
        await run_turn(app, "cat TASK.md", task="three", thread="t-9")


def b4(app: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(app)}
    command = [sys.executable, "-m", "b4run.cli", *arguments]
    return subprocess.run(command, cwd=app, env=environment, capture_output=True, text=True, timeout=60, check=False)


async def test_the_command_knows_managed_threads(app: Path) -> None:
    await run_turn(app, "cat TASK.md")
    record = next(item for item in json.loads(b4(app, "sandbox", "ls", "--json").stdout) if item["thread_id"] == "t-1")
    assert not record["running"]
    done = b4(app, "sandbox", "exec", "--thread", "t-1", "--", "sh", "-c", "cat TASK.md; echo $TASK$APP")
    assert (done.returncode, done.stdout) == (0, "first\none\n"), done.stderr
    assert b4(app, "sandbox", "read", "--thread", "t-1", "id").stdout == "t-1"
    refused = b4(app, "sandbox", "exec", "--thread", "t-9", "--", "true")
    assert refused.returncode == 1
    assert "names no known task" in refused.stderr and "[B4_E2001]" in refused.stderr
    made = b4(app, "sandbox", "exec", "--thread", "t-9", "--metadata", '{"task": "two"}', "--", "cat", "TASK.md")
    assert (made.returncode, made.stdout) == (0, "second\n"), made.stderr
    odd = b4(app, "sandbox", "exec", "--metadata", "[]", "--", "true")
    assert odd.returncode == 2 and "must be a JSON object" in odd.stderr
    for thread in ("t-1", "t-9"):
        assert b4(app, "sandbox", "rm", thread, "--yes").returncode == 0
    assert json.loads(b4(app, "sandbox", "ls", "--json").stdout) == []
    # The id is new again, and may become something else.
    assert output(await run_turn(app, "cat TASK.md", task="two")) == "second\n"


async def test_a_thread_whose_files_were_removed_from_outside_can_be_deleted(app: Path) -> None:
    await run_turn(app, "cat TASK.md")
    for folder in (app / ".b4" / "sandboxes").iterdir():
        if len(folder.name) == 40:
            subprocess.run(["rm", "-rf", str(folder)], check=True)
    lost = b4(app, "sandbox", "exec", "--thread", "t-1", "--", "true")
    assert lost.returncode == 1 and "not in the state directory" in lost.stderr and "Delete the thread" in lost.stderr
    assert b4(app, "sandbox", "rm", "t-1", "--yes").returncode == 0
    assert output(await run_turn(app, "cat TASK.md")) == "first\n"


async def test_what_a_crash_left_is_finished_while_the_app_is_open(app: Path) -> None:
    await run_turn(app, "cat TASK.md")
    async with open_app(app, model=script().model()) as opened:
        record = await opened.storage.workspaces.find("t-1")
        assert record is not None
        await opened.storage.workspaces.mark_deleting(record)
    async with open_app(app, model=script().model()) as opened:
        for _ in range(100):
            if await opened.storage.workspaces.find("t-1") is None:
                break
            await asyncio.sleep(0.05)
        assert await opened.storage.workspaces.find("t-1") is None


async def test_another_provider_must_make_workspaces_too(app: Path) -> None:
    class Plain:
        name = "plain"
        capabilities: frozenset[str] = frozenset()

        async def acquire(self, thread_id: str, policy: object) -> None: ...

        async def release(self, thread_id: str) -> None: ...

        async def destroy(self, thread_id: str) -> None: ...

        async def aclose(self) -> None: ...

    with pytest.raises(ConfigurationError, match="plain"):
        async with open_app(app, provider=Plain()):  # type: ignore[arg-type]
            pass
    async with open_app(app, model=script().model(), provider=fake_sandbox(), metadata_of=metadata("one")) as opened:
        assert isinstance(opened.sandboxes, SandboxSupervisor)
        async with opened.sandboxes.lease("t-1") as sandbox:
            assert (await sandbox.files.read("TASK.md")).data == b"first\n"
