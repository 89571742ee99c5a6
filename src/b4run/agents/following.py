"""Runs a graph and tells what happens in it, as events."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.errors import GraphRecursionError

from b4run.agents.calls import RunContext
from b4run.agents.events import Chunk, Event, SubagentEnd, SubagentEvent, SubagentStart, ToolCall, ToolResult
from b4run.errors import StepLimitReached

Graph = Any
"""A compiled LangGraph graph; its type has parameters that a route's own graph fills as it likes."""

_TOLD_BY_TOOLS = (ToolResult, SubagentStart, SubagentEvent, SubagentEnd)


@dataclass(frozen=True, slots=True)
class Said:
    """The whole text of one model answer that asks for no tool."""

    text: str


async def follow(graph: Graph, input: Any, config: RunnableConfig, context: RunContext | None) -> AsyncGenerator[Event | Said, None]:
    """Run the graph to its end or to its next pause; closing the iterator cancels what runs.

    Raises:
        StepLimitReached: it took more steps than the agent allows.
    """
    parts = graph.astream(input, config, context=context, stream_mode=["messages", "updates", "custom"])
    try:
        async with aclosing(parts):
            async for mode, part in parts:
                for event in _events(mode, part):
                    yield event
    except GraphRecursionError:
        where = context.route if context is not None else "the graph"
        raise StepLimitReached(route=where, steps=config["recursion_limit"]) from None


def _events(mode: str, part: Any) -> Iterable[Event | Said]:
    if mode == "custom":
        if isinstance(part, _TOLD_BY_TOOLS):
            yield part
    elif mode == "messages":
        message = part[0]
        if isinstance(message, AIMessage) and message.text:
            yield Chunk(message.text)
    else:
        for message in _messages(part):
            for call in message.tool_calls:
                yield ToolCall(call["id"] or "", call["name"], call["args"])
            if not message.tool_calls:
                yield Said(message.text)


def _messages(update: Any) -> Iterable[AIMessage]:
    for change in update.values():
        messages = change.get("messages", []) if isinstance(change, dict) else []
        yield from (message for message in messages if isinstance(message, AIMessage))
