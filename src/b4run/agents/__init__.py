"""Agents: their definition, the five workspace tools, the loop, and scripted models.

    from b4run.agents import Agent, AgentRuntime, Route, ScriptedChatModel, script

Definitions load at once; the loop (LangChain, LangGraph) is imported when a name that needs it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from b4run.agents.definition import (
    DISPATCH_TOOL,
    WORKSPACE_TOOLS,
    Agent,
    CallInfo,
    Delegation,
    DelegationRule,
    Retry,
    Route,
    Tool,
    ToolContext,
    ToolScope,
)

if TYPE_CHECKING:
    from b4run.agents.checkpoints import open_checkpoints
    from b4run.agents.events import (
        Chunk,
        Done,
        Event,
        Interrupt,
        SubagentEnd,
        SubagentEvent,
        SubagentStart,
        ToolCall,
        ToolResult,
    )
    from b4run.agents.local_workspace import local_workspace
    from b4run.agents.runtime import AgentRuntime, Answer, RunResult
    from b4run.agents.scope import check_route
    from b4run.agents.scripted import ScriptedChatModel
    from b4run.agents.scripts import Script, script

__all__ = [
    "DISPATCH_TOOL",
    "WORKSPACE_TOOLS",
    "Agent",
    "AgentRuntime",
    "Answer",
    "CallInfo",
    "Chunk",
    "Delegation",
    "DelegationRule",
    "Done",
    "Event",
    "Interrupt",
    "Retry",
    "Route",
    "RunResult",
    "Script",
    "ScriptedChatModel",
    "SubagentEnd",
    "SubagentEvent",
    "SubagentStart",
    "Tool",
    "ToolCall",
    "ToolContext",
    "ToolResult",
    "ToolScope",
    "check_route",
    "local_workspace",
    "open_checkpoints",
    "script",
]

_ELSEWHERE = {
    "checkpoints": ("open_checkpoints",),
    "local_workspace": ("local_workspace",),
    "runtime": ("AgentRuntime", "Answer", "RunResult"),
    "scope": ("check_route",),
    "scripts": ("Script", "script"),
    "scripted": ("ScriptedChatModel",),
}
_MODULES = {name: module for module, names in _ELSEWHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'events')}"), name)
    globals()[name] = value
    return value
