"""Where conversations are kept: LangGraph checkpoints, in a SQLite file of the app's or in PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import aiosqlite
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer
from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

from b4run.errors import StorageUnusable
from b4run.sandbox.contract import Cause, FileKind

_BUSY_TIMEOUT_S = 30.0
_CONNECTIONS = 4

_KEPT_TYPES = tuple((kind.__module__, kind.__name__) for kind in (Cause, FileKind))
"""What the artifacts of tool messages hold beside plain values; nothing else of ours is read back."""

Fence = Callable[[], None]
"""Raises when the run that it belongs to may not write any more."""

_fence: ContextVar[Fence | None] = ContextVar("b4run_fence", default=None)


@contextmanager
def fenced(fence: Fence) -> Iterator[None]:
    """Ask `fence` before every write to the conversation that is made inside, so that a run which lost its thread leaves no trace."""
    token = _fence.set(fence)
    try:
        yield
    finally:
        _fence.reset(token)


class _Fenced:
    """Mixed into a saver: writes pass the fence of the run that makes them."""

    async def aput(self, *args: Any, **kwargs: Any) -> Any:
        _check_fence()
        return await super().aput(*args, **kwargs)  # type: ignore[misc]

    async def aput_writes(self, *args: Any, **kwargs: Any) -> None:
        _check_fence()
        await super().aput_writes(*args, **kwargs)  # type: ignore[misc]


def _check_fence() -> None:
    fence = _fence.get()
    if fence is not None:
        fence()


class _SqliteSaver(_Fenced, AsyncSqliteSaver):
    pass


def _serializer() -> JsonPlusSerializer:
    return JsonPlusSerializer(allowed_msgpack_modules=_KEPT_TYPES)


def memory_checkpoints() -> BaseCheckpointSaver[Any]:
    """Return a checkpointer that forgets everything with the process."""
    return InMemorySaver(serde=_serializer())


@asynccontextmanager
async def open_checkpoints(where: Path | str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    """Open an app's conversations: a file such as `.b4/checkpoints.sqlite`, made when missing with its folder, or a PostgreSQL URL.

    Raises:
        StorageUnusable: the database cannot be reached, or its driver is not installed.
    """
    if isinstance(where, str):
        async with _postgres(where) as saver:
            yield saver
        return
    where.parent.mkdir(parents=True, exist_ok=True)
    async with aiosqlite.connect(where, timeout=_BUSY_TIMEOUT_S) as connection:
        sqlite = _SqliteSaver(connection, serde=_serializer())
        await sqlite.setup()
        # With its write-ahead log, what was answered outlives the process without waiting for the disk.
        await connection.execute("PRAGMA synchronous=NORMAL")
        yield sqlite


@asynccontextmanager
async def _postgres(url: str) -> AsyncIterator[BaseCheckpointSaver[Any]]:
    try:
        from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
        from psycopg import Error
        from psycopg.rows import dict_row
        from psycopg_pool import AsyncConnectionPool
    except ImportError as error:
        raise StorageUnusable(reason=f"the package {error.name!r} is not installed: pip install 'b4run[postgres]'") from error

    class PostgresSaver(_Fenced, AsyncPostgresSaver):
        pass

    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    pool: Any = AsyncConnectionPool(url, min_size=1, max_size=_CONNECTIONS, open=False, kwargs=settings)
    try:
        try:
            await pool.open(wait=True, timeout=_BUSY_TIMEOUT_S)
            saver = PostgresSaver(pool, serde=_serializer())
            await saver.setup()
        except (Error, OSError) as error:
            raise StorageUnusable(reason=f"the conversations' database cannot be opened ({type(error).__name__})") from error
        yield saver
    finally:
        await pool.close()
