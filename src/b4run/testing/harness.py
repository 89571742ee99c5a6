"""Runs agents in a test: real tools, real permissions, a real or a fake sandbox, a scripted model."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, TypeVar

from langchain_core.messages import AnyMessage

from b4run.agents.checkpoints import memory_checkpoints
from b4run.agents.definition import Agent, Route, Tool
from b4run.agents.events import Chunk, Event, Interrupt, SubagentEnd, SubagentEvent, SubagentStart, ToolCall, ToolResult
from b4run.agents.gating import Answer
from b4run.agents.runtime import AgentRuntime, Leases, RunResult
from b4run.agents.scripted import ScriptedChatModel
from b4run.agents.scripts import Script
from b4run.errors import RouteUnknown
from b4run.permissions import MemoryGrantStore, PermissionGate
from b4run.sandbox.contract import SandboxHandle, SandboxProvider
from b4run.sandbox.supervisor import SandboxSupervisor
from b4run.sandbox.testing import fake_sandbox


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_HasName)


class Named(tuple[T, ...]):
    """A tuple whose members can be asked for by name."""

    def named(self, name: str) -> tuple[T, ...]:
        return tuple(member for member in self if member.name == name)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(member.name for member in self)


@dataclass(slots=True)
class SubagentRun:
    """What one dispatch came to in this turn."""

    call_id: str
    name: str
    route: str
    depth: int
    input: str
    events: list[ToolCall | ToolResult | Chunk] = field(default_factory=list)
    final_message: str | None = None
    error: str | None = None

    @property
    def tool_calls(self) -> Named[ToolCall]:
        return Named(event for event in self.events if isinstance(event, ToolCall))

    @property
    def tool_results(self) -> Named[ToolResult]:
        return Named(event for event in self.events if isinstance(event, ToolResult))


@dataclass(frozen=True)
class HarnessRun:
    """All that one turn did. What the subagents did is under `subagents`."""

    result: RunResult
    thread_id: str
    messages: Sequence[AnyMessage]
    """The whole conversation."""

    @property
    def events(self) -> tuple[Event, ...]:
        return self.result.events

    @property
    def final_message(self) -> str:
        return self.result.final_message

    @property
    def interrupts(self) -> tuple[Interrupt, ...]:
        return self.result.interrupts

    @property
    def tokens(self) -> tuple[str, ...]:
        return tuple(event.text for event in self.events if isinstance(event, Chunk))

    @property
    def tool_calls(self) -> Named[ToolCall]:
        return Named(event for event in self.events if isinstance(event, ToolCall))

    @property
    def tool_results(self) -> Named[ToolResult]:
        return Named(event for event in self.events if isinstance(event, ToolResult))

    @cached_property
    def subagents(self) -> Named[SubagentRun]:
        found: dict[str, SubagentRun] = {}
        for event in self.events:
            match event:
                case SubagentStart():
                    found[event.call_id] = SubagentRun(event.call_id, event.name, event.route, event.depth, event.input)
                case SubagentEvent():
                    found[event.call_id].events.append(event.event)
                case SubagentEnd():
                    found[event.call_id].final_message, found[event.call_id].error = event.final_message, event.error
        return Named(found.values())


class AgentHarness:
    """One agent under test, on one thread at a time. Made by `agent_harness`."""

    def __init__(self, route: str, build: Callable[[Any], AgentRuntime], model: Script | Any, sandboxes: Leases) -> None:
        self._route = route
        self._build = build
        self._sandboxes = sandboxes
        self._prefix = f"test-{secrets.token_hex(3)}"
        self.threads = [f"{self._prefix}-1"]
        self._use(model)

    @property
    def thread_id(self) -> str:
        return self.threads[-1]

    async def run(self, input: Any) -> HarnessRun:
        """Take one turn on the current thread."""
        return await self._told(await self.runtime.run(self._route, input, thread_id=self.thread_id))

    async def resume(self, answers: str | Answer | Mapping[str, Answer | str]) -> HarnessRun:
        """Answer the pending prompts: one answer for all, or one for each by interrupt id."""
        if not isinstance(answers, Mapping):
            pending = await self.runtime.pending(self._route, thread_id=self.thread_id)
            answers = {interrupt.id: answers for interrupt in pending}
        return await self._told(await self.runtime.resume(self._route, answers, thread_id=self.thread_id))

    def go_on(self, model: Script | Any) -> None:
        """Stay on the thread, with a new model. Raises: ScriptMismatch: answers of the old one were never asked for."""
        self.check_script()
        self._use(model)

    def reset(self, model: Script | Any) -> None:
        """Begin a new thread, with a new model. Raises: ScriptMismatch: answers of the old one were never asked for."""
        self.go_on(model)
        self.threads.append(f"{self._prefix}-{len(self.threads) + 1}")

    @asynccontextmanager
    async def sandbox(self) -> AsyncIterator[SandboxHandle]:
        """Look into the current thread's sandbox, or prepare it."""
        async with self._sandboxes.lease(self.thread_id) as sandbox:
            yield sandbox

    def check_script(self) -> None:
        """Raise ScriptMismatch when a scripted answer was never asked for."""
        if isinstance(self.model, ScriptedChatModel) and not self.model.repeat:
            self.model.check_used()

    def _use(self, model: Script | Any) -> None:
        self.model = model.model() if isinstance(model, Script) else model
        self.runtime = self._build(self.model)

    async def _told(self, result: RunResult) -> HarnessRun:
        return HarnessRun(result, self.thread_id, await self.runtime.messages(self._route, thread_id=self.thread_id))


@dataclass(frozen=True, slots=True)
class _Parts:
    """What a harness makes its runtimes from."""

    routes: Mapping[str, Route]
    sandboxes: SandboxSupervisor
    permissions: PermissionGate
    command_timeout_ms: int | None


@asynccontextmanager
async def agent_harness(
    subject: Agent | Route | Path | str,
    route: str | None = None,
    *,
    model: Script | Any,
    tools: Sequence[Tool] = (),
    sandbox: SandboxProvider | None = None,
    permissions: PermissionGate | None = None,
    command_timeout_ms: int | None = None,
    can_ask: bool = True,
    destroy: bool = True,
) -> AsyncIterator[AgentHarness]:
    """Run an agent in a test: one of an app's routes (the app's folder, and which), an `Agent` with its function tools, or a `Route`.

    `sandbox` is a provider, which stays open. Without it an app has the one that it configures, an agent a fake one. `permissions` stand
    in for the app's. At the end every thread's sandbox is destroyed, or with `destroy` False only released. A block that ends without
    an error also checks that every scripted answer was asked for. Several harnesses may be open at once.

    Raises:
        RouteUnknown: the app has no such route, or has several and none is named.
        ScriptMismatch: scripted answers are left.
    """
    async with AsyncExitStack() as stack:
        if isinstance(subject, Path | str):
            parts = await stack.enter_async_context(_of_app(Path(subject), sandbox))
        else:
            parts = await stack.enter_async_context(_of_agent(subject, tools, sandbox, command_timeout_ms))
        checkpointer = memory_checkpoints()

        def build(chat_model: Any) -> AgentRuntime:
            return AgentRuntime(
                parts.routes,
                sandboxes=parts.sandboxes,
                permissions=permissions if permissions is not None else parts.permissions,
                checkpointer=checkpointer,
                model=chat_model,
                command_timeout_ms=command_timeout_ms if command_timeout_ms is not None else parts.command_timeout_ms,
                can_ask=can_ask,
            )

        harness = AgentHarness(_route_of(parts.routes, route), build, model, parts.sandboxes)
        try:
            yield harness
            harness.check_script()
        finally:
            for thread_id in harness.threads if destroy else ():
                await parts.sandboxes.destroy(thread_id)


@asynccontextmanager
async def _of_app(root: Path, provider: SandboxProvider | None) -> AsyncIterator[_Parts]:
    from b4run.app import open_app

    async with open_app(root, provider=provider) as app:
        timeout_ms = app.config.sandbox.resources.timeout_ms if app.config.sandbox else None
        yield _Parts(app.routes, app.sandboxes, app.permissions, timeout_ms)


@asynccontextmanager
async def _of_agent(
    subject: Agent | Route, tools: Sequence[Tool], provider: SandboxProvider | None, timeout_ms: int | None
) -> AsyncIterator[_Parts]:
    entry = subject if isinstance(subject, Route) else Route.of(subject, tools=tuple(tools))
    supervisor = SandboxSupervisor(provider or fake_sandbox(), idle_timeout_ms=None, close_provider=provider is None)
    async with supervisor:
        yield _Parts({entry.id: entry}, supervisor, PermissionGate(grants=MemoryGrantStore()), timeout_ms)


def _route_of(routes: Mapping[str, Route], route: str | None) -> str:
    if route is None and len(routes) == 1:
        return next(iter(routes))
    if route is None or route not in routes:
        raise RouteUnknown(route=route, known=", ".join(sorted(routes)))
    return route
