"""Where conversations are kept: LangGraph checkpoints in the app's SQLite file."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiosqlite
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from b4run.sandbox.contract import Cause, FileKind

_BUSY_TIMEOUT_S = 30.0

_KEPT_TYPES = tuple((kind.__module__, kind.__name__) for kind in (Cause, FileKind))
"""What the artifacts of tool messages hold beside plain values; nothing else of ours is read back."""


def _serializer() -> JsonPlusSerializer:
    return JsonPlusSerializer(allowed_msgpack_modules=_KEPT_TYPES)


def memory_checkpoints() -> BaseCheckpointSaver[Any]:
    """Return a checkpointer that forgets everything with the process."""
    return InMemorySaver(serde=_serializer())


@asynccontextmanager
async def open_checkpoints(path: Path) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open the file of an app's conversations, such as `.b4/checkpoints.sqlite`; it and its folder are made when missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    async with aiosqlite.connect(path, timeout=_BUSY_TIMEOUT_S) as connection:
        saver = AsyncSqliteSaver(connection, serde=_serializer())
        await saver.setup()
        yield saver
