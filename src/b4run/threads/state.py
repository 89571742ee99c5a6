"""A thread's conversation as JSON: the newest checkpoint's values, and the prompts that wait in it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple
from pydantic import BaseModel

_INTERRUPT = "__interrupt__"
_HIDDEN = ("__", "branch:")
_NOT_TOLD = frozenset({"artifact", "response_metadata", "additional_kwargs", "example"})
"""Of a message: what stays in the process, and what is empty or the model provider's own."""


@dataclass(frozen=True, slots=True)
class PendingPrompt:
    """A prompt that waits for a person. `value` is what they see."""

    interrupt_id: str
    resume_key: str | None
    value: Mapping[str, Any]

    def as_dict(self) -> dict[str, Any]:
        return {"interruptId": self.interrupt_id, "resumeKey": self.resume_key, "value": dict(self.value)}


@dataclass(frozen=True, slots=True)
class ThreadState:
    """What a thread's newest checkpoint holds. `malformed`: it has a prompt that cannot be answered."""

    checkpoint_id: str
    created_at: str
    values: Mapping[str, Any]
    next: Sequence[str]
    metadata: Mapping[str, Any]
    parent: Mapping[str, Any] | None
    config: Mapping[str, Any]
    prompts: Sequence[PendingPrompt]
    malformed: bool

    def as_dict(self) -> dict[str, Any]:
        return {
            "config": self.config,
            "created_at": self.created_at,
            "metadata": self.metadata,
            "next": list(self.next),
            "parent_config": self.parent,
            "values": self.values,
        }


async def read_state(checkpoints: BaseCheckpointSaver[Any], thread_id: str) -> ThreadState | None:
    """Return the thread's newest state; None when it never ran."""
    config: RunnableConfig = {"configurable": {"thread_id": thread_id, "checkpoint_ns": ""}}
    found = await checkpoints.aget_tuple(config)
    return None if found is None else _state(found)


def _state(found: CheckpointTuple) -> ThreadState:
    writes = [(channel, value) for _, channel, value in found.pending_writes or ()]
    pending = [item for channel, value in writes if channel == _INTERRUPT for item in (value if isinstance(value, Sequence) else [value])]
    prompts, malformed = [], False
    for item in pending:
        value = getattr(item, "value", None)
        if isinstance(value, Mapping) and isinstance(value.get("interruptId"), str) and isinstance(value.get("kind"), str):
            prompts.append(PendingPrompt(value["interruptId"], getattr(item, "id", None), jsonable(value)))
        else:
            malformed = True
    values = found.checkpoint["channel_values"]
    return ThreadState(
        checkpoint_id=found.checkpoint["id"],
        created_at=found.checkpoint["ts"],
        values={name: jsonable(value) for name, value in values.items() if not name.startswith(_HIDDEN)},
        next=list(dict.fromkeys(channel for channel, _ in writes)),
        metadata=jsonable(found.metadata),
        parent=None if found.parent_config is None else {"configurable": jsonable(found.parent_config.get("configurable", {}))},
        config={"configurable": jsonable(found.config.get("configurable", {}))},
        prompts=prompts,
        malformed=malformed,
    )


def jsonable(value: Any) -> Any:
    """Return `value` as JSON can say it: messages and models as objects, bytes as base64, anything else by the name of its type."""
    match value:
        case None | bool() | int() | str():
            return value.value if isinstance(value, Enum) else value
        case float():
            return value if value == value and abs(value) != float("inf") else None
        case bytes() | bytearray():
            return base64.b64encode(value).decode()
        case Enum():
            return jsonable(value.value)
        case BaseMessage():
            told = {key: item for key, item in value.model_dump().items() if key not in _NOT_TOLD}
            return jsonable(told)
        case BaseModel():
            return jsonable(value.model_dump())
        case Mapping():
            return {str(key): jsonable(item) for key, item in value.items()}
        case list() | tuple() | set() | frozenset():
            return [jsonable(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: jsonable(getattr(value, field.name)) for field in fields(value)}
    return f"<{type(value).__name__}>"
