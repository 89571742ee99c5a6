"""What waits to be sent on a channel, in order and within a bound."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Final

from b4run.sandbox.guest.channel import ChannelClosed, SendingChannel

SOFT_LIMIT: Final = 1_048_576
"""Bytes waiting above which `full` asks senders to wait."""
HARD_LIMIT: Final = 8 * 1_048_576
"""Bytes waiting above which the other end counts as one that does not read."""


class Outbox:
    """Sends at once what the transport takes; the rest goes through a task that lives as long as something waits."""

    def __init__(
        self, channel: SendingChannel, spawn: Callable[[Coroutine[Any, Any, None]], object], on_closed: Callable[[ChannelClosed], None]
    ) -> None:
        self._channel = channel
        self._spawn = spawn
        self._on_closed = on_closed
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._closed = False
        self._room = asyncio.Event()
        self._room.set()

    @property
    def full(self) -> bool:
        return self._size > SOFT_LIMIT

    async def room(self) -> None:
        """Wait until it is not full, or closed."""
        await self._room.wait()

    def send(self, data: bytes) -> None:
        """Send `data` in its turn. A transport that fails is told to `on_closed`; after that nothing is sent."""
        if self._closed:
            return
        sent = 0
        if not self._waiting:
            try:
                sent = self._channel.try_send(data)
            except ChannelClosed as closed:
                self._on_closed(closed)
                return
            if sent == len(data):
                return
            self._spawn(self._drain())
        self._waiting.append(memoryview(data)[sent:])
        self._size += len(data) - sent
        if self._size > SOFT_LIMIT:
            self._room.clear()
        if self._size > HARD_LIMIT:
            self._on_closed(ChannelClosed("the guest does not read"))

    def close(self) -> None:
        """Drop what waits and let nobody wait for room."""
        self._closed = True
        self._waiting.clear()
        self._size = 0
        self._room.set()

    async def _drain(self) -> None:
        try:
            while self._waiting:
                piece = self._waiting[0]
                await self._channel.send(piece)
                if self._closed:
                    return
                self._waiting.popleft()
                self._size -= len(piece)
                if self._size <= SOFT_LIMIT:
                    self._room.set()
        except ChannelClosed as closed:
            self._on_closed(closed)
