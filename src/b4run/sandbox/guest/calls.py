"""One request on its way: where its data goes, what it may still send, how long it may take."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, Generic, Protocol, TypeVar

from b4run.sandbox.guest.frames import MAX_DATA, WINDOW, Lane, ProtocolError
from b4run.sandbox.guest.messages import Message

T = TypeVar("T")

_SMALL: Final = 4_096
_MANY: Final = 1_024
GRANT: Final = WINDOW // 2
"""Bytes taken on a lane before the guest is granted as many again."""


class Inflow(Protocol):
    """Where the DATA of a call goes."""

    def take(self, lane: int, data: memoryview) -> int:
        """Keep a copy of `data`; return how many bytes may be granted again. Raises: ProtocolError."""

    def wake(self) -> None:
        """The call has ended, or failed: whoever waits for data looks again."""


class NoInflow:
    """For requests that are answered without data."""

    def take(self, lane: int, data: memoryview) -> int:
        raise ProtocolError("data that nobody asked for")

    def wake(self) -> None:
        return


NOTHING: Final = NoInflow()


class Collector:
    """Keeps up to `limit` bytes of each lane, until the end of the call."""

    __slots__ = ("_kept", "_limits")

    def __init__(self, output: int, errors: int = 0) -> None:
        self._limits = (0, output, errors)
        self._kept = (bytearray(), bytearray(), bytearray())

    def take(self, lane: int, data: memoryview) -> int:
        kept, limit = self._kept[lane], self._limits[lane]
        if len(kept) + len(data) > limit:
            raise ProtocolError(f"more than the {limit} bytes asked for")
        kept += data
        return len(data) if limit > WINDOW else 0

    def wake(self) -> None:
        return

    def kept(self, lane: Lane) -> bytearray:
        return self._kept[lane]


class ChunkQueue:
    """Hands data to one reader as it comes. Bounded by credit; tiny pieces are put together so that they cost no more than their bytes."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[int, bytes | bytearray]] = deque()
        self._growing: list[bytearray | None] = [None, None, None]
        self._reader: asyncio.Future[None] | None = None
        self.discards = False
        """Nobody reads: what comes is dropped, and granted again."""

    def take(self, lane: int, data: memoryview) -> int:
        if self.discards:
            return len(data)
        growing = self._growing[lane]
        if growing is not None and len(growing) + len(data) <= MAX_DATA and (self._chunks[-1][1] is growing or len(self._chunks) >= _MANY):
            growing += data
        elif len(data) < _SMALL:
            growing = self._growing[lane] = bytearray(data)
            self._chunks.append((lane, growing))
        else:
            self._growing[lane] = None
            self._chunks.append((lane, bytes(data)))
        self.wake()
        return 0

    def wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)

    def pop(self) -> tuple[Lane, bytes] | None:
        """Return the next piece, or None when there is none yet."""
        if not self._chunks:
            return None
        lane, data = self._chunks.popleft()
        if self._growing[lane] is data:
            self._growing[lane] = None
        return Lane(lane), bytes(data)

    def discard(self) -> list[tuple[Lane, int]]:
        """Drop what is here and all that comes; return what was dropped."""
        self.discards = True
        dropped = [(Lane(lane), len(data)) for lane, data in self._chunks]
        self._chunks.clear()
        return dropped

    async def changed(self) -> None:
        """Wait for data or for the end of the call; one task at a time."""
        self._reader = asyncio.get_running_loop().create_future()
        try:
            await self._reader
        finally:
            self._reader = None


@dataclass(frozen=True, slots=True)
class Patience:
    """How long the host waits for the guest; None is for ever, as long as it answers pings."""

    total_s: float | None = None
    """For the whole call. The guest has a deadline of its own before it, so passing it means that the guest is lost."""
    quiet_s: float | None = None
    """Without any progress. Passing it ends the call with `DeadlinePassed`."""
    grace_ms: int = 2_000
    """That a cancelled call gets."""


@dataclass(slots=True)
class Plan(Generic[T]):
    """A request and what is to be done with its answer."""

    operation: str
    message: dict[str, Any]
    parse: Callable[[Message], T]
    inflow: Inflow = NOTHING
    on_event: Callable[[Message, int], None] | None = None
    """Takes an event and the size of its payload; raises ProtocolError."""
    patience: Patience = Patience()


class Call(Generic[T]):
    """An open stream, from the host's side."""

    __slots__ = (
        "_credit_waiter", "_ended", "_held", "_loop", "_owed", "_room", "cancelled", "credit", "end", "expires", "failure", "feeder",
        "heard", "open", "plan", "stream",
    )  # fmt: skip

    def __init__(self, plan: Plan[T], stream: int, loop: asyncio.AbstractEventLoop, now: float) -> None:
        self.plan = plan
        self.stream = stream
        self.end: asyncio.Future[T] = loop.create_future()
        self.open = True
        self.cancelled = False
        self.failure: BaseException | None = None
        """What the call ends with, whatever the guest answers."""
        self.heard = now
        self.expires = now + plan.patience.total_s if plan.patience.total_s is not None else None
        self.credit = WINDOW
        self.feeder: asyncio.Task[None] | None = None
        self._loop = loop
        self._held = False
        self._credit_waiter: asyncio.Future[None] | None = None
        self._room = [0, WINDOW, WINDOW]
        self._owed = [0, 0, 0]
        self._ended = [False, False, False]

    def take(self, lane: int, data: memoryview) -> int:
        """Take DATA; return the credit to grant now, often 0. Raises: ProtocolError."""
        room = self._room[lane] - len(data)
        if room < 0 or self._ended[lane]:
            raise ProtocolError("data without credit" if room < 0 else "data behind its end")
        self._room[lane] = room
        return self.consumed(lane, self.plan.inflow.take(lane, data))

    def consumed(self, lane: int, size: int) -> int:
        """Note that `size` bytes were taken; return the credit to grant now."""
        owed = self._owed[lane] + size
        if owed < GRANT or self._ended[lane] or not self.open:
            self._owed[lane] = owed
            return 0
        self._owed[lane] = 0
        self._room[lane] += owed
        return owed

    def ended(self, lane: int) -> None:
        if lane == Lane.INPUT or self._ended[lane]:
            raise ProtocolError("an end where there is none")
        self._ended[lane] = True

    def granted(self, lane: int, size: int) -> None:
        if lane != Lane.INPUT:
            raise ProtocolError("credit for what only the guest sends")
        self.credit += size
        self._wake_feeder()

    async def more_credit(self) -> None:
        """Wait until there is credit or the call has ended."""
        self._credit_waiter = self._loop.create_future()
        try:
            await self._credit_waiter
        finally:
            self._credit_waiter = None

    @contextmanager
    def on_hold(self) -> Iterator[None]:
        """Meanwhile the call waits for the host, not for the guest, and its patience does not run out."""
        self._held = True
        try:
            yield
        finally:
            self._held, self.heard = False, self._loop.time()

    def overdue(self, now: float) -> bool:
        if self.expires is not None and now >= self.expires:
            return True
        quiet = self.plan.patience.quiet_s
        return quiet is not None and not self.end.done() and not self._held and now >= self.heard + quiet

    def fail(self, error: BaseException) -> None:
        """End the wait with `error`; it need not be awaited by anyone."""
        if not self.end.done():
            self.end.set_exception(error)
            self.end.exception()
        self._wake()

    def succeed(self, result: T) -> None:
        if not self.end.done():
            self.end.set_result(result)
        self._wake()

    def _wake(self) -> None:
        self.plan.inflow.wake()
        self._wake_feeder()

    def _wake_feeder(self) -> None:
        if self._credit_waiter is not None and not self._credit_waiter.done():
            self._credit_waiter.set_result(None)
