"""Makes a conversation fit for a model again after a run that ended between a tool call and its answer."""

from __future__ import annotations

from collections.abc import Sequence

from langchain_core.messages import AIMessage, AnyMessage, ToolMessage

_UNKNOWN = (
    "This call was cut off before its result was recorded: whether it ran, wholly, in part or not at all, is unknown. "
    "Look at the workspace before you repeat it."
)


def repaired(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages with an error result for each tool call that has none; the stored conversation is not touched."""
    whole: list[AnyMessage] = []
    open_calls: dict[str, str] = {}
    for message in messages:
        if isinstance(message, ToolMessage):
            open_calls.pop(message.tool_call_id, None)
        else:
            whole += _cut_off(open_calls)
            open_calls = {call["id"] or "": call["name"] for call in message.tool_calls} if isinstance(message, AIMessage) else {}
        whole.append(message)
    return whole + _cut_off(open_calls)


def _cut_off(calls: dict[str, str]) -> list[ToolMessage]:
    return [ToolMessage(_UNKNOWN, tool_call_id=call_id, name=name, status="error") for call_id, name in calls.items()]
