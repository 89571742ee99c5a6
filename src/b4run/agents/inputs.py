"""What a run may be given, as messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from langchain_core.messages import AnyMessage, convert_to_messages

from b4run.errors import InputInvalid


def messages_of(value: Any) -> list[AnyMessage]:
    """Return a text, a list of messages or `{"messages": [...]}` as messages; another JSON value becomes one message that holds its JSON.

    Raises:
        InputInvalid: something in the list is no message.
    """
    if isinstance(value, Mapping) and isinstance(value.get("messages"), list):
        value = value["messages"]
    if not isinstance(value, list) or not value:
        value = [("user", value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))]
    found: list[AnyMessage] = []
    for index, message in enumerate(value):
        try:
            found += convert_to_messages([message])  # type: ignore[arg-type]
        except (ValueError, NotImplementedError, TypeError, KeyError) as error:
            # The library adds a web address on a line of its own.
            reason = str(error).partition("\n")[0]
            raise InputInvalid(reason=f"message {index} is none: {reason[:300]}") from None
    return found
