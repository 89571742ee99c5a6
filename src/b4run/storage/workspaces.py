"""Records of managed workspaces: which thread has which, what it was made of, and how far its making or removal is.

States are `creating`, `ready` and `deleting`; a deleted thread has no record, so its id is new again. Every change compares state and
revision first, so that of two writers one is refused.
"""

from __future__ import annotations

import json
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection

from b4run.errors import StorageUnusable, WorkspaceInvalid
from b4run.storage.sources import StoredSource, drop_unused, find_source, store_source
from b4run.storage.statements import Engines, now_ms, thread_key
from b4run.storage.tables import installation, thread_sandboxes, workspaces
from b4run.workspace import ReadyWorkspace, SourceBundle, WorkspaceIntent
from b4run.workspace.captured import compact
from b4run.workspace.intent import read_intent, read_ready

logger = logging.getLogger("b4run.storage")

MAX_RECORD_BYTES = 1_048_576
"""Of an intent, and of what answers it."""


class RecordState(StrEnum):
    CREATING = "creating"
    READY = "ready"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class WorkspaceRecord:
    """One thread's workspace. `ready` is what the provider answered; `sandbox` the thread's own settings, in canonical JSON."""

    thread_id: str
    state: RecordState
    revision: int
    intent: WorkspaceIntent
    ready: ReadyWorkspace | None
    sandbox: str | None


class RecordChanged(Exception):
    """Another process changed the record meanwhile; look at it again."""


class SqlWorkspaceStore:
    """The workspaces of one database. Every call raises `StorageUnusable` when the database fails, or holds what it should not."""

    def __init__(self, engines: Engines) -> None:
        self._engine = engines.durable
        self._reader = engines.reader

    async def installation_id(self) -> str:
        """Return who makes workspaces in this database: a UUID, made at the first call ever."""
        try:
            async with self._reader.connect() as connection:
                found = await connection.scalar(select(installation.c.installation_id))
            if found is None:
                try:
                    async with self._engine.begin() as connection:
                        await connection.execute(insert(installation).values(id=1, installation_id=str(uuid.uuid4())))
                except IntegrityError:
                    pass  # Another process was first.
                async with self._reader.connect() as connection:
                    found = await connection.scalar(select(installation.c.installation_id))
        except SQLAlchemyError as error:
            raise StorageUnusable(reason="the installation cannot be read") from error
        return str(found)

    async def find(self, thread_id: str) -> WorkspaceRecord | None:
        """Return the thread's record, or None."""
        found = await self._select(workspaces.c.key == thread_key(thread_id))
        return found[0] if found else None

    async def unfinished(self) -> Sequence[WorkspaceRecord]:
        """Return what is being made or removed, by whatever process, dead ones included; a damaged record is left out."""
        return await self._select(workspaces.c.state != RecordState.READY.value, skip_damaged=True)

    async def admit(self, intent: WorkspaceIntent, source: SourceBundle, sandbox: str | None) -> WorkspaceRecord:
        """Record source, intent and the thread's own settings, together or not at all.

        Raises:
            RecordChanged: the thread has a record already.
        """
        record = WorkspaceRecord(intent.thread_id, RecordState.CREATING, 1, intent, None, sandbox)
        try:
            async with self._engine.begin() as connection:
                await store_source(connection, source)
                await connection.execute(insert(workspaces).values(key=thread_key(intent.thread_id), **_values(record)))
                if sandbox is not None:
                    await connection.execute(insert(thread_sandboxes).values(key=thread_key(intent.thread_id), payload=sandbox))
        except IntegrityError as error:
            raise RecordChanged from error
        except SQLAlchemyError as error:
            raise StorageUnusable(reason="the workspace cannot be recorded") from error
        return record

    async def mark_ready(self, record: WorkspaceRecord, ready: ReadyWorkspace) -> WorkspaceRecord:
        """Record what the provider answered. Raises: RecordChanged: it is not being made any more."""
        return await self._move(record, RecordState.READY, ready)

    async def mark_deleting(self, record: WorkspaceRecord) -> WorkspaceRecord:
        """Record that the workspace goes; from now on nobody may use it. Raises: RecordChanged."""
        return await self._move(record, RecordState.DELETING, record.ready)

    async def forget(self, record: WorkspaceRecord) -> None:
        """Drop a record that is being deleted, and its source if no other workspace has it. Raises: RecordChanged."""
        try:
            async with self._engine.begin() as connection:
                await _changed_one(connection, delete(workspaces).where(*_same(record)))
                await drop_unused(connection, record.intent.source_digest)
        except SQLAlchemyError as error:
            raise StorageUnusable(reason="the workspace's record cannot be removed") from error

    async def source(self, digest: str) -> StoredSource | None:
        """Return a stored source, or None."""
        try:
            return await find_source(self._reader, digest)
        except (SQLAlchemyError, ValueError, TypeError) as error:
            raise StorageUnusable(reason="the workspace's source cannot be read") from error

    async def _move(self, record: WorkspaceRecord, state: RecordState, ready: ReadyWorkspace | None) -> WorkspaceRecord:
        moved = WorkspaceRecord(record.thread_id, state, record.revision + 1, record.intent, ready, record.sandbox)
        try:
            async with self._engine.begin() as connection:
                await _changed_one(connection, update(workspaces).where(*_same(record)).values(**_values(moved)))
        except SQLAlchemyError as error:
            raise StorageUnusable(reason="the workspace's record cannot be changed") from error
        return moved

    async def _select(self, condition: Any, *, skip_damaged: bool = False) -> list[WorkspaceRecord]:
        query = (
            select(workspaces, thread_sandboxes.c.payload)
            .outerjoin(thread_sandboxes, thread_sandboxes.c.key == workspaces.c.key)
            .where(condition)
            .order_by(workspaces.c.changed_ms)
        )
        try:
            async with self._reader.connect() as connection:
                rows = (await connection.execute(query)).all()
        except SQLAlchemyError as error:
            raise StorageUnusable(reason="the workspaces cannot be read") from error
        found = []
        for row in rows:
            try:
                found.append(_record(row))
            except StorageUnusable as error:
                if not skip_damaged:
                    raise
                logger.warning("a damaged record is left alone", extra={"event": "workspace.damaged", "reason": error.message})
        return found


def _same(record: WorkspaceRecord) -> list[Any]:
    wanted = (
        workspaces.c.key == thread_key(record.thread_id),
        workspaces.c.state == record.state.value,
        workspaces.c.revision == record.revision,
    )
    return list(wanted)


async def _changed_one(connection: AsyncConnection, statement: Any) -> None:
    if (await connection.execute(statement)).rowcount != 1:
        raise RecordChanged


def _values(record: WorkspaceRecord) -> dict[str, Any]:
    intent = compact(record.intent.as_dict())
    ready = None if record.ready is None else compact(record.ready.as_dict())
    if max(len(intent.encode()), len((ready or "").encode())) > MAX_RECORD_BYTES:
        raise StorageUnusable(reason=f"a workspace's record has more than {MAX_RECORD_BYTES:,} bytes")
    return {
        "thread_id": record.thread_id,
        "state": record.state.value,
        "revision": record.revision,
        "source_digest": record.intent.source_digest,
        "intent": intent,
        "ready": ready,
        "changed_ms": now_ms(),
    }


def _record(row: Row[Any]) -> WorkspaceRecord:
    """Read a row strictly: one that is not byte for byte as it was written is refused."""
    try:
        intent = read_intent(json.loads(row.intent))
        ready = None if row.ready is None else read_ready(json.loads(row.ready)).check(intent)
        record = WorkspaceRecord(row.thread_id, RecordState(row.state), row.revision, intent, ready, row.payload)
        same = compact(intent.as_dict()) == row.intent and (ready is None or compact(ready.as_dict()) == row.ready)
        if not same or intent.thread_id != row.thread_id or intent.source_digest != row.source_digest:
            raise ValueError("not canonical")
    except (WorkspaceInvalid, ValueError, TypeError, KeyError) as error:
        raise StorageUnusable(reason=f"the record of thread {row.thread_id!r}'s workspace is damaged") from error
    return record
