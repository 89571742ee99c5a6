"""Runs an app's agents: the front door of the command, of the server, and of a program of one's own."""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from typing import Any, Protocol

from langchain_core.messages import AnyMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import Command

from b4run.agents.calls import RunContext
from b4run.agents.checkpoints import memory_checkpoints
from b4run.agents.definition import Route
from b4run.agents.events import Done, Event, Interrupt
from b4run.agents.following import Graph, Said, follow
from b4run.agents.gating import Answer
from b4run.agents.inputs import messages_of
from b4run.agents.loop import Loops
from b4run.errors import ResumeRefused, RouteUnknown
from b4run.permissions import PermissionGate, ThreadRules
from b4run.sandbox.contract import SandboxHandle

__all__ = ["AgentRuntime", "Answer", "Leases", "RunResult"]

OnEvent = Callable[[Event], Awaitable[None] | None]

RulesOf = Callable[[str], Awaitable[ThreadRules | None]]
"""Gives a thread's own permissions, once its sandbox is there."""

_GRAPH_STEPS = 25


class Leases(Protocol):
    """What gives out a thread's sandbox: a `SandboxSupervisor`, for instance."""

    def lease(self, thread_id: str) -> AbstractAsyncContextManager[SandboxHandle]: ...


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a turn ended: with a text, or with prompts that wait for a person."""

    final_message: str
    interrupts: tuple[Interrupt, ...]
    events: tuple[Event, ...]

    @property
    def parked(self) -> bool:
        return bool(self.interrupts)

    @property
    def output(self) -> str | None:
        return None if self.parked else self.final_message


class AgentRuntime:
    """Runs turns of conversations on an app's routes. Turns of different threads may run at once, those of one thread one by one.

    `model`, a chat model, stands in for the one that every agent names. `command_timeout_ms` bounds each `runBash`. With `can_ask`
    False nobody is there to be asked: what would pause the run is refused. `rules_of` gives the permissions of threads that have their own.
    """

    def __init__(
        self,
        routes: Mapping[str, Route],
        *,
        sandboxes: Leases,
        permissions: PermissionGate,
        checkpointer: BaseCheckpointSaver[Any] | None = None,
        model: Any = None,
        command_timeout_ms: int | None = None,
        can_ask: bool = True,
        rules_of: RulesOf | None = None,
    ) -> None:
        self._routes = routes
        self._sandboxes = sandboxes
        self._permissions = permissions
        self._checkpointer = checkpointer if checkpointer is not None else memory_checkpoints()
        self._can_ask = can_ask
        self._rules_of = rules_of
        self._loops = Loops(model=model, command_timeout_ms=command_timeout_ms, checkpointer=self._checkpointer)

    async def run(self, route: str, input: Any, *, thread_id: str, on_event: OnEvent | None = None) -> RunResult:
        """Run one turn to its end or to its next prompts. Cancelling the awaiting task ends what runs and waits for it.

        `input` is a text, a list of messages, `{"messages": [...]}`, or another JSON value, which the agent gets as JSON. Prompts that
        were pending on the thread are given up by a new turn.

        Raises:
            RouteUnknown: there is no such route.
            SandboxUnavailable: the thread's sandbox cannot be made.
            ModelFailed, StepLimitReached: the turn could not be finished; the thread can go on from where it is.
        """
        return await _collected(self.stream(route, input, thread_id=thread_id), on_event)

    async def resume(
        self, route: str, answers: Mapping[str, Answer | str], *, thread_id: str, on_event: OnEvent | None = None
    ) -> RunResult:
        """Go on with a parked turn. `answers` by interrupt id: `once`, `always`, `deny`, or an `Answer`; each pending prompt has one.

        Raises:
            ResumeRefused: nothing is pending, or the answers are not those of the pending prompts. Nothing has happened then.
        """
        return await _collected(self.stream_resume(route, answers, thread_id=thread_id), on_event)

    async def stream(self, route: str, input: Any, *, thread_id: str) -> AsyncGenerator[Event, None]:
        """As `run`, event by event; the last is `Done`. Whoever leaves early closes the iterator (`aclosing`)."""
        graph = self._graph(route)
        async with aclosing(self._turn(route, graph, {"messages": messages_of(input)}, thread_id)) as events:
            async for event in events:
                yield event

    async def stream_resume(self, route: str, answers: Mapping[str, Answer | str], *, thread_id: str) -> AsyncGenerator[Event, None]:
        """As `resume`, event by event."""
        graph = self._graph(route)
        given = _matched(answers, await self._pending(graph, thread_id))
        async with aclosing(self._turn(route, graph, Command(resume=given), thread_id)) as events:
            async for event in events:
                yield event

    async def pending(self, route: str, *, thread_id: str) -> Sequence[Interrupt]:
        """Return the prompts that wait on the thread, also those of an earlier process."""
        return await self._pending(self._graph(route), thread_id)

    async def messages(self, route: str, *, thread_id: str) -> Sequence[AnyMessage]:
        """Return the conversation so far."""
        state = await self._graph(route).aget_state(_config(thread_id))
        return list(state.values.get("messages", []))

    async def forget(self, thread_id: str) -> None:
        """Drop a thread's conversation."""
        await self._checkpointer.adelete_thread(thread_id)

    def _graph(self, route: str) -> Graph:
        return self._loops.root(self._route(route))

    def _route(self, route: str) -> Route:
        if route not in self._routes:
            raise RouteUnknown(route=route, known=", ".join(sorted(self._routes)) or "none")
        return self._routes[route]

    async def _turn(self, route: str, graph: Graph, input: Any, thread_id: str) -> AsyncGenerator[Event, None]:
        entry = self._route(route)
        final = ""
        async with self._sandboxes.lease(thread_id) as sandbox:
            context, steps = None, _GRAPH_STEPS
            if entry.kind == "agent":
                permissions = replace(self._permissions, workspace_root=sandbox.workspace_root)
                rules = await self._rules_of(thread_id) if self._rules_of is not None else None
                context, steps = RunContext(thread_id, sandbox, permissions, self._can_ask, route, rules), entry.entry.recursion_limit
            async with aclosing(follow(graph, input, _config(thread_id) | {"recursion_limit": steps}, context)) as events:
                async for event in events:
                    if isinstance(event, Said):
                        final = event.text
                    else:
                        yield event
        interrupts = await self._pending(graph, thread_id)
        for interrupt in interrupts:
            yield interrupt
        yield Done(None if interrupts else final)

    async def _pending(self, graph: Graph, thread_id: str) -> list[Interrupt]:
        state = await graph.aget_state(_config(thread_id))
        return [
            Interrupt(
                id=pending.value["interruptId"],
                kind=pending.value["kind"],
                detail=pending.value["detail"],
                prompt=pending.value,
                resume_key=pending.id,
            )
            for pending in state.interrupts
            if isinstance(pending.value, Mapping) and pending.value.get("type") == "permission-request"
        ]


async def _collected(events: AsyncGenerator[Event, None], on_event: OnEvent | None) -> RunResult:
    kept: list[Event] = []
    async with aclosing(events):
        async for event in events:
            kept.append(event)
            if on_event is not None:
                waited = on_event(event)
                if inspect.isawaitable(waited):
                    await waited
    output = kept[-1].output if kept and isinstance(kept[-1], Done) else None
    return RunResult(output or "", tuple(event for event in kept if isinstance(event, Interrupt)), tuple(kept))


def _matched(answers: Mapping[str, Answer | str], pending: Sequence[Interrupt]) -> dict[str, Any]:
    """Return LangGraph's resume map for a complete set of answers."""
    if not pending:
        raise ResumeRefused(reason="nothing is pending", kind="stale_interrupt")
    ids = {interrupt.id for interrupt in pending}
    if ids != set(answers):
        missing, extra = sorted(ids - set(answers)), sorted(set(answers) - ids)
        told = [f"not answered: {', '.join(missing)}"] * bool(missing) + [f"not pending: {', '.join(extra)}"] * bool(extra)
        raise ResumeRefused(reason="; ".join(told), kind="interrupt_set_mismatch")
    return {interrupt.resume_key: Answer.of(answers[interrupt.id]).to_resume(interrupt.prompt) for interrupt in pending}


def _config(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}
