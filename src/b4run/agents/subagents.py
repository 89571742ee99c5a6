"""The dispatch tool: hands work to a subagent, which runs on its parent's thread, in its sandbox, under its permissions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal

from langchain_core.tools import BaseTool, StructuredTool
from langgraph.errors import GraphBubbleUp
from pydantic import ConfigDict, Field, create_model

from b4run.agents.calls import Call, current_call
from b4run.agents.definition import DISPATCH_TOOL, CallInfo, Route
from b4run.agents.events import Chunk, SubagentEnd, SubagentEvent, SubagentStart, ToolCall, ToolResult
from b4run.agents.explain import explain, without_host_paths
from b4run.agents.following import Graph, Said, follow
from b4run.agents.scope import dispatchable, rule_for
from b4run.agents.verdicts import judge
from b4run.errors import ArgumentsRefused, B4Error, DispatchRefused, SubagentFailed
from b4run.permissions import SubagentRequest

DEPTH_LIMIT = 3
"""How deep below the root a subagent may be."""

_NO_DESCRIPTION = "no description"


def prompt_section(route: Route) -> str:
    """Return what the model is told of the subagents; empty without any."""
    names = dispatchable(route)
    if not names:
        return ""
    lines = [f"- {name}: {child.entry.description or _NO_DESCRIPTION}" for name, child in names.items()]
    return f"\n\n## Subagents\nHand work to them with `{DISPATCH_TOOL}`. They see the same workspace, not this conversation.\n" + "\n".join(
        lines
    )


def dispatch_tool(route: Route, graph_of: Callable[[Route], Graph]) -> BaseTool | None:
    """Return the tool, or None when there is nobody to hand work to."""
    names = dispatchable(route)
    if not names:
        return None
    fields: dict[str, Any] = {
        "subagent": (Literal[tuple(names)], Field(description="Who does it.")),
        "input": (str, Field(min_length=1, description="The whole task: the subagent knows nothing else.")),
    }
    arguments = create_model(DISPATCH_TOOL, __config__=ConfigDict(extra="forbid"), **fields)

    async def task(subagent: str, input: str) -> tuple[str, Any]:
        call = current_call.get()
        await _permit(call, route, names[subagent], subagent, input)
        if call.run.depth >= DEPTH_LIMIT:
            raise SubagentFailed(subagent=subagent, reason=f"would be deeper than {DEPTH_LIMIT} levels below the first agent")
        return await _run(call, graph_of(names[subagent]), names[subagent], subagent, input), None

    def refused(error: Any) -> str:
        return explain(
            ArgumentsRefused(tool=DISPATCH_TOOL, reason=f"`subagent` is one of {', '.join(names)}, `input` a text"), DISPATCH_TOOL
        )

    return StructuredTool(
        name=DISPATCH_TOOL,
        description="Hand a task to a subagent and wait for its answer. It works in the same workspace.",
        args_schema=arguments,
        coroutine=task,
        response_format="content_and_artifact",
        handle_validation_error=refused,
    )


async def _permit(call: Call, route: Route, child: Route, name: str, input: str) -> None:
    rule = rule_for(route.entry, name)
    request = SubagentRequest(route.id, name, child.id, input, rule.reason)
    action: str = rule.action
    if rule.predicate is not None:
        action = await judge(rule.predicate, {"input": input}, CallInfo(route.id, call.run.thread_id, name), DISPATCH_TOOL)
    if action == "deny":
        raise DispatchRefused(reason=rule.reason or f"Subagent {name!r} may not be used", remedy="Do the work yourself.")
    await (call.gate.require(request) if action == "approve" else call.gate.refuse_denied(request))


async def _run(call: Call, graph: Graph, child: Route, name: str, input: str) -> str:
    run = replace(call.run, route=child.id, name=name, depth=call.run.depth + 1, call_id=call.id, parent_call_id=call.run.call_id)
    about: Mapping[str, Any] = {
        "call_id": call.id,
        "parent_call_id": run.parent_call_id,
        "name": name,
        "route": child.id,
        "depth": run.depth,
    }
    call.emit(SubagentStart(**about, description=child.entry.description, input=input))
    last = ""
    try:
        async for event in follow(graph, {"messages": [("user", input)]}, {"recursion_limit": child.entry.recursion_limit}, run):
            if isinstance(event, Said):
                last = event.text
            elif isinstance(event, Chunk | ToolCall | ToolResult):
                call.emit(SubagentEvent(**about, event=event))
            else:
                call.emit(event)
    except GraphBubbleUp:
        raise
    except Exception as error:
        reason = error.message if isinstance(error, B4Error) else without_host_paths(f"{type(error).__name__}: {error}")
        call.emit(SubagentEnd(**about, error=reason))
        raise SubagentFailed(subagent=name, reason=f"failed: {reason}") from error
    call.emit(SubagentEnd(**about, final_message=last))
    return last or f"Subagent {name!r} has ended without a text."
