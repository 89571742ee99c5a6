"""The standard streams of a program in a Pod, over the WebSocket of `pods/exec`: each message begins with the number of its stream."""

from __future__ import annotations

import json
from typing import Final

from aiohttp import ClientError, ClientWebSocketResponse, WSMsgType

from b4run.sandbox.guest.channel import ChannelClosed

PROTOCOLS: Final = ("v5.channel.k8s.io", "v4.channel.k8s.io")
_STDIN, _STDOUT, _STDERR, _STATUS = range(4)
_COMPLAINT_BYTES: Final = 4_096
_MESSAGE_BYTES: Final = 262_144
"""Of stdin in one message."""


class ExecStream:
    """A duplex byte stream over one exec. What the program complains of is kept, bounded; `failure` is why it
    ended when it failed; without `told_end` nothing is known of its end."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.complaint = b""
        self.failure: str | None = None
        self.told_end = False
        self._socket = socket

    async def receive(self) -> bytes:
        """Return the next bytes of stdout, at least one. Raises: ChannelClosed: the program or the connection has ended."""
        while True:
            message = await self._socket.receive()
            if message.type is not WSMsgType.BINARY:
                raise ChannelClosed("the connection to the Pod has ended")
            data: bytes = message.data
            if not data[1:]:
                continue
            if data[0] == _STDOUT:
                return data[1:]
            if data[0] == _STDERR:
                self.complaint += data[1 : 1 + _COMPLAINT_BYTES - len(self.complaint)]
            elif data[0] == _STATUS:
                self._end(data[1:])
                raise ChannelClosed("the program in the Pod has ended")

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Hand all of `data` to stdin; waits while the other end does not read. Raises: ChannelClosed."""
        try:
            with memoryview(data) as view:
                for start in range(0, len(view), _MESSAGE_BYTES):
                    await self._socket.send_bytes(b"\0" + bytes(view[start : start + _MESSAGE_BYTES]))
        except (ClientError, OSError) as error:
            raise ChannelClosed("the connection to the Pod has ended") from error

    async def close(self) -> None:
        """Close both directions; safe to repeat. Whoever waits in `receive` hears of it."""
        transport = self._socket._response.connection.transport if self._socket._response.connection is not None else None
        if transport is not None:
            # A close handshake would wait for a server that may be gone.
            transport.abort()
        await self._socket.close()

    def _end(self, status: bytes) -> None:
        self.told_end = True
        try:
            said = json.loads(status)
        except ValueError:
            said = {}
        if said.get("status") != "Success":
            self.failure = str(said.get("message") or "it failed")[:500]
