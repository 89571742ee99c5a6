"""Runs: one row a turn, and what it told, in batches that any process can read."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import Row, delete, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from b4run.storage.statements import Engines, now_ms, storage_failure, thread_key
from b4run.storage.tables import run_frames, runs, threads
from b4run.storage.threads import ThreadStatus

KEPT_RUNS = 1_000
"""Of one thread; older ones are forgotten when another begins."""
KEPT_LOGS = 20
"""Runs of one thread whose frames are kept."""
LOST = "the process that ran it ended"
MAX_OUTCOME_BYTES = 1_048_576
"""Of the result that is kept with a run; a larger one is left out, and the thread's state has it."""


class RunStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCESS = "success"
    INTERRUPTED = "interrupted"
    """It waits for a person; the answer begins a run of its own."""
    ERROR = "error"
    CANCELLED = "cancelled"
    TIMEOUT = "timeout"
    LOST = "lost"

    @property
    def over(self) -> bool:
        return self not in (RunStatus.PENDING, RunStatus.RUNNING)


@dataclass(frozen=True, slots=True)
class RunRow:
    run_id: str
    thread_id: str
    kind: str
    """`run` or `resume`."""
    route: str
    status: RunStatus
    owner: str
    created_ms: int
    started_ms: int | None
    ended_ms: int | None
    outcome: Mapping[str, Any] | None
    """`output`, or `error`, once it is over."""
    request: str
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Frame:
    """One thing that a run told. `data` is JSON on one line; numbers begin at 1."""

    number: int
    event: str
    data: str


def new_run_id() -> str:
    """Return an id that nobody can guess: 128 random bits."""
    return f"r-{secrets.token_hex(16)}"


class SqlRunStore:
    """The runs of one database. Every call raises `StorageUnusable` when the database fails."""

    def __init__(self, engines: Engines) -> None:
        self._engine = engines.quick
        self._reader = engines.reader

    async def create(
        self, thread_id: str, run_id: str, *, kind: str, route: str, owner: str, queued: bool, request: str, idempotency_key: str | None
    ) -> RunRow | None:
        """Insert a run of a thread that is there; None when the thread has one of that idempotency key."""
        status = RunStatus.PENDING if queued else RunStatus.RUNNING
        now = now_ms()
        key = thread_key(thread_id)
        row = RunRow(run_id, thread_id, kind, route, status, owner, now, None if queued else now, None, None, request, idempotency_key)
        values = {
            "run_id": run_id,
            "key": key,
            "kind": kind,
            "route": route,
            "status": status.value,
            "owner": owner,
            "created_ms": now,
            "started_ms": row.started_ms,
            "request": request,
            "idempotency_key": idempotency_key,
        }
        try:
            with storage_failure("the run cannot be recorded"):
                async with self._engine.begin() as connection:
                    await connection.execute(insert(runs).values(values))
                    if not queued:
                        await _take_thread(connection, row)
                    older = select(runs.c.run_id).where(runs.c.key == key).order_by(runs.c.created_ms.desc(), runs.c.run_id)
                    await connection.execute(delete(run_frames).where(run_frames.c.run_id.in_(older.offset(KEPT_LOGS).limit(KEPT_RUNS))))
                    await connection.execute(delete(runs).where(runs.c.run_id.in_(older.offset(KEPT_RUNS).limit(KEPT_RUNS))))
        except Exception as error:
            if idempotency_key is not None and isinstance(error.__cause__, IntegrityError):
                return None
            raise
        return row

    async def start(self, run: RunRow) -> None:
        """Record that a run which was queued has begun."""
        now = now_ms()
        with storage_failure("the run cannot be recorded"):
            async with self._engine.begin() as connection:
                begun = update(runs).where(runs.c.run_id == run.run_id).values(status=RunStatus.RUNNING.value, started_ms=now)
                await connection.execute(begun)
                await _take_thread(connection, run)

    async def end(
        self,
        run: RunRow,
        status: RunStatus,
        outcome: Mapping[str, Any],
        *,
        thread: ThreadStatus | None,
        parked_route: str | None = None,
    ) -> None:
        """Record how a run ended and, unless it had never begun, where that leaves its thread."""
        now = now_ms()
        text = json.dumps(outcome)
        if len(text) > MAX_OUTCOME_BYTES:
            text = json.dumps({"omitted": True})
        with storage_failure("the run's end cannot be recorded"):
            async with self._engine.begin() as connection:
                ended = update(runs).where(runs.c.run_id == run.run_id).values(status=status.value, ended_ms=now, outcome=text)
                await connection.execute(ended)
                if thread is not None:
                    values = {"status": thread.value, "reason": None, "parked_route": parked_route, "updated_ms": now}
                    await connection.execute(update(threads).where(threads.c.key == thread_key(run.thread_id)).values(values))

    async def find(self, thread_id: str, run_id: str) -> RunRow | None:
        """Return one run of a thread, or None."""
        found = await self._select(thread_id, runs.c.run_id == run_id, limit=1)
        return found[0] if found else None

    async def by_idempotency_key(self, thread_id: str, key: str) -> RunRow | None:
        """Return the run that was asked for under that key, or None."""
        found = await self._select(thread_id, runs.c.idempotency_key == key, limit=1)
        return found[0] if found else None

    async def list(self, thread_id: str, *, limit: int, before: RunRow | None = None) -> Sequence[RunRow]:
        """Return runs of a thread, the newest first."""
        if before is None:
            return await self._select(thread_id, limit=limit)
        same = (runs.c.created_ms == before.created_ms) & (runs.c.run_id > before.run_id)
        return await self._select(thread_id, (runs.c.created_ms < before.created_ms) | same, limit=limit)

    async def tell(self, batches: Mapping[str, Sequence[Frame]]) -> None:
        """Keep what runs told, by run; frames of a run that is gone are dropped."""
        rows = [
            {
                "run_id": run_id,
                "first": frames[0].number,
                "last": frames[-1].number,
                "frames": json.dumps([[frame.number, frame.event, frame.data] for frame in frames]),
            }
            for run_id, frames in batches.items()
        ]
        with storage_failure("what runs tell cannot be kept"):
            async with self._engine.begin() as connection:
                there = set((await connection.scalars(select(runs.c.run_id).where(runs.c.run_id.in_(list(batches))))).all())
                kept = [row for row in rows if row["run_id"] in there]
                if kept:
                    await connection.execute(insert(run_frames), kept)

    async def told(self, run_id: str, *, after: int = 0, limit: int = 200) -> Sequence[Frame]:
        """Return what a run told behind frame `after`, from at most `limit` batches."""
        query = (
            select(run_frames.c.frames)
            .where(run_frames.c.run_id == run_id, run_frames.c.last > after)
            .order_by(run_frames.c.first)
            .limit(limit)
        )
        with storage_failure("what the run told cannot be read"):
            async with self._reader.connect() as connection:
                batches = (await connection.scalars(query)).all()
        found = [Frame(*frame) for batch in batches for frame in json.loads(batch)]
        return [frame for frame in found if frame.number > after]

    async def _select(self, thread_id: str, *conditions: Any, limit: int) -> Sequence[RunRow]:
        query = (
            select(runs)
            .where(runs.c.key == thread_key(thread_id), *conditions)
            .order_by(runs.c.created_ms.desc(), runs.c.run_id)
            .limit(limit)
        )
        with storage_failure("the runs cannot be read"):
            async with self._reader.connect() as connection:
                rows = (await connection.execute(query)).all()
        return [_run(row, thread_id) for row in rows]


async def _take_thread(connection: AsyncConnection, run: RunRow) -> None:
    """Record that the thread is this run's; another one that is still recorded as running died with its process."""
    key, now = thread_key(run.thread_id), now_ms()
    dead = (runs.c.key == key, runs.c.status == RunStatus.RUNNING.value, runs.c.run_id != run.run_id)
    lost = {"status": RunStatus.LOST.value, "ended_ms": now, "outcome": json.dumps({"error": LOST})}
    await connection.execute(update(runs).where(*dead).values(lost))
    busy = {"status": ThreadStatus.BUSY.value, "reason": None, "route": run.route, "updated_ms": now}
    await connection.execute(update(threads).where(threads.c.key == key).values(busy))


def _run(row: Row[Any], thread_id: str) -> RunRow:
    return RunRow(
        row.run_id,
        thread_id,
        row.kind,
        row.route,
        RunStatus(row.status),
        row.owner,
        row.created_ms,
        row.started_ms,
        row.ended_ms,
        None if row.outcome is None else json.loads(row.outcome),
        row.request,
        row.idempotency_key,
    )
