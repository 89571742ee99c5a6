"""What a run tells while it goes on. Each event's `type` and `data()` are what crosses the wire."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of the root agent's text."""

    type: ClassVar[str] = "chunk"
    text: str

    def data(self) -> Any:
        return self.text


@dataclass(frozen=True, slots=True)
class ToolCall:
    """The model asked for a tool; it has not run yet."""

    type: ClassVar[str] = "tool_call"
    id: str
    name: str
    input: Mapping[str, Any]

    def data(self) -> Any:
        return {"id": self.id, "name": self.name, "input": dict(self.input)}


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool answered, as the model sees it. `artifact` is the whole result object, where there is one; it stays in the process."""

    type: ClassVar[str] = "tool_result"
    id: str
    name: str
    output: str
    is_error: bool = False
    duration_ms: float = 0.0
    artifact: Any = None

    def data(self) -> Any:
        answer = {"id": self.id, "name": self.name, "output": self.output, "durationMs": round(self.duration_ms, 3)}
        return answer | ({"isError": True} if self.is_error else {})


@dataclass(frozen=True, slots=True)
class Interrupt:
    """The run waits for a person. `prompt` is what they see; `resume_key` is stable for as long as the prompt is pending."""

    type: ClassVar[str] = "interrupt"
    id: str
    kind: str
    """`command`, `path`, `tool` or `subagent`."""
    detail: Mapping[str, Any]
    prompt: Mapping[str, Any]
    resume_key: str

    def data(self) -> Any:
        return dict(self.prompt)


@dataclass(frozen=True, slots=True)
class SubagentStart:
    """A subagent was handed work by the tool call `call_id` of its parent."""

    type: ClassVar[str] = "subagent.start"
    call_id: str
    parent_call_id: str | None
    name: str
    route: str
    depth: int
    description: str
    input: str

    def data(self) -> Any:
        return _child(self) | {"description": self.description, "input": self.input}


@dataclass(frozen=True, slots=True)
class SubagentEvent:
    """Something that a subagent did: its `Chunk`, `ToolCall` or `ToolResult`."""

    call_id: str
    parent_call_id: str | None
    name: str
    route: str
    depth: int
    event: Chunk | ToolCall | ToolResult

    @property
    def type(self) -> str:
        return "subagent.token" if isinstance(self.event, Chunk) else f"subagent.{self.event.type}"

    def data(self) -> Any:
        inner = self.event.data()
        return _child(self) | ({"text": inner} if isinstance(inner, str) else inner)


@dataclass(frozen=True, slots=True)
class SubagentEnd:
    """A subagent has ended, with its last text or with what went wrong."""

    type: ClassVar[str] = "subagent.end"
    call_id: str
    parent_call_id: str | None
    name: str
    route: str
    depth: int
    final_message: str = ""
    error: str | None = None

    def data(self) -> Any:
        end = {"finalMessage": self.final_message} if self.error is None else {"error": self.error}
        return _child(self) | end


@dataclass(frozen=True, slots=True)
class Done:
    """The last event of every stream. `output` is the final text, or None when the run is waiting for a person."""

    type: ClassVar[str] = "done"
    output: Any

    def data(self) -> Any:
        return {"output": self.output}


Event = Chunk | ToolCall | ToolResult | Interrupt | SubagentStart | SubagentEvent | SubagentEnd | Done


def _child(event: SubagentStart | SubagentEvent | SubagentEnd) -> dict[str, Any]:
    return {
        "call_id": event.call_id,
        "parent_call_id": event.parent_call_id,
        "name": event.name,
        "routeId": event.route,
        "depth": event.depth,
    }
