"""The duplex byte stream that a provider dials: all that the guest's client knows of a transport."""

from __future__ import annotations

from typing import Protocol


class ChannelClosed(Exception):
    """The other end is gone. Providers raise it from `receive` and `send`; the client turns it into `SandboxLost`."""


class Channel(Protocol):
    """A duplex byte stream to the guest of one sandbox. One task receives, one sends."""

    async def receive(self) -> bytes | bytearray | memoryview:
        """Return the next bytes, at least one, valid until the next call.

        Raises:
            ChannelClosed: the stream has ended or failed.
        """

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Hand all of `data` to the transport; returns when it may be reused. Waits while the other end does not read.

        Raises:
            ChannelClosed: the stream has ended or failed.
        """

    def try_send(self, data: bytes) -> int:
        """Send what fits now without waiting and return how many bytes that was; 0 where the transport cannot."""

    async def close(self) -> None:
        """Close both directions; safe to repeat."""
