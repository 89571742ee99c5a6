"""The host's end of one connection to a guest."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from b4run.errors import DeadlinePassed, SandboxLost, SandboxUnavailable
from b4run.sandbox.guest.calls import Call, Plan
from b4run.sandbox.guest.channel import Channel, ChannelClosed, PullChannel, PushChannel
from b4run.sandbox.guest.feeding import Source, feed
from b4run.sandbox.guest.frames import (
    LAST_STREAM,
    MAX_PAYLOAD,
    MAX_STREAMS,
    FrameDecoder,
    FrameType,
    Lane,
    ProtocolError,
    credit_size,
    encode,
    encode_credit,
    encode_data,
    encode_end,
)
from b4run.sandbox.guest.messages import PROTOCOL, GuestRefusal, Hello, pack, read_hello, text, unpack
from b4run.sandbox.guest.outbox import Outbox

T = TypeVar("T")

AT_ONCE: Final = 65_536
"""Bytes of input that travel with their request."""

_log = logging.getLogger(__name__)


class RequestTooLarge(Exception):
    """The request does not fit a frame; nothing was sent."""


@dataclass(frozen=True, slots=True)
class Timing:
    """How the client judges a silent guest, in seconds."""

    tick: float = 1.0
    ping_after: float = 15.0
    """Of silence, while a request is open."""
    answer_within: float = 45.0
    """Of a ping; a guest that says nothing by then is lost."""
    quiet: float = 60.0
    """That a file operation may go without progress."""
    margin: float = 10.0
    """That the guest gets above a deadline it keeps itself."""


class GuestClient:
    """Requests to one guest, many at once. Made by `connect`; owns the channel and its tasks until `close`.

    Whatever ends the connection, every call in flight and every later one raises `SandboxLost`.
    """

    def __init__(self, channel: Channel, thread_id: str, timing: Timing, loss: type[SandboxLost]) -> None:
        self.thread_id = thread_id
        self.timing = timing
        self._channel = channel
        self._loop = asyncio.get_running_loop()
        self._decoder = FrameDecoder(self._on_frame)
        self._hello: asyncio.Future[Hello] = self._loop.create_future()
        self._calls: dict[int, Call[Any]] = {}
        self._next = 1
        self._slots = asyncio.Semaphore(MAX_STREAMS)
        self._tasks: set[asyncio.Task[None]] = set()
        self._outbox = Outbox(channel, self._task, self._channel_ended)
        self._send = self._outbox.send
        self._heard = self._loop.time()
        self._pinged: float | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._lost: str | None = None
        self._cause = "lost"
        self._loss_type = loss
        self._closing: asyncio.Task[None] | None = None

    @classmethod
    async def connect(
        cls,
        channel: Channel,
        *,
        thread_id: str,
        environment: Mapping[str, str],
        hello_deadline_s: float = 10.0,
        timing: Timing | None = None,
        loss: type[SandboxLost] = SandboxLost,
    ) -> GuestClient:
        """Exchange hellos; `environment` is what commands start from. Closes the channel when it fails. Calls end with `loss` when
        the connection does.

        Raises:
            SandboxUnavailable: the guest did not answer in time, ended, or speaks another protocol.
        """
        client = cls(channel, thread_id, timing or Timing(), loss)
        try:
            client._start(environment)
            async with asyncio.timeout(hello_deadline_s):
                await asyncio.wait((client._hello,))
        except TimeoutError:
            client._lose(f"the guest did not say hello within {hello_deadline_s:g} s")
        except BaseException:
            await client.close()
            raise
        if client._lost is not None:
            await client.close()
            raise SandboxUnavailable(thread_id=thread_id, reason=client._lost)
        return client

    @property
    def hello(self) -> Hello:
        return self._hello.result()

    @property
    def lost(self) -> str | None:
        """Why the connection has ended; None while it has not."""
        return self._lost

    @property
    def busy(self) -> bool:
        """Whether any request is open."""
        return bool(self._calls)

    async def request(self, plan: Plan[T], source: Source | None = None) -> T:
        """Open a call and wait for its end. Raises: as `open` and `finish`."""
        return await self.finish(await self.open(plan, source))

    async def open(self, plan: Plan[T], source: Source | None = None) -> Call[T]:
        """Send a request, and from then on `source` as its input; waits while 256 are open.

        Raises:
            RequestTooLarge: it does not fit a frame.
            SandboxLost: the connection has ended.
        """
        payload = pack(plan.message)
        if len(payload) > MAX_PAYLOAD:
            raise RequestTooLarge
        await self._slots.acquire()
        try:
            if self._outbox.full:
                await self._outbox.room()
            if self._next > LAST_STREAM:
                self._lose("its connection is used up")
            if self._lost is not None:
                raise self._loss()
        except BaseException:
            self._slots.release()
            raise
        call = self._enter(plan)
        frames = encode(FrameType.REQUEST, call.stream, payload)
        if isinstance(source, bytes) and len(source) <= AT_ONCE:
            frames += encode_data(call.stream, Lane.INPUT, source) if source else b""
            frames += encode_end(call.stream, Lane.INPUT)
            call.credit -= len(source)
            source = None
        self._send(frames)
        if source is not None:
            call.feeder = self._task(self._feed_input(call, source))
        return call

    async def finish(self, call: Call[T]) -> T:
        """Wait for the end of `call`. When the waiting task is cancelled, so is the call; its end is awaited, within bounds.

        Raises:
            GuestRefusal: the guest answered with an error.
            DeadlinePassed: no progress for as long as the plan allows.
            SandboxLost: the connection has ended.
        """
        try:
            return await call.end
        except asyncio.CancelledError:
            await self.give_up(call)
            raise

    async def give_up(self, call: Call[Any]) -> None:
        """Cancel `call` and wait for its end, at most its grace and a margin."""
        if not call.open:
            return
        self.cancel(call)
        if call.end.cancelled():
            call.end = self._loop.create_future()
        await asyncio.wait((call.end,), timeout=call.plan.patience.grace_ms / 1000 + self.timing.margin)

    def cancel(self, call: Call[Any]) -> None:
        """Ask the guest to give `call` up; it then must end within its grace and a margin, or the guest is lost."""
        if not call.open or call.cancelled:
            return
        call.cancelled = True
        grace_ms = call.plan.patience.grace_ms
        call.expires = self._loop.time() + grace_ms / 1000 + self.timing.margin
        if call.feeder is not None:
            call.feeder.cancel()
        self._send(encode(FrameType.CANCEL, call.stream, pack({"grace_ms": grace_ms})))

    def consumed(self, call: Call[Any], lane: Lane, size: int) -> None:
        """Note that the reader of `call` took `size` bytes, so that the guest may send as many more."""
        self._grant(call, lane, call.consumed(lane, size))

    async def close(self) -> None:
        """End the connection and wait until its tasks are gone; safe to repeat."""
        self._lose("it was closed")
        if self._closing is not None:
            await asyncio.shield(self._closing)

    # Opening

    def _start(self, environment: Mapping[str, str]) -> None:
        variables = {_octets(name): _octets(value) for name, value in environment.items()}
        payload = pack({"protocol": PROTOCOL, "env": variables})
        if len(payload) > MAX_PAYLOAD:
            self._lose("its environment is larger than 1 MiB")
            return
        if isinstance(self._channel, PushChannel):
            self._channel.start(self._feed, self._channel_ended)
        else:
            self._task(self._receive(self._channel))
        self._send(encode(FrameType.HELLO, 0, payload))

    def _enter(self, plan: Plan[T]) -> Call[T]:
        now = self._loop.time()
        call = Call(plan, self._next, self._loop, now)
        self._next += 1
        if not self._calls:
            self._heard = now
        self._calls[call.stream] = call
        if self._watch is None:
            self._watch = self._loop.call_later(self.timing.tick, self._tick)
        return call

    def _task(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task: asyncio.Task[None] = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # Sending

    async def _feed_input(self, call: Call[Any], source: Source) -> None:
        try:
            await feed(call, source, self._outbox)
        except Exception as error:  # noqa: BLE001 - whatever the caller's iterator raises is what its call raises
            call.failure = error
            call.feeder = None
            self.cancel(call)

    def _grant(self, call: Call[Any], lane: int, size: int) -> None:
        if size and call.open:
            self._send(encode_credit(call.stream, Lane(lane), size))

    # Receiving

    async def _receive(self, channel: PullChannel) -> None:
        try:
            while self._lost is None:
                self._feed(await channel.receive())
        except ChannelClosed as closed:
            self._channel_ended(closed)

    def _feed(self, data: bytes | bytearray | memoryview) -> None:
        if self._lost is not None:
            return
        self._heard = self._loop.time()
        try:
            self._decoder.feed(data)
        except ProtocolError as error:
            self._lose(f"the guest broke the protocol: {error}")

    def _on_frame(self, kind: int, stream: int, payload: memoryview) -> None:
        if self._lost is not None:
            return
        if stream == 0:
            self._on_connection_frame(kind, payload)
            return
        if not self._hello.done():
            raise ProtocolError("no hello at first")
        if kind in (FrameType.REQUEST, FrameType.CANCEL):
            raise ProtocolError(f"a {FrameType(kind).name} frame from the guest")
        call = self._calls.get(stream)
        if call is None:
            if stream >= self._next:
                raise ProtocolError(f"stream {stream}, which was never opened")
            return
        call.heard = self._heard
        if kind == FrameType.RESPONSE:
            result = call.plan.parse(unpack(payload))
            self._leave(call, result)
        elif kind == FrameType.DATA:
            lane = payload[0]
            self._grant(call, lane, call.take(lane, payload[1:]))
        else:
            self._on_rare_frame(call, kind, payload)

    def _on_rare_frame(self, call: Call[Any], kind: int, payload: memoryview) -> None:
        if kind == FrameType.CREDIT:
            call.granted(payload[0], credit_size(payload))
        elif kind == FrameType.END:
            call.ended(payload[0])
        elif kind == FrameType.ERROR:
            call.failure = call.failure or GuestRefusal(unpack(payload))
            self._leave(call, None)
        elif call.plan.on_event is not None:
            call.plan.on_event(unpack(payload), len(payload))

    def _on_connection_frame(self, kind: int, payload: memoryview) -> None:
        if kind == FrameType.ERROR:
            said = text(unpack(payload), "message", 4096)
            self._lose(f"the guest gave up: {said[:200]!a}")
        elif kind == FrameType.HELLO and not self._hello.done():
            self._hello.set_result(read_hello(unpack(payload)))
        elif kind == FrameType.HELLO or not self._hello.done():
            raise ProtocolError("not exactly one hello at first")
        elif kind == FrameType.PING:
            self._send(encode(FrameType.PONG, 0, bytes(payload)))

    def _leave(self, call: Call[Any], result: Any) -> None:
        del self._calls[call.stream]
        self._settle(call)
        if call.failure is not None:
            call.fail(call.failure)
        else:
            call.succeed(result)

    def _settle(self, call: Call[Any]) -> None:
        call.open = False
        if call.feeder is not None:
            call.feeder.cancel()
        self._slots.release()

    # Watching

    def _tick(self) -> None:
        self._watch = None
        now = self._loop.time()
        for call in [call for call in self._calls.values() if call.overdue(now)]:
            self._overdue(call)
        if self._calls:
            self._listen(now)
        if self._calls:
            self._watch = self._loop.call_later(self.timing.tick, self._tick)

    def _overdue(self, call: Call[Any]) -> None:
        plan = call.plan
        if plan.patience.quiet_s is None or call.cancelled:
            self._lose(f"{plan.operation} did not end within its deadline")
        else:
            call.fail(DeadlinePassed(operation=plan.operation, seconds=plan.patience.quiet_s))
            self.cancel(call)

    def _listen(self, now: float) -> None:
        if now - self._heard < self.timing.ping_after:
            self._pinged = None
        elif self._pinged is None:
            self._pinged = now
            self._send(encode(FrameType.PING, 0))
        elif now - self._pinged >= self.timing.answer_within:
            self._lose(f"the guest was silent for {now - self._heard:.0f} s")

    # Ending

    def _channel_ended(self, closed: ChannelClosed) -> None:
        self._lose(str(closed) or "the channel to the guest has ended", closed.cause)

    def _loss(self) -> SandboxLost:
        return self._loss_type(thread_id=self.thread_id, reason=self._lost, cause=self._cause)

    def _lose(self, reason: str, cause: str = "lost") -> None:
        if self._lost is not None:
            return
        self._lost, self._cause = reason, cause
        _log.debug("guest connection ended", extra={"event": "guest.lost", "thread_id": self.thread_id, "reason": reason})
        if self._watch is not None:
            self._watch.cancel()
        self._outbox.close()
        for call in self._calls.values():
            self._settle(call)
            call.fail(self._loss())
        self._calls.clear()
        self._closing = self._loop.create_task(self._shut())
        if not self._hello.done():
            self._hello.cancel()

    async def _shut(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        with contextlib.suppress(ChannelClosed):
            await self._channel.close()


def _octets(value: str) -> bytes:
    return value.encode(errors="surrogateescape")
