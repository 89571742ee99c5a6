"""What surrounds every tool call: its rules, its measure of time, and a text for whatever goes wrong."""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable
from typing import Any

from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import ToolMessage
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt.tool_node import ToolCallRequest

from b4run.agents.calls import Call, RunContext, current_call
from b4run.agents.definition import DISPATCH_TOOL, WORKSPACE_TOOLS, CallInfo, Route
from b4run.agents.events import ToolResult
from b4run.agents.explain import explain
from b4run.agents.offload import shortened
from b4run.agents.verdicts import judge
from b4run.errors import ArgumentsRefused
from b4run.permissions import ToolRequest

_KEPT_WHOLE = frozenset({"readFile", "listDir", "runBash"})
"""runBash bounds its own answer."""

Handler = Callable[[ToolCallRequest], Awaitable[Any]]


class ToolCalls(AgentMiddleware[Any, RunContext, Any]):
    """Wraps the tools of one route."""

    def __init__(self, route: Route) -> None:
        super().__init__()
        self._route = route
        self._scope = route.entry.tools

    async def awrap_tool_call(self, request: ToolCallRequest, handler: Handler) -> Any:
        run: RunContext = request.runtime.context  # type: ignore[assignment]
        tool, call_id = request.tool_call["name"], request.tool_call["id"] or ""
        call = Call.begin(run, call_id, tool, request.runtime.stream_writer)
        started = time.perf_counter()
        token = current_call.set(call)
        try:
            message = await self._answer(call, request, handler)
        finally:
            current_call.reset(token)
        if call.gate.pause is not None:
            raise call.gate.pause
        call.emit(
            ToolResult(
                id=call_id,
                name=tool,
                output=message.text,
                is_error=message.status == "error",
                duration_ms=(time.perf_counter() - started) * 1_000,
                artifact=message.artifact,
            )
        )
        return message

    async def _answer(self, call: Call, request: ToolCallRequest, handler: Handler) -> ToolMessage:
        try:
            if request.tool is None:
                raise ArgumentsRefused(tool=call.tool, reason=f"there is no such tool, only {', '.join(self._names(request))}")
            await self._rule(call, request)
            message: ToolMessage = await handler(request)
            if call.tool not in _KEPT_WHOLE or call.tool in self._route.tools:
                text = await shortened(call.run.sandbox.files, call.tool, call.id, message.text)
                if text != message.text:
                    message = message.model_copy(update={"content": text})
            return message
        except GraphBubbleUp:
            raise
        except Exception as error:  # noqa: BLE001  whatever a tool raises is an answer to the model
            return ToolMessage(explain(error, call.tool), tool_call_id=call.id, name=call.tool, status="error")

    async def _rule(self, call: Call, request: ToolCallRequest) -> None:
        """Apply the agent's own rules to a call; the workspace tools ask the permissions themselves, the dispatch tool its delegation."""
        if call.tool == DISPATCH_TOOL:
            return
        arguments = request.tool_call["args"]
        own_gate = call.tool in WORKSPACE_TOOLS and call.tool not in self._route.tools
        asks = call.tool in self._scope.approve and not own_gate
        predicate = self._scope.constrain.get(call.tool)
        if predicate is not None:
            asks = await judge(predicate, arguments, CallInfo(call.run.route, call.run.thread_id), call.tool) == "approve"
        tool_request = ToolRequest(call.tool, json.dumps(arguments, ensure_ascii=False, default=str))
        await (call.gate.require(tool_request) if asks else call.gate.refuse_denied(tool_request))

    def _names(self, request: ToolCallRequest) -> list[str]:
        return sorted(tool.name for tool in request.runtime.tools)
