"""A channel over one connected stream socket, such as one end of a socketpair whose other end is the guest's stdin."""

from __future__ import annotations

import asyncio
import contextlib
import mmap
import socket
from collections.abc import Callable
from typing import Final

from b4run.sandbox.guest.channel import ChannelClosed

RECEIVE_SIZE: Final = 1_048_576
BUFFER_SIZE: Final = 1_048_576
"""Asked of the kernel for each direction; it may grant less."""

_NO_WAIT: Final = socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL


class SocketChannel:
    """Owns `sock` from now on. Made and used inside a running event loop."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_SIZE)
        self._sock = sock
        self._loop = asyncio.get_running_loop()
        # Mapped, not cleared: pages cost nothing before something comes.
        self._buffer = memoryview(mmap.mmap(-1, RECEIVE_SIZE))
        self._on_data: Callable[[memoryview], None] | None = None
        self._on_closed: Callable[[ChannelClosed], None] | None = None

    def start(self, on_data: Callable[[memoryview], None], on_closed: Callable[[ChannelClosed], None]) -> None:
        self._on_data, self._on_closed = on_data, on_closed
        self._loop.add_reader(self._sock, self._readable)

    def _readable(self) -> None:
        try:
            size = self._sock.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self._ended(_closed(error))
            return
        if size == 0:
            self._ended(ChannelClosed("the guest has ended"))
        elif self._on_data is not None:
            self._on_data(self._buffer[:size])

    def _ended(self, reason: ChannelClosed) -> None:
        self._loop.remove_reader(self._sock)
        if self._on_closed is not None:
            self._on_closed(reason)

    async def receive(self) -> memoryview:
        try:
            size = await self._loop.sock_recv_into(self._sock, self._buffer)
        except OSError as error:
            raise _closed(error) from None
        if size == 0:
            raise ChannelClosed("the guest has ended")
        return self._buffer[:size]

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self._loop.sock_sendall(self._sock, data)
        except OSError as error:
            raise _closed(error) from None

    def try_send(self, data: bytes) -> int:
        try:
            return self._sock.send(data, _NO_WAIT)
        except (BlockingIOError, InterruptedError):
            return 0
        except OSError as error:
            raise _closed(error) from None

    async def close(self) -> None:
        if self._sock.fileno() < 0:
            return
        self._loop.remove_reader(self._sock)
        self._loop.remove_writer(self._sock)
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        self._on_data = self._on_closed = None


def _closed(error: OSError) -> ChannelClosed:
    if isinstance(error, (BrokenPipeError, ConnectionResetError)):
        return ChannelClosed("the guest has ended")
    return ChannelClosed(error.strerror or type(error).__name__)
