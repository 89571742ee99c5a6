"""Rows of threads. The client owns `metadata`, the access policy `access`, the server everything else."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, and_, delete, insert, or_, select, update
from sqlalchemy.exc import IntegrityError

from b4run.storage.statements import Engines, now_ms, storage_failure, thread_key
from b4run.storage.tables import threads


class ThreadStatus(StrEnum):
    IDLE = "idle"
    BUSY = "busy"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class ThreadRow:
    """One thread. `nonce` is drawn at its creation, so that a row made by somebody else under the same id is told apart."""

    thread_id: str
    nonce: str
    created_ms: int
    updated_ms: int
    metadata: Mapping[str, Any]
    access: Mapping[str, Any] | None
    status: ThreadStatus
    reason: str | None
    """Why it is `interrupted` when nobody asked for that."""
    route: str | None
    """The route of its last run."""
    parked_route: str | None
    """The route whose prompts wait for a person."""
    deleting: bool


Cursor = tuple[int, str]
"""Where a page of threads ended: the last one's time of change, and its key."""


class SqlThreadStore:
    """The threads of one database. Every call raises `StorageUnusable` when the database fails."""

    def __init__(self, engines: Engines) -> None:
        self._engine = engines.quick
        self._reader = engines.reader

    async def create(self, thread_id: str, *, metadata: Mapping[str, Any], access: Mapping[str, Any] | None) -> ThreadRow | None:
        """Insert a thread; None when there is one of that id."""
        now = now_ms()
        row = ThreadRow(thread_id, secrets.token_hex(16), now, now, dict(metadata), access, ThreadStatus.IDLE, None, None, None, False)
        values = {
            "key": thread_key(thread_id),
            "thread_id": thread_id,
            "nonce": row.nonce,
            "created_ms": now,
            "updated_ms": now,
            "metadata": json.dumps(row.metadata),
            "access": None if access is None else json.dumps(access),
            "status": row.status.value,
            "deleting": False,
        }
        try:
            with storage_failure("the thread cannot be recorded"):
                async with self._engine.begin() as connection:
                    await connection.execute(insert(threads).values(values))
        except Exception as error:
            if isinstance(error.__cause__, IntegrityError):
                return None
            raise
        return row

    async def find(self, thread_id: str) -> ThreadRow | None:
        """Return the thread, or None."""
        with storage_failure("the thread cannot be read"):
            async with self._reader.connect() as connection:
                row = (await connection.execute(select(threads).where(threads.c.key == thread_key(thread_id)))).first()
        return None if row is None else _thread(row)

    async def list(
        self, *, limit: int, after: Cursor | None = None, status: ThreadStatus | None = None
    ) -> Sequence[tuple[ThreadRow, Cursor]]:
        """Return a page of threads, the one that changed last first, each with where a next page would begin."""
        query = select(threads).order_by(threads.c.updated_ms.desc(), threads.c.key.desc()).limit(limit)
        if after is not None:
            at, key = after
            query = query.where(or_(threads.c.updated_ms < at, and_(threads.c.updated_ms == at, threads.c.key < key)))
        if status is not None:
            query = query.where(threads.c.status == status.value)
        with storage_failure("the threads cannot be read"):
            async with self._reader.connect() as connection:
                rows = (await connection.execute(query)).all()
        return [(_thread(row), (row.updated_ms, row.key)) for row in rows]

    async def merge_metadata(self, thread_id: str, patch: Mapping[str, Any]) -> ThreadRow | None:
        """Set keys of the client's metadata; a value of None removes its key. Returns the row, or None when there is none."""
        key = thread_key(thread_id)
        with storage_failure("the thread's metadata cannot be changed"):
            async with self._engine.begin() as connection:
                found = await connection.scalar(select(threads.c.metadata).where(threads.c.key == key).with_for_update())
                if found is None:
                    return None
                merged = {name: value for name, value in {**json.loads(found), **patch}.items() if value is not None}
                changed = update(threads).where(threads.c.key == key).values(metadata=json.dumps(merged), updated_ms=now_ms())
                await connection.execute(changed)
        return await self.find(thread_id)

    async def set(
        self, thread_id: str, *, status: ThreadStatus, reason: str | None = None, parked_route: str | None = None, touch: bool = True
    ) -> None:
        """Record where the thread stands; of a thread that is not there, nothing."""
        values: dict[str, Any] = {"status": status.value, "reason": reason, "parked_route": parked_route}
        if touch:
            values["updated_ms"] = now_ms()
        await self._update(thread_id, values)

    async def mark_deleting(self, thread_id: str) -> None:
        """Record that the thread goes, whatever happens to this process."""
        await self._update(thread_id, {"deleting": True, "updated_ms": now_ms()})

    async def deleting(self) -> Sequence[str]:
        """Return the ids of threads whose removal began and did not end."""
        with storage_failure("the threads cannot be read"):
            async with self._reader.connect() as connection:
                return list((await connection.scalars(select(threads.c.thread_id).where(threads.c.deleting))).all())

    async def untouched_since(self, before_ms: int, *, limit: int) -> Sequence[str]:
        """Return ids of threads that did not change since that time and are not in the middle of a run or a removal, the oldest first."""
        query = select(threads.c.thread_id).where(threads.c.updated_ms < before_ms, ~threads.c.deleting)
        query = query.where(threads.c.status != ThreadStatus.BUSY.value).order_by(threads.c.updated_ms).limit(limit)
        with storage_failure("the threads cannot be read"):
            async with self._reader.connect() as connection:
                return list((await connection.scalars(query)).all())

    async def delete(self, thread_id: str, *, nonce: str | None = None) -> bool:
        """Remove the row with its runs; with `nonce` only if it is that very one. Returns whether it was there."""
        condition = [threads.c.key == thread_key(thread_id)]
        if nonce is not None:
            condition.append(threads.c.nonce == nonce)
        with storage_failure("the thread cannot be removed"):
            async with self._engine.begin() as connection:
                return (await connection.execute(delete(threads).where(*condition))).rowcount > 0

    async def _update(self, thread_id: str, values: dict[str, Any]) -> None:
        with storage_failure("the thread cannot be changed"):
            async with self._engine.begin() as connection:
                await connection.execute(update(threads).where(threads.c.key == thread_key(thread_id)).values(values))


def _thread(row: Row[Any]) -> ThreadRow:
    return ThreadRow(
        row.thread_id,
        row.nonce,
        row.created_ms,
        row.updated_ms,
        json.loads(row.metadata),
        None if row.access is None else json.loads(row.access),
        ThreadStatus(row.status),
        row.reason,
        row.route,
        row.parked_route,
        bool(row.deleting),
    )
