"""Time that passes when a test says so."""

from __future__ import annotations

import asyncio


class ManualClock:
    """A `Clock` whose sleepers wake as `advance` passes their moment."""

    def __init__(self) -> None:
        self._now = 0.0
        self._sleepers: list[tuple[float, asyncio.Future[None]]] = []

    def now(self) -> float:
        return self._now

    async def sleep(self, seconds: float) -> None:
        if seconds > 0:
            wakes = asyncio.get_running_loop().create_future()
            self._sleepers.append((self._now + seconds, wakes))
            await wakes

    async def advance(self, seconds: float) -> None:
        """Let the time pass step by step, and everyone who wakes run until nothing more happens at that moment."""
        end = self._now + seconds
        await settle()
        while due := sorted((sleeper for sleeper in self._sleepers if sleeper[0] <= end), key=lambda sleeper: sleeper[0])[:1]:
            self._sleepers.remove(due[0])
            self._now = max(self._now, due[0][0])
            if not due[0][1].done():
                due[0][1].set_result(None)
            await settle()
        self._now = end


async def settle() -> None:
    """Let every task run until it waits for something outside."""
    for _ in range(50):
        await asyncio.sleep(0)
