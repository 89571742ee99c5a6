"""The guest's stream through a hijacked `exec` of `b4-guest connect`.

aiodocker makes the connection; from then on this protocol reads and writes it, which spares each message two queues and a task. Nothing
can come before: the relay is silent until it hears something. The engine
multiplexes stdout and stderr of the relay: a byte that names the stream, three zeros, a length of four bytes, then that many bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiodocker.stream import Stream

from b4run.sandbox.guest.channel import ChannelClosed

_HEADER = 8
_STDOUT = 1
_COMPLAINT_BYTES = 4_096
_HIGH_WATER = 1_048_576
"""Unsent bytes from which a sender waits."""


class ExecChannel(asyncio.Protocol):
    """A duplex byte stream over one exec. What the relay complains of is kept, bounded, to explain a failed start."""

    def __init__(self, stream: Stream) -> None:
        """Take over the connection of a started exec. Raises: ChannelClosed: it has ended already."""
        connection = stream._resp.connection if stream._resp is not None else None
        if connection is None or connection.transport is None:
            raise ChannelClosed("the engine closed the stream")
        self.complaint = b""
        self._stream = stream
        self._transport = connection.transport
        self._transport.set_write_buffer_limits(high=_HIGH_WATER)
        self._on_data: Callable[[memoryview], None] | None = None
        self._on_closed: Callable[[ChannelClosed], None] | None = None
        self._header = bytearray()
        self._kind = 0
        self._left = 0
        self._ended = False
        self.explain: Callable[[], Awaitable[ChannelClosed]] | None = None
        """Asked once at the end for what to tell; must be bounded."""
        self._last: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()

    def start(self, on_data: Callable[[memoryview], None], on_closed: Callable[[ChannelClosed], None]) -> None:
        self._on_data, self._on_closed = on_data, on_closed
        self._transport.set_protocol(self)
        if self._transport.is_closing():
            self.connection_lost(None)

    def try_send(self, data: bytes) -> int:
        if self._ended:
            raise ChannelClosed("the engine closed the stream")
        if not self._writable.is_set():
            return 0
        self._transport.write(data)
        return len(data)

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        await self._writable.wait()
        if self._ended:
            raise ChannelClosed("the engine closed the stream")
        self._transport.write(bytes(data))
        await self._writable.wait()

    def end(self) -> None:
        """The other end is known to be gone, whatever the stream says."""
        self.connection_lost(None)

    async def close(self) -> None:
        self._ended = True
        if self._last is not None and self._last is not asyncio.current_task():
            self._last.cancel()
        self._writable.set()
        self._transport.abort()
        await self._stream.close()

    # What the event loop calls

    def data_received(self, data: bytes) -> None:
        with memoryview(data) as view:
            at = 0
            while at < len(view):
                if self._left == 0:
                    at += self._read_header(view[at:])
                    continue
                end = min(at + self._left, len(view))
                self._left -= end - at
                self._deliver(view[at:end])
                at = end

    def _read_header(self, view: memoryview) -> int:
        """Take what is missing of a header; return how much that was."""
        taken = min(_HEADER - len(self._header), len(view))
        self._header += view[:taken]
        if len(self._header) == _HEADER:
            self._kind, self._left = self._header[0], int.from_bytes(self._header[4:])
            self._header.clear()
        return taken

    def _deliver(self, piece: memoryview) -> None:
        if self._kind != _STDOUT:
            self.complaint += bytes(piece[: _COMPLAINT_BYTES - len(self.complaint)])
        elif self._on_data is not None:
            self._on_data(piece)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._writable.set()
        if not self._ended:
            self._ended = True
            if self.explain is None:
                self._tell(ChannelClosed("the guest has ended"))
            else:
                self._last = asyncio.get_running_loop().create_task(self._ask(self.explain))

    async def _ask(self, explain: Callable[[], Awaitable[ChannelClosed]]) -> None:
        self._tell(await explain())

    def _tell(self, closed: ChannelClosed) -> None:
        if self._on_closed is not None:
            self._on_closed(closed)
