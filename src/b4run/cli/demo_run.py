"""Runs the demo: a project with failing tests, an agent in a sandbox, and the tests again to see what became of it."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from b4run.agents import Agent, AgentRuntime, Event, Route, ToolCall, ToolResult, script
from b4run.cli.demo_files import TESTS, difference, packaged_files, read_files, write_files
from b4run.cli.demo_script import PROMPT, REPLY, TASK, steps
from b4run.cli.demo_view import Call
from b4run.permissions import PermissionGate, PermissionMode
from b4run.sandbox.contract import ExecResult, SandboxHandle, SandboxProvider
from b4run.sandbox.environment import SYSTEM_PATH
from b4run.sandbox.policy import Deny, Resources, SandboxPolicy
from b4run.sandbox.supervisor import SandboxSupervisor

POLICY = SandboxPolicy(network=Deny(), resources=Resources(timeout_ms=60_000))
PERMISSIONS = PermissionGate(mode=PermissionMode.BYPASS)
"""Inside this sandbox there is nothing to protect; it is made for the demo and removed after it."""

ROUTE = "/demo"
TEST_DEADLINE_MS = 60_000
_STEPS_OF_A_REAL_MODEL = 100


@dataclass(frozen=True, slots=True)
class Python:
    """The interpreter for the sandbox: the host's own under `/usr`, or this process's, bound read-only."""

    command: str
    read_only_paths: tuple[Path, ...] = ()

    @property
    def tests(self) -> str:
        return f"{self.command} -m unittest"


def find_python() -> Python:
    """Return an interpreter that commands in a sandbox of this host can run."""
    found = shutil.which("python3", path=SYSTEM_PATH)
    if found is not None and os.path.realpath(found).startswith("/usr/"):
        return Python("python3")
    prefix = Path(sys.base_prefix).resolve()
    return Python(str(prefix / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"), (prefix,))


@dataclass(frozen=True, slots=True)
class Repair:
    """How the demo went."""

    before: ExecResult
    """The tests as they were."""
    after: ExecResult
    """The original tests against what the agent left; this decides."""
    calls: tuple[Call, ...]
    diff: str
    reply: str

    @property
    def fixed(self) -> bool:
        return not self.before.ok and self.after.ok

    def as_dict(self) -> dict[str, Any]:
        return {
            "fixed": self.fixed,
            "before": _test_run(self.before),
            "after": _test_run(self.after),
            "calls": [call.as_dict() for call in self.calls],
            "diff": self.diff,
            "reply": self.reply,
        }


def _test_run(result: ExecResult) -> dict[str, Any]:
    return {"exitCode": result.exit_code, "stdout": result.stdout, "stderr": result.stderr, "durationMs": round(result.duration_ms, 3)}


@dataclass(slots=True)
class _Recorder:
    """Puts each call and its result together."""

    on_call: Callable[[Call], None]
    calls: list[Call] = field(default_factory=list)
    _open: dict[str, ToolCall] = field(default_factory=dict)

    def __call__(self, event: Event) -> None:
        if isinstance(event, ToolCall):
            self._open[event.id] = event
        elif isinstance(event, ToolResult):
            asked = self._open.pop(event.id)
            call = Call(asked.name, asked.input, event.output, event.is_error, event.duration_ms)
            self.calls.append(call)
            self.on_call(call)


def agent(model: Any, tests: str) -> Agent:
    """Return the agent of the demo: scripted, or on a real model, by a name such as `openai:gpt-5-mini`."""
    prompt = PROMPT.format(tests=tests)
    if model is not None:
        return Agent(model=model, prompt=prompt, recursion_limit=_STEPS_OF_A_REAL_MODEL)
    scripted = script().user(TASK)
    for tool, arguments in steps(tests):
        scripted = scripted.calls(tool, **arguments)
    return Agent(model=scripted.replies(REPLY).model(), prompt=prompt)


async def repair(provider: SandboxProvider, model: Any, tests: str, on_call: Callable[[Call], None]) -> Repair:
    """Run the demo in a fresh thread of `provider`, which is closed at the end, the thread's files removed."""
    thread_id = f"demo-{secrets.token_hex(4)}"
    files = packaged_files()
    recorder = _Recorder(on_call)
    async with SandboxSupervisor(provider, POLICY) as sandboxes:
        try:
            async with sandboxes.lease(thread_id) as sandbox:
                await write_files(sandbox.files, files)
                before = await _run_tests(sandbox, tests)
                runtime = AgentRuntime({ROUTE: Route.of(agent(model, tests), ROUTE)}, sandboxes=sandboxes, permissions=PERMISSIONS)
                result = await runtime.run(ROUTE, TASK, thread_id=thread_id, on_event=recorder)
                left = await read_files(sandbox.files)
                await write_files(sandbox.files, {path: data for path, data in files.items() if path.startswith(TESTS)})
                after = await _run_tests(sandbox, tests)
        finally:
            await sandboxes.destroy(thread_id)
    return Repair(before, after, tuple(recorder.calls), difference(files, left), result.final_message)


async def _run_tests(sandbox: SandboxHandle, tests: str) -> ExecResult:
    return await sandbox.exec.run(tests, deadline_ms=TEST_DEADLINE_MS)
