"""Builds the agent loop of a route on LangChain's `create_agent`."""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.tools import BaseTool
from langgraph.checkpoint.base import BaseCheckpointSaver

from b4run.agents.calls import RunContext
from b4run.agents.definition import Agent, Route
from b4run.agents.following import Graph
from b4run.agents.models import ModelCalls, resolve_model
from b4run.agents.scope import check_route, selected_tools
from b4run.agents.subagents import dispatch_tool, prompt_section
from b4run.agents.tool_calls import ToolCalls
from b4run.agents.toolkit import bind_function, bind_workspace_tool
from b4run.agents.workspace_tools import workspace_tools


class Loops:
    """The compiled graphs of an app's routes and their subagents, each made on first use and kept."""

    def __init__(self, *, model: Any, command_timeout_ms: int | None, checkpointer: BaseCheckpointSaver[Any]) -> None:
        self._model = model
        self._workspace_tools = workspace_tools(command_timeout_ms)
        self._checkpointer = checkpointer
        self._roots: dict[str, Graph] = {}
        self._children: dict[str, Graph] = {}

    def root(self, route: Route) -> Graph:
        """Return a route's graph.

        Raises:
            ToolScopeInvalid, DelegationInvalid: the route contradicts itself.
            ModelProviderMissing, ModelUnknown: there is no such model here.
        """
        if route.id not in self._roots:
            for defect in check_route(route):
                raise defect
            self._roots[route.id] = self._build(route, self._checkpointer) if route.kind == "agent" else self._adopt(route.entry)
        return self._roots[route.id]

    def child(self, route: Route) -> Graph:
        """Return a subagent's graph; it keeps its checkpoints with those of the run that it is part of."""
        if route.id not in self._children:
            self._children[route.id] = self._build(route, None)
        return self._children[route.id]

    def _build(self, route: Route, checkpointer: BaseCheckpointSaver[Any] | None) -> Graph:
        agent: Agent = route.entry
        return create_agent(
            resolve_model(self._model if self._model is not None else agent.model),
            self._tools(route, is_child=checkpointer is None),
            system_prompt=agent.prompt + prompt_section(route),
            middleware=[ModelCalls(agent.retry), ToolCalls(route)],
            context_schema=RunContext,
            checkpointer=checkpointer,
        )

    def _tools(self, route: Route, *, is_child: bool) -> list[BaseTool]:
        names = selected_tools(route, is_child=is_child)
        tools = [
            bind_function(route.tools[name]) if name in route.tools else bind_workspace_tool(self._workspace_tools[name]) for name in names
        ]
        dispatch = dispatch_tool(route, self.child)
        return [*tools, dispatch] if dispatch is not None else tools

    def _adopt(self, graph: Graph) -> Graph:
        """Let an app's own graph keep its state with everybody's, unless it brings its own store."""
        return graph if graph.checkpointer is not None else graph.copy({"checkpointer": self._checkpointer})
