"""A guest played by the test: it sends the frames it is told to, right or wrong."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgpack

from b4run.sandbox.guest.channel import Channel
from b4run.sandbox.guest.client import GuestClient, Timing
from b4run.sandbox.guest.frames import FrameType
from b4run.sandbox.guest.handle import GuestSandbox
from b4run.sandbox.guest.stream_channel import SocketChannel

HELLO = {
    "protocol": 1,
    "version": "0.0.0",
    "capabilities": ["pidfd"],
    "instance": bytes(range(16)),
    "pid": 1,
    "uid": 0,
    "gid": 0,
    "root": b"/workspace",
}
EMPTY = {"total": 0, "head": 0, "tail": 0}
RESULT = {
    "job": 1,
    "cause": "exit",
    "exit_code": 0,
    "duration_us": 5,
    "user_us": 1,
    "system_us": 1,
    "peak_kb": 9,
    "stdout": EMPTY,
    "stderr": EMPTY,
}
VERSION = bytes(40)
ENTRY = {"name": b"a", "kind": "file", "mode": 0o644, "size": 1, "mtime_ns": 1, "version": VERSION}


class Peer:
    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._loop = asyncio.get_running_loop()

    async def raw(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)

    async def send(self, kind: int, stream: int, message: Any = None, *, payload: bytes | None = None) -> None:
        body = msgpack.packb(message) if payload is None else payload
        await self.raw(struct.pack(">IBI", 5 + len(body), kind, stream) + body)

    async def data(self, stream: int, lane: int, data: bytes) -> None:
        await self.send(FrameType.DATA, stream, payload=bytes([lane]) + data)

    async def end(self, stream: int, lane: int) -> None:
        await self.send(FrameType.END, stream, payload=bytes([lane]))

    async def respond(self, stream: int, **fields: Any) -> None:
        await self.send(FrameType.RESPONSE, stream, fields)

    async def refuse(self, stream: int, code: str, **fields: Any) -> None:
        await self.send(FrameType.ERROR, stream, {"code": code, "message": "no"} | fields)

    async def frame(self) -> tuple[int, int, Any]:
        """Return the next frame of the host; its payload is decoded where it is a message."""
        length, kind, stream = struct.unpack(">IBI", await self._exactly(9))
        payload = await self._exactly(length - 5)
        if kind in (FrameType.HELLO, FrameType.REQUEST, FrameType.CANCEL):
            return kind, stream, msgpack.unpackb(payload)
        return kind, stream, payload

    async def expect(self, kind: int) -> tuple[int, Any]:
        got, stream, payload = await asyncio.wait_for(self.frame(), 5)
        assert got == kind, (FrameType(got), payload)
        return stream, payload

    async def closed(self) -> bool:
        """Return whether the host has closed its end, after whatever it still sent."""
        async with asyncio.timeout(5):
            while True:
                try:
                    if not await self._loop.sock_recv(self.sock, 65_536):
                        return True
                except ConnectionResetError:
                    return True

    async def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            piece = await self._loop.sock_recv(self.sock, size - len(data))
            if not piece:
                raise EOFError
            data += piece
        return data


class PlainChannel:
    """A channel that is awaited and never sends at once, as over HTTP or a pipe to another program."""

    def __init__(self, sock: socket.socket) -> None:
        inner = SocketChannel(sock)
        self.receive, self.send, self.close = inner.receive, inner.send, inner.close

    def try_send(self, data: bytes) -> int:
        return 0


@asynccontextmanager
async def connected(
    timing: Timing | None = None, *, dial: Callable[[socket.socket], Channel] = SocketChannel
) -> AsyncIterator[tuple[Peer, GuestSandbox, GuestClient]]:
    ours, theirs = socket.socketpair()
    peer = Peer(theirs)
    try:
        await peer.send(FrameType.HELLO, 0, HELLO)
        client = await GuestClient.connect(dial(ours), thread_id="t-1", environment={"A": "1"}, timing=timing)

        async def nothing_more() -> None:
            return

        sandbox = GuestSandbox(client, aclose=nothing_more)
        try:
            assert await peer.expect(FrameType.HELLO) == (0, {"protocol": 1, "env": {b"A": b"1"}})
            yield peer, sandbox, client
        finally:
            await sandbox.aclose()
    finally:
        theirs.close()
