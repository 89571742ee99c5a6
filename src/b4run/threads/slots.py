"""This process's slots: taken and given up in the database, kept alive by one heartbeat, lost when they must not be trusted any more."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Self

from b4run.agents.checkpoints import fenced
from b4run.errors import B4Error, RunCancelled, SlotLost, ThreadBusy
from b4run.storage.slots import LEASE_MS, SlotKind, SlotRow, SqlSlotStore

HEARTBEAT_S = 1.0
"""How often slots are renewed, and cancels and handoffs of other processes are heard."""
SETTLE_EVERY = 3
"""Heartbeats between two looks for what dead processes left undone."""

logger = logging.getLogger("b4run.threads")


class Slot:
    """One thread, for its holder alone. `cancelled` is set when somebody asks for its end."""

    def __init__(self, slots: Slots, row: SlotRow, confirmed: float) -> None:
        self.row = row
        self.cancelled = asyncio.Event()
        self._slots = slots
        self._confirmed = confirmed
        self._given_up = False

    @property
    def thread_id(self) -> str:
        return self.row.thread_id

    @property
    def valid(self) -> bool:
        """Whether nobody else can have the thread: it was not given up, and its lease was renewed in time."""
        return not self._given_up and time.monotonic() < self._confirmed + LEASE_MS / 1_000

    def check(self) -> None:
        """The fence of what runs under this slot. Raises: SlotLost."""
        if not self.valid:
            raise SlotLost(thread_id=self.thread_id)

    def confirm(self, at: float) -> None:
        self._confirmed = at

    def revoke(self) -> None:
        """From now on nothing may be written under it; its database row goes with `release`, or is somebody else's."""
        self._given_up = True

    async def release(self) -> None:
        """Give the thread up. Nothing happens the second time."""
        self.revoke()
        await self._slots.drop(self)


class Slots:
    """The slots of one process, for the length of a `with` block. `on_handoff` hears which threads' idle sandboxes others ask for."""

    def __init__(self, store: SqlSlotStore, *, on_handoff: Callable[[str], Awaitable[None]] | None = None) -> None:
        self.owner = uuid.uuid4().hex
        self._store = store
        self._on_handoff = on_handoff
        self._held: dict[str, Slot] = {}
        self._beating: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        await self._claim_own()
        await self._store.settle_lost()
        self._beating = asyncio.create_task(self._beat())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.wait({self._beating})
        for slot in [*self._held.values()]:
            await slot.release()

    @property
    def held(self) -> int:
        """How many threads this process has to itself."""
        return sum(slot.row.kind is not SlotKind.PROCESS for slot in self._held.values())

    async def claim(self, thread_id: str, kind: SlotKind, *, run_id: str | None = None) -> Slot | None:
        """Take a thread; None when somebody has it."""
        taken = await self._store.claim(thread_id, owner=self.owner, kind=kind, run_id=run_id)
        if taken is None:
            return None
        at, row = taken
        slot = self._held[row.token] = Slot(self, row, at)
        return slot

    async def holder(self, thread_id: str) -> SlotRow | None:
        """Return who has a thread now, here or in another process."""
        return await self._store.holder(thread_id)

    async def busy(self, thread_id: str) -> ThreadBusy:
        """Return the refusal that says what has a thread now."""
        holder = await self.holder(thread_id)
        kind = holder.kind if holder is not None else SlotKind.RUN
        return ThreadBusy(thread_id=thread_id, reason=f"it has a {kind.value} under way", kind=kind)

    async def cancel(self, row: SlotRow) -> bool:
        """Ask for the end of exactly what holds that slot, wherever it runs; False when it is over."""
        slot = self._held.get(row.token)
        if slot is not None and not slot.valid:
            return False
        if not await self._store.cancel(row):
            return False
        if slot is not None:
            slot.cancelled.set()
        return True

    async def drop(self, slot: Slot) -> None:
        if self._held.pop(slot.row.token, None) is not None:
            await self._store.release(slot.row)

    async def _claim_own(self) -> None:
        await self.claim(f"process {self.owner}", SlotKind.PROCESS)

    async def _beat(self) -> None:
        beats = 0
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            beats += 1
            try:
                await self._renew()
                await self._hand_off()
                if beats % SETTLE_EVERY == 0:
                    await self._store.settle_lost()
            except B4Error as error:
                logger.warning("the slots could not be renewed", extra={"event": "slots.not_renewed", "reason": error.message})

    async def _renew(self) -> None:
        held = dict(self._held)
        at, rows = await self._store.renew(self.owner)
        there = {row.token: row for row in rows}
        for token, slot in held.items():
            row = there.get(token)
            if row is not None:
                slot.confirm(at)
                if row.cancelled:
                    slot.cancelled.set()
            elif token in self._held:
                self._lost(slot)
        if all(slot.row.kind is not SlotKind.PROCESS for slot in self._held.values()):
            await self._claim_own()

    def _lost(self, slot: Slot) -> None:
        """Another process took it, since this one was not heard of for too long."""
        logger.warning("a slot was lost", extra={"event": "slots.lost", "thread_id": slot.thread_id, "kind": slot.row.kind.value})
        slot.revoke()
        slot.cancelled.set()
        self._held.pop(slot.row.token, None)

    async def _hand_off(self) -> None:
        if self._on_handoff is None:
            return
        for thread_id in await self._store.handoffs():
            await self._on_handoff(thread_id)


@asynccontextmanager
async def holding(store: SqlSlotStore, thread_id: str) -> AsyncIterator[Slot]:
    """Have a thread to oneself for the length of the block, beside servers of the same app; what is inside ends when they cancel it.

    Raises:
        ThreadBusy: somebody has it.
        RunCancelled: somebody asked for its end, or it was lost.
    """
    async with Slots(store) as slots:
        slot = await slots.claim(thread_id, SlotKind.RUN)
        if slot is None:
            raise await slots.busy(thread_id)
        try:
            async with asyncio.timeout(None) as timeout:
                watching = asyncio.create_task(_end_when_cancelled(slot, timeout))
                try:
                    with fenced(slot.check):
                        yield slot
                finally:
                    watching.cancel()
        except TimeoutError:
            if not timeout.expired():
                raise
            raise RunCancelled(thread_id=thread_id) from None


async def _end_when_cancelled(slot: Slot, timeout: asyncio.Timeout) -> None:
    await slot.cancelled.wait()
    timeout.reschedule(0)
