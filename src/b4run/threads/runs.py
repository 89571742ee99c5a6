"""Runs of threads: one at a time each, across processes; told as they go on, ended when asked, recorded however they end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from b4run.agents.checkpoints import fenced
from b4run.agents.events import Done, Event, Interrupt
from b4run.errors import B4Error, IdempotencyKeyReused, RunTimedOut, ShuttingDown, SlotLost, ThreadBusy
from b4run.storage.runs import RunRow, RunStatus, SqlRunStore, new_run_id
from b4run.storage.slots import SlotKind, SlotRow
from b4run.storage.threads import ThreadStatus
from b4run.threads.log import LogWriter, RunLog
from b4run.threads.slots import Slot, Slots
from b4run.tracing import span

CANCEL_GRACE_S = 5.0
"""How long a cancelled run may take to end by itself; then its sandbox's compute is dropped under it."""
ABANDON_S = 5.0
"""How long it may take after that; then it is left behind, fenced off, and its thread is free."""
QUEUE_S = 600.0
"""How long a run may wait for its turn."""
QUEUE_LENGTH = 16
"""Runs of one thread that may wait in one process."""
_QUEUE_POLL_S = 0.1
_SOON, _SOON_S = 20, 0.05
"""How often, and how far apart, a run is looked for that is being recorded now."""

logger = logging.getLogger("b4run.threads")

Work = Callable[[], AsyncGenerator[Event, None]]


class OnBusy(StrEnum):
    """What becomes of a run whose thread is in use."""

    REJECT = "reject"
    ENQUEUE = "enqueue"
    INTERRUPT = "interrupt"
    """The run under way is cancelled first."""


class Ending(StrEnum):
    """Why a run was ended from outside."""

    CANCELLED = "cancelled"
    SHUTDOWN = "shutdown"
    TIMEOUT = "timeout"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What a client asks for. `digest` tells requests apart that come under one idempotency key."""

    thread_id: str
    route: str
    kind: SlotKind
    digest: str
    timeout_s: float | None = None
    on_busy: OnBusy = OnBusy.REJECT
    idempotency_key: str | None = None


@dataclass(eq=False)
class LiveRun:
    """A run of this process. `over` is set when it is recorded and its thread is free."""

    row: RunRow
    log: RunLog
    request: RunRequest
    slot: Slot | None = None
    ending: Ending | None = None
    status: RunStatus = RunStatus.PENDING
    outcome: dict[str, Any] = field(default_factory=dict)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """Asks the supervising task to end it."""
    asked_s: float = field(default_factory=time.monotonic)
    began_s: float | None = None
    """When it had its thread; None: it never did."""

    def end(self, ending: Ending) -> None:
        self.ending = self.ending or ending
        self.ended.set()


@dataclass(frozen=True, slots=True)
class Started:
    """A run that was begun, or the one that an idempotency key stands for; `live` None: it runs, or ran, elsewhere or before."""

    row: RunRow
    live: LiveRun | None


class Runs:
    """The runs of one process. `abandon` drops a thread's compute under whoever holds it."""

    def __init__(
        self,
        *,
        slots: Slots,
        runs: SqlRunStore,
        abandon: Callable[[str], Coroutine[Any, Any, None]],
        cancel_grace_s: float = CANCEL_GRACE_S,
        abandon_s: float = ABANDON_S,
    ) -> None:
        self.writer = LogWriter(runs)
        self._slots = slots
        self._runs = runs
        self._abandon = abandon
        self._cancel_grace_s = cancel_grace_s
        self._abandon_s = abandon_s
        self._live: dict[str, LiveRun] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._left: set[asyncio.Task[Any]] = set()
        """Tasks that did not end when they were cancelled."""
        self._waiting: dict[str, asyncio.Lock] = {}
        self._closing = False
        self.on_end: list[Callable[[LiveRun], None]] = []
        """Hear of every run that is over."""

    @property
    def active(self) -> int:
        """Runs that are waiting or under way."""
        return len(self._live)

    def live(self, run_id: str) -> LiveRun | None:
        return self._live.get(run_id)

    def on_thread(self, thread_id: str) -> LiveRun | None:
        """Return the run that has the thread now, if it is one of this process."""
        return next((run for run in self._live.values() if run.slot is not None and run.row.thread_id == thread_id), None)

    async def start(self, request: RunRequest, work: Work, *, check: Callable[[], Awaitable[None]] | None = None) -> Started:
        """Begin a run of a thread that has a row. `check`, made once the thread is this run's, may still refuse it.

        Raises:
            ThreadBusy: the thread is in use, or too many wait for it. Nothing has changed then.
            IdempotencyKeyReused: the key stands for another request.
            ShuttingDown: no new run is taken.
        """
        if self._closing:
            raise ShuttingDown
        if (known := await self._known(request)) is not None:
            return known
        run_id = new_run_id()
        slot = await self._slots.claim(request.thread_id, request.kind, run_id=run_id)
        if slot is None and (known := await self._known_soon(request)) is not None:
            return known
        if slot is None and request.on_busy is OnBusy.REJECT:
            raise await self._slots.busy(request.thread_id)
        if slot is None and sum(run.slot is None and run.row.thread_id == request.thread_id for run in self._live.values()) >= QUEUE_LENGTH:
            raise ThreadBusy(thread_id=request.thread_id, reason=f"{QUEUE_LENGTH} runs wait for it already", kind=request.kind)
        try:
            if slot is not None and check is not None:
                await check()
            row = await self._runs.create(
                request.thread_id,
                run_id,
                kind=request.kind.value,
                route=request.route,
                owner=self._slots.owner,
                queued=slot is None,
                request=request.digest,
                idempotency_key=request.idempotency_key,
            )
        except BaseException:
            if slot is not None:
                await slot.release()
            raise
        if row is None:
            # The same key came twice at the same moment.
            if slot is not None:
                await slot.release()
            if (known := await self._known(request)) is None:
                raise await self._slots.busy(request.thread_id)
            return known
        run = LiveRun(row, RunLog(row.run_id, self.writer), request, slot, status=row.status)
        self._live[row.run_id] = run
        task = asyncio.create_task(self._supervise(run, work, check))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return Started(row, run)

    async def cancel(self, holder: SlotRow) -> bool:
        """End exactly what has the thread as `holder` says, in whatever process; False when it is over. Returns when the thread is free,
        or once ending it takes long."""
        if not await self._slots.cancel(holder):
            return False
        deadline = asyncio.get_running_loop().time() + self._cancel_grace_s
        while asyncio.get_running_loop().time() < deadline:
            found = await self._slots.holder(holder.thread_id)
            if found is None or found.token != holder.token:
                break
            await asyncio.sleep(0.02)
        return True

    async def withdraw(self, row: RunRow) -> bool:
        """End one run of this process, also one that waits for its turn; False when it is over, or another process's."""
        run = self._live.get(row.run_id)
        if run is None:
            return False
        run.end(Ending.CANCELLED)
        return True

    async def drain(self, *, finish_s: float, end_s: float) -> list[RunRow]:
        """Take no new run; let those under way finish, then end them; return those that still go on after both times."""
        self._closing = True
        for run in [*self._live.values()]:
            if run.slot is None:
                run.end(Ending.SHUTDOWN)
        await self._until_over(finish_s)
        self.end_all()
        await self._until_over(end_s)
        return [run.row for run in self._live.values()]

    def end_all(self) -> None:
        """Ask every run to end, because the process goes."""
        for run in [*self._live.values()]:
            run.end(Ending.SHUTDOWN)

    async def aclose(self) -> None:
        """End everything and keep what was told."""
        await self.drain(finish_s=0, end_s=self._cancel_grace_s + self._abandon_s + 1)
        for task in [*self._tasks, *self._left]:
            task.cancel()
        await self.writer.aclose()

    async def _until_over(self, seconds: float) -> None:
        waits = [asyncio.create_task(run.over.wait()) for run in self._live.values()]
        if waits:
            await asyncio.wait(waits, timeout=seconds)
        for wait in waits:
            wait.cancel()

    async def _known(self, request: RunRequest) -> Started | None:
        if request.idempotency_key is None:
            return None
        row = await self._runs.by_idempotency_key(request.thread_id, request.idempotency_key)
        if row is None:
            return None
        if row.request != request.digest:
            raise IdempotencyKeyReused
        return Started(row, self._live.get(row.run_id))

    async def _known_soon(self, request: RunRequest) -> Started | None:
        """Whoever took the thread a moment ago may be the same request, not recorded yet."""
        if request.idempotency_key is None:
            return None
        for _ in range(_SOON):
            if (known := await self._known(request)) is not None:
                return known
            holder = await self._slots.holder(request.thread_id)
            if holder is None or holder.run_id is None or await self._runs.find(request.thread_id, holder.run_id) is not None:
                return await self._known(request)
            await asyncio.sleep(_SOON_S)
        return None

    async def _supervise(self, run: LiveRun, work: Work, check: Callable[[], Awaitable[None]] | None) -> None:
        """Carry one run from its start to its recorded end; nothing but the process's own death keeps it from that."""
        began = run.slot is not None
        try:
            if run.slot is None:
                began = await self._wait_for_turn(run, check)
            if began:
                await self._carry_out(run, work)
        except Exception as error:
            logger.exception("a run failed outside its work", extra={"event": "run.failed", "run_id": run.row.run_id})
            self._fail(run, error)
        finally:
            await self._finish(run, began)

    async def _wait_for_turn(self, run: LiveRun, check: Callable[[], Awaitable[None]] | None) -> bool:
        """Wait for the thread, behind those of this process that came before; False when it was refused or withdrawn meanwhile."""
        request = run.request
        lock = self._waiting.setdefault(request.thread_id, asyncio.Lock())
        try:
            async with asyncio.timeout(min(QUEUE_S, request.timeout_s or QUEUE_S)):
                async with lock:
                    if request.on_busy is OnBusy.INTERRUPT and (holder := await self._slots.holder(request.thread_id)) is not None:
                        await self._slots.cancel(holder)
                    while not run.ended.is_set():
                        run.slot = await self._slots.claim(request.thread_id, request.kind, run_id=run.row.run_id)
                        if run.slot is not None:
                            break
                        await asyncio.sleep(_QUEUE_POLL_S)
        except TimeoutError:
            run.end(Ending.TIMEOUT)
        finally:
            if not any(
                other is not run and other.slot is None and other.row.thread_id == request.thread_id for other in self._live.values()
            ):
                self._waiting.pop(request.thread_id, None)
        if run.slot is None:
            run.status, run.outcome = self._ended_outcome(run)
            return False
        try:
            if check is not None:
                await check()
        except B4Error as error:
            self._fail(run, error)
            return False
        await self._runs.start(run.row)
        return True

    async def _carry_out(self, run: LiveRun, work: Work) -> None:
        slot = run.slot
        assert slot is not None
        run.status, run.began_s = RunStatus.RUNNING, time.monotonic()
        task = asyncio.create_task(self._consume(run, slot, work))
        watches = [asyncio.create_task(run.ended.wait()), asyncio.create_task(slot.cancelled.wait())]
        try:
            done, _ = await asyncio.wait({task, *watches}, timeout=run.request.timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if task not in done:
                if not slot.valid:
                    run.end(Ending.LOST)
                elif slot.cancelled.is_set():
                    run.end(Ending.CANCELLED)
                elif not run.ended.is_set():
                    run.end(Ending.TIMEOUT)
                await self._end(run, task)
        finally:
            for watch in watches:
                watch.cancel()
        if task.done() and not task.cancelled() and task.exception() is None:
            return  # It came to its own end, if only just.
        if run.ending is not None:
            run.status, run.outcome = self._ended_outcome(run)
        elif task.done() and not task.cancelled() and (error := task.exception()) is not None:
            self._fail(run, error)
        else:
            self._fail(
                run, SlotLost(thread_id=run.row.thread_id) if not slot.valid else B4Error(reason="The run was cancelled from within.")
            )

    async def _consume(self, run: LiveRun, slot: Slot, work: Work) -> None:
        parked = False
        output: Any = None
        attributes = {"b4run.thread_id": run.row.thread_id, "b4run.run_id": run.row.run_id, "b4run.route": run.row.route}
        with fenced(slot.check), span(f"run {run.row.route}", **attributes):
            async with aclosing(work()) as events:
                async for event in events:
                    slot.check()
                    if isinstance(event, Done):
                        output = event.output
                    else:
                        parked = parked or isinstance(event, Interrupt)
                        run.log.tell(event.type, event.data())
        run.status = RunStatus.INTERRUPTED if parked else RunStatus.SUCCESS
        run.outcome = {"output": output}

    async def _end(self, run: LiveRun, task: asyncio.Task[None]) -> None:
        """Cancel the work; if it does not heed that, drop its compute under it; if it then does not, leave it behind."""
        task.cancel()
        if await _ends(task, self._cancel_grace_s):
            return
        fields = {"event": "run.does_not_end", "thread_id": run.row.thread_id, "run_id": run.row.run_id}
        logger.warning("a run does not end; its sandbox is dropped", extra=fields)
        dropping = asyncio.create_task(self._abandon(run.row.thread_id))
        await _ends(dropping, self._abandon_s)
        if dropping.done() and not dropping.cancelled() and dropping.exception() is not None:
            logger.warning("its sandbox was not dropped", extra=fields | {"reason": str(dropping.exception())})
        if not await _ends(task, self._abandon_s):
            logger.error("a run was left behind", extra=fields | {"event": "run.abandoned"})
            if run.slot is not None:
                run.slot.revoke()
            self._left.add(task)
            task.add_done_callback(self._left.discard)

    def _ended_outcome(self, run: LiveRun) -> tuple[RunStatus, dict[str, Any]]:
        match run.ending:
            case Ending.CANCELLED:
                return RunStatus.CANCELLED, {"cancelled": True}
            case Ending.TIMEOUT:
                return RunStatus.TIMEOUT, {"error": RunTimedOut(seconds=run.request.timeout_s or QUEUE_S).message}
            case Ending.LOST:
                return RunStatus.LOST, {"error": SlotLost(thread_id=run.row.thread_id).message}
        return RunStatus.ERROR, {"error": ShuttingDown().message}

    def _fail(self, run: LiveRun, error: BaseException) -> None:
        run.status = RunStatus.ERROR
        if isinstance(error, B4Error):
            run.outcome = {"error": error.message, "code": error.code}
            return
        logger.error(
            "a run failed", exc_info=error, extra={"event": "run.failed", "run_id": run.row.run_id, "thread_id": run.row.thread_id}
        )
        run.outcome = {"error": f"The run failed ({type(error).__name__})."}

    async def _finish(self, run: LiveRun, began: bool) -> None:
        thread, parked_route = _leaves(run.status, run.request.route) if began else (None, None)
        output = run.outcome.get("output", run.outcome)
        announce = run.log.close({"output": output})
        try:
            await self.writer.finish(run.row.run_id)
            await self._runs.end(run.row, run.status, run.outcome, thread=thread, parked_route=parked_route)
        except B4Error as error:
            logger.warning(
                "a run's end is not recorded", extra={"event": "run.not_recorded", "run_id": run.row.run_id, "reason": error.message}
            )
        finally:
            try:
                if run.slot is not None:
                    await run.slot.release()
            except B4Error as error:
                # Nobody renews it any more, so it is free within a lease's time.
                logger.warning("a slot was not given up", extra={"event": "slots.not_released", "reason": error.message})
            self._live.pop(run.row.run_id, None)
            run.over.set()
            _tell(run)
            for listener in self.on_end:
                listener(run)
            # Whoever hears of the end may use the thread at once.
            announce()


def _tell(run: LiveRun) -> None:
    fields = {
        "event": "run.ended",
        "thread_id": run.row.thread_id,
        "run_id": run.row.run_id,
        "route": run.row.route,
        "status": run.status.value,
        "duration_ms": None if run.began_s is None else round((time.monotonic() - run.began_s) * 1_000, 3),
    }
    code = run.outcome.get("code")
    logger.info("run ended: %s", run.status.value, extra=fields if code is None else fields | {"code": code})


def _leaves(status: RunStatus, route: str) -> tuple[ThreadStatus | None, str | None]:
    """Return where a run that ended leaves its thread, and the route that waits for a person; a lost thread is another run's."""
    if status is RunStatus.LOST:
        return None, None
    if status is RunStatus.INTERRUPTED:
        return ThreadStatus.INTERRUPTED, route
    return (ThreadStatus.INTERRUPTED if status is RunStatus.CANCELLED else ThreadStatus.IDLE), None


async def _ends(task: asyncio.Task[Any], seconds: float) -> bool:
    await asyncio.wait({task}, timeout=seconds)
    return task.done()
