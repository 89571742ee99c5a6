"""The guest's stream through a hijacked `exec` of `b4-guest connect`."""

from __future__ import annotations

from aiodocker.exceptions import DockerError
from aiodocker.stream import Stream
from aiohttp import ClientError

from b4run.sandbox.guest.channel import ChannelClosed

_STDOUT = 1
_COMPLAINT_BYTES = 4_096


class ExecChannel:
    """A duplex byte stream over one exec. What the relay complains of is kept, bounded, to explain a failed start."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.complaint = b""

    async def receive(self) -> bytes:
        while True:
            try:
                message = await self._stream.read_out()
            except (DockerError, ClientError, OSError) as error:
                raise ChannelClosed("the engine closed the stream") from error
            if message is None:
                raise ChannelClosed("the guest has ended")
            if message.stream == _STDOUT:
                if message.data:
                    return message.data
            elif len(self.complaint) < _COMPLAINT_BYTES:
                self.complaint += message.data[: _COMPLAINT_BYTES - len(self.complaint)]

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self._stream.write_in(bytes(data))
        except (DockerError, ClientError, OSError, RuntimeError) as error:
            raise ChannelClosed("the engine closed the stream") from error

    def try_send(self, data: bytes) -> int:
        return 0

    async def close(self) -> None:
        await self._stream.close()
