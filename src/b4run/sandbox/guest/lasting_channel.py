"""A channel that outlives the stream below it: where that breaks, it is dialled again and goes on where it was.

The other end is `guest/src/lasting.rs`. A stream begins with a preamble; then both ends send records, and keep what the other has not
acknowledged. Nothing is lost and nothing is done twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import struct
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final, Protocol

from b4run.sandbox.guest.channel import ChannelClosed

_MAGIC: Final = b"b4-last1"
_REPLY: Final = struct.Struct(">BQ")
_HEADER: Final = struct.Struct(">BI")
_COUNT: Final = struct.Struct(">Q")
_DATA, _ACK, _BYE = range(3)
_MAX_RECORD: Final = 1_048_576
_PIECE: Final = 131_072
_ACK_EVERY: Final = 262_144
_KEPT: Final = 4_194_304
"""Unacknowledged bytes from which a sender waits."""
_REPLY_SECONDS: Final = 10.0
_BYE_SECONDS: Final = 2.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.05, 1.0
RESUME_SECONDS: Final = 50.0
"""How long a broken connection is dialled again; less than the guest waits for it."""


class ByteStream(Protocol):
    """What a lasting channel is carried by."""

    async def receive(self) -> bytes: ...

    async def send(self, data: bytes | bytearray | memoryview) -> None: ...

    async def close(self) -> None: ...


Dial = Callable[[], Awaitable[ByteStream]]
"""Opens a new stream to `b4-guest connect --lasting`. Raises: ChannelClosed: it cannot be had now."""
Verdict = Callable[[], Awaitable[ChannelClosed | None]]
"""Says why the guest is gone for good; None: it may be there. Never raises, and is bounded."""


class LastingChannel:
    """A `PullChannel` over streams that come and go. Made by `open`."""

    def __init__(self, dial: Dial, verdict: Verdict, stream: ByteStream, secret: bytes) -> None:
        self._dial, self._verdict = dial, verdict
        self._stream: ByteStream | None = stream
        self._secret = secret
        self._partial = bytearray()
        self._received = 0
        self._acknowledged = 0
        self._sent = 0
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0
        self._room = asyncio.Event()
        self._room.set()
        self._sending = asyncio.Lock()
        self._ended: ChannelClosed | None = None
        self._closing: asyncio.Future[None] | None = None
        """Kept, so that it is not collected before it is done."""

    @classmethod
    async def open(cls, dial: Dial, verdict: Verdict) -> LastingChannel:
        """Begin a connection. Raises: ChannelClosed: the guest does not answer."""
        stream = await dial()
        secret = secrets.token_bytes(32)
        channel = cls(dial, verdict, stream, secret)
        try:
            await channel._introduce(stream, resumes=False)
        except BaseException:
            await stream.close()
            raise
        return channel

    def try_send(self, data: bytes) -> int:
        if self._ended is not None:
            raise self._ended
        return 0

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        with memoryview(data) as view:
            for start in range(0, len(view), _PIECE):
                await self._send_piece(bytes(view[start : start + _PIECE]))

    async def receive(self) -> bytes:
        while True:
            if self._ended is not None:
                raise self._ended
            stream = self._stream
            try:
                if stream is None:
                    await self._resume()
                    continue
                # What came with the reply is there before anything is waited for.
                data = self._take_records()
                if not data:
                    self._partial += await stream.receive()
                    data = self._take_records()
                if self._received - self._acknowledged >= _ACK_EVERY:
                    await self._acknowledge()
            except ChannelClosed:
                await self._break(stream)
                continue
            if data:
                return data

    def end(self, reason: ChannelClosed | None = None) -> None:
        """The guest is known to be gone, whatever the stream says."""
        if self._ended is None:
            self._ended = reason or ChannelClosed("the guest has ended")
            self._room.set()
            if self._stream is not None:
                self._closing = asyncio.ensure_future(self._stream.close())

    async def close(self) -> None:
        """Tell the guest, if that is possible, so that it waits for nobody."""
        stream, self._stream = self._stream, None
        told = self._ended is None
        self._ended = self._ended or ChannelClosed("it was closed")
        self._room.set()
        if stream is None:
            return
        if told:
            with contextlib.suppress(ChannelClosed, TimeoutError):
                async with asyncio.timeout(_BYE_SECONDS):
                    await stream.send(_HEADER.pack(_BYE, 0))
                    # The guest ends the stream when it has heard; cut before, the word may be lost on its way, and its jobs linger.
                    while True:
                        await stream.receive()
        await stream.close()

    async def _send_piece(self, piece: bytes) -> None:
        await self._room.wait()
        async with self._sending:
            if self._ended is not None:
                raise self._ended
            self._kept.append(piece)
            self._kept_bytes += len(piece)
            self._sent += len(piece)
            if self._kept_bytes >= _KEPT:
                self._room.clear()
            stream = self._stream
            if stream is None:
                return
            try:
                await stream.send(_HEADER.pack(_DATA, len(piece)) + piece)
            except ChannelClosed:
                # `receive` learns of it as well, and dials again.
                await self._break(stream)

    async def _acknowledge(self) -> None:
        if self._stream is not None:
            self._acknowledged = self._received
            async with self._sending:
                await self._stream.send(_HEADER.pack(_ACK, _COUNT.size) + _COUNT.pack(self._received))

    def _take_records(self) -> bytes:
        """Return the data of all whole records."""
        data = bytearray()
        at = 0
        with memoryview(self._partial) as view:
            while len(view) - at >= _HEADER.size:
                kind, size = _HEADER.unpack_from(view, at)
                if size > _MAX_RECORD or kind not in (_DATA, _ACK) or (kind == _ACK and size != _COUNT.size):
                    self._ended = ChannelClosed("the guest broke the protocol of lasting connections")
                    raise self._ended
                if len(view) - at - _HEADER.size < size:
                    break
                at += _HEADER.size
                if kind == _DATA:
                    data += view[at : at + size]
                else:
                    self._heard(_COUNT.unpack_from(view, at)[0])
                at += size
        del self._partial[:at]
        self._received += len(data)
        return bytes(data)

    def _heard(self, count: int) -> None:
        """The guest has everything up to `count`."""
        while self._kept and self._sent - self._kept_bytes + len(self._kept[0]) <= count:
            self._kept_bytes -= len(self._kept.popleft())
        if self._kept_bytes < _KEPT:
            self._room.set()

    async def _break(self, stream: ByteStream | None) -> None:
        if stream is not None and self._stream is stream:
            self._stream = None
            self._partial.clear()
        if stream is not None:
            await stream.close()

    async def _resume(self) -> None:
        """Dial until it works, the guest is known to be gone, or too much time has passed. Sets `_ended` in the two last cases."""
        loop = asyncio.get_running_loop()
        until, pause = loop.time() + RESUME_SECONDS, _FIRST_PAUSE_S
        while self._ended is None:
            gone = await self._verdict()
            if gone is not None:
                self._ended = gone
            elif loop.time() > until:
                self._ended = ChannelClosed(f"the connection to its guest broke, and could not be made again within {RESUME_SECONDS:g} s")
            elif await self._dialled():
                return
            else:
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE_S)
        self._room.set()

    async def _dialled(self) -> bool:
        try:
            stream = await self._dial()
        except ChannelClosed:
            return False
        try:
            async with self._sending:
                heard = await self._introduce(stream, resumes=True)
                self._heard(heard)
                await self._send_again(stream, heard)
                self._acknowledged = self._received
                self._stream = stream
        except ChannelClosed:
            await stream.close()
            return False
        except BaseException:
            await stream.close()
            raise
        return True

    async def _send_again(self, stream: ByteStream, heard: int) -> None:
        at = self._sent - self._kept_bytes
        for piece in self._kept:
            rest = piece[max(0, heard - at) :]
            at += len(piece)
            if rest:
                await stream.send(_HEADER.pack(_DATA, len(rest)) + rest)

    async def _introduce(self, stream: ByteStream, *, resumes: bool) -> int:
        """Say which connection the stream is of; return how far the guest has heard."""
        await stream.send(_MAGIC + bytes([resumes]) + self._secret + _COUNT.pack(self._received))
        reply = bytearray()
        try:
            async with asyncio.timeout(_REPLY_SECONDS):
                while len(reply) < _REPLY.size:
                    reply += await stream.receive()
        except TimeoutError:
            raise ChannelClosed("the guest does not answer") from None
        unknown, heard = _REPLY.unpack_from(reply)
        if unknown or heard > self._sent:
            self._ended = ChannelClosed("the guest does not know this connection")
            raise self._ended
        self._partial = reply[_REPLY.size :]
        return int(heard)
