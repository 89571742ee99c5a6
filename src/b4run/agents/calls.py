"""What one run, and one tool call of it, work with."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass

from b4run.agents.events import Event
from b4run.agents.gated_files import GatedFiles
from b4run.agents.gating import CallGate
from b4run.permissions import PermissionGate, ThreadRules
from b4run.sandbox.contract import SandboxHandle


@dataclass(frozen=True, slots=True)
class RunContext:
    """One agent's part of a run. A subagent's differs from its parent's in the last five fields only."""

    thread_id: str
    sandbox: SandboxHandle
    permissions: PermissionGate
    can_ask: bool
    route: str
    rules: ThreadRules | None = None
    """The thread's own permissions; a subagent has its parent's."""
    name: str = ""
    depth: int = 0
    call_id: str | None = None
    """The dispatch that this agent works for; None for the root."""
    parent_call_id: str | None = None


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call under way."""

    run: RunContext
    id: str
    tool: str
    gate: CallGate
    files: GatedFiles
    emit: Callable[[Event], None]

    @classmethod
    def begin(cls, run: RunContext, call_id: str, tool: str, emit: Callable[[Event], None]) -> Call:
        extra = {"threadId": run.thread_id, "toolCallId": call_id}
        if run.call_id is not None:
            extra["callId"] = run.call_id
        gate = CallGate(run.permissions, run.thread_id, run.can_ask, extra, run.rules)
        return cls(run, call_id, tool, gate, GatedFiles(run.sandbox.files, gate), emit)


current_call: ContextVar[Call] = ContextVar("b4run_call")
"""Set around each tool call by the middleware; how a tool's function finds its call."""
