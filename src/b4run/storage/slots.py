"""Slots: who has a thread to itself. A lease in the database, kept alive by its owner, free again soon after the owner died.

Times are the database's. An owner is one process; it holds a slot under its own name for as long as it lives, so that what it left
undone can be told from what it is still doing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, delete, exists, func, or_, select, update
from sqlalchemy.dialects import postgresql, sqlite

from b4run.storage.runs import LOST, RunStatus
from b4run.storage.statements import Engines, database_ms, storage_failure, thread_key
from b4run.storage.tables import handoffs, runs, slots, threads
from b4run.storage.threads import ThreadStatus

LEASE_MS = 4_000
"""How long a slot stays taken after its owner was last heard of."""

HANDOFF_MS = 30_000
"""How long a request for another process's idle sandbox stands."""


class SlotKind(StrEnum):
    RUN = "run"
    RESUME = "resume"
    READ = "read"
    DELETE = "delete"
    PROCESS = "process"


@dataclass(frozen=True, slots=True)
class SlotRow:
    """A slot that is taken."""

    thread_id: str
    token: str
    owner: str
    kind: SlotKind
    run_id: str | None
    cancelled: bool


class SqlSlotStore:
    """The slots of one database. Every call raises `StorageUnusable` when the database fails."""

    def __init__(self, engines: Engines) -> None:
        self._engine = engines.quick
        self._reader = engines.reader
        self._urgent = engines.urgent
        self._insert = postgresql.insert if engines.quick.dialect.name == "postgresql" else sqlite.insert

    async def claim(self, thread_id: str, *, owner: str, kind: SlotKind, run_id: str | None = None) -> tuple[float, SlotRow] | None:
        """Take the thread's slot if nobody has it, for `LEASE_MS` from the monotonic time that is returned; None when somebody has it."""
        token = secrets.token_hex(16)
        values = {
            "token": token,
            "owner": owner,
            "kind": kind.value,
            "run_id": run_id,
            "expires_ms": database_ms() + LEASE_MS,
            "cancelled": False,
        }
        statement = self._insert(slots).values(key=thread_key(thread_id), thread_id=thread_id, **values)
        statement = statement.on_conflict_do_update(index_elements=[slots.c.key], set_=values, where=slots.c.expires_ms <= database_ms())
        with storage_failure("the thread's slot cannot be taken"):
            async with self._engine.begin() as connection:
                at = time.monotonic()
                taken = await connection.scalar(statement.returning(slots.c.token)) == token
        return (at, SlotRow(thread_id, token, owner, kind, run_id, False)) if taken else None

    async def holder(self, thread_id: str) -> SlotRow | None:
        """Return who has the thread's slot now, or None."""
        query = select(slots).where(slots.c.key == thread_key(thread_id), slots.c.expires_ms > database_ms())
        with storage_failure("the thread's slot cannot be read"):
            async with self._reader.connect() as connection:
                row = (await connection.execute(query)).first()
        return None if row is None else _slot(row)

    async def release(self, slot: SlotRow) -> None:
        """Give a slot up; one that somebody else has by now stays theirs."""
        with storage_failure("the thread's slot cannot be given up"):
            async with self._engine.begin() as connection:
                await connection.execute(delete(slots).where(slots.c.key == thread_key(slot.thread_id), slots.c.token == slot.token))

    async def cancel(self, slot: SlotRow) -> bool:
        """Ask the owner of exactly this slot to end its work; False when it is over already."""
        statement = (
            update(slots)
            .where(slots.c.key == thread_key(slot.thread_id), slots.c.token == slot.token, slots.c.expires_ms > database_ms())
            .values(cancelled=True)
        )
        with storage_failure("the run cannot be cancelled"):
            async with self._engine.begin() as connection:
                return (await connection.execute(statement)).rowcount > 0

    async def renew(self, owner: str) -> tuple[float, Sequence[SlotRow]]:
        """Keep all slots of an owner for `LEASE_MS` from the monotonic time that is returned, with them; one that is missing was lost."""
        with storage_failure("the slots cannot be renewed"):
            async with self._urgent.begin() as connection:
                at = time.monotonic()
                await connection.execute(update(slots).where(slots.c.owner == owner).values(expires_ms=database_ms() + LEASE_MS))
                rows = (await connection.execute(select(slots).where(slots.c.owner == owner))).all()
        return at, [_slot(row) for row in rows]

    async def settle_lost(self) -> int:
        """Record as over what owners left undone that are not heard of any more; return how many runs that were."""
        living = exists().where(slots.c.owner == runs.c.owner, slots.c.expires_ms > database_ms())
        undone = runs.c.status.in_([status.value for status in RunStatus if not status.over])
        lost = (
            update(runs)
            .where(undone, ~living)
            .values(status=RunStatus.LOST.value, ended_ms=database_ms(), outcome=json.dumps({"error": LOST}))
        )
        running = exists().where(runs.c.key == threads.c.key, runs.c.status == RunStatus.RUNNING.value)
        left = update(threads).where(threads.c.status == ThreadStatus.BUSY.value, ~running)
        left = left.values(status=ThreadStatus.INTERRUPTED.value, reason=LOST)
        with storage_failure("interrupted runs cannot be settled"):
            async with self._reader.connect() as connection:
                waiting = await connection.scalar(select(func.count()).select_from(runs).where(undone, ~living))
            if not waiting:
                return 0
            async with self._engine.begin() as connection:
                count = (await connection.execute(lost)).rowcount
                await connection.execute(left)
                await connection.execute(delete(slots).where(slots.c.expires_ms <= database_ms()))
        return count

    async def others(self) -> bool:
        """Whether a process that hears of handoffs is alive."""
        query = select(func.count()).select_from(slots).where(slots.c.kind == SlotKind.PROCESS.value, slots.c.expires_ms > database_ms())
        with storage_failure("the processes cannot be read"):
            async with self._reader.connect() as connection:
                return bool(await connection.scalar(query))

    async def ask_handoff(self, thread_id: str) -> None:
        """Ask whichever process holds the thread's idle sandbox to release it."""
        values = {"thread_id": thread_id, "asked_ms": database_ms()}
        statement = self._insert(handoffs).values(key=thread_key(thread_id), **values)
        with storage_failure("the sandbox cannot be asked for"):
            async with self._engine.begin() as connection:
                await connection.execute(statement.on_conflict_do_update(index_elements=[handoffs.c.key], set_=values))

    async def handoffs(self) -> Sequence[str]:
        """Return the threads whose idle sandbox somebody waits for."""
        with storage_failure("the sandboxes that are asked for cannot be read"):
            async with self._reader.connect() as connection:
                query = select(handoffs.c.thread_id).where(handoffs.c.asked_ms > database_ms() - HANDOFF_MS)
                return list((await connection.scalars(query)).all())

    async def end_handoff(self, thread_id: str) -> None:
        """Take a request back, and drop those that nobody waits for any more."""
        old = handoffs.c.asked_ms <= database_ms() - HANDOFF_MS
        with storage_failure("the sandboxes that are asked for cannot be changed"):
            async with self._engine.begin() as connection:
                await connection.execute(delete(handoffs).where(or_(handoffs.c.key == thread_key(thread_id), old)))


def _slot(row: Row[Any]) -> SlotRow:
    return SlotRow(row.thread_id, row.token, row.owner, SlotKind(row.kind), row.run_id, bool(row.cancelled))
