"""The duplex byte stream that a provider dials: all that the guest's client knows of a transport."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, runtime_checkable


class ChannelClosed(Exception):
    """The other end is gone. Channels raise it; the client turns it into `SandboxLost`, with its `cause`: `oom` or `lost`."""

    def __init__(self, reason: str = "", cause: str = "lost") -> None:
        super().__init__(reason)
        self.cause = cause


class SendingChannel(Protocol):
    """The half of a channel that sends; one task does."""

    async def send(self, data: bytes | bytearray | memoryview) -> None:
        """Hand all of `data` to the transport; returns when it may be reused. Waits while the other end does not read.

        Raises:
            ChannelClosed: the stream has ended or failed.
        """

    def try_send(self, data: bytes) -> int:
        """Send what fits now without waiting and return how many bytes that was; 0 where the transport cannot.

        Raises:
            ChannelClosed: the stream has ended or failed.
        """

    async def close(self) -> None:
        """Close both directions; safe to repeat."""


class PullChannel(SendingChannel, Protocol):
    """A duplex byte stream that is awaited for what it receives, by one task."""

    async def receive(self) -> bytes | bytearray | memoryview:
        """Return the next bytes, at least one, valid until the next call.

        Raises:
            ChannelClosed: the stream has ended or failed.
        """


@runtime_checkable
class PushChannel(SendingChannel, Protocol):
    """A duplex byte stream that calls with what it receives: that spares each answer a switch of tasks."""

    def start(self, on_data: Callable[[memoryview], None], on_closed: Callable[[ChannelClosed], None]) -> None:
        """From now on hand received bytes, valid for the call, to `on_data`; at the end call `on_closed` once."""


Channel = PullChannel | PushChannel
"""A duplex byte stream to the guest of one sandbox."""
