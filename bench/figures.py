"""What is measured: named figures, each one async function that returns its median."""

from __future__ import annotations

import statistics
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

Measure = Callable[[], Awaitable[float]]


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. `goal` and the ratio to `floor` are stated beside the value, never asserted."""

    name: str
    measure: Measure
    goal: float | None = None
    floor: str | None = None
    floor_goal: float | None = None
    more_is_better: bool = False
    absence: Callable[[], str | None] = lambda: None
    """Says why it cannot be measured here, if so."""


async def median_ms(
    once: Callable[[], Awaitable[object]], *, rounds: int, warmup: int = 3, after: Callable[[], Awaitable[object]] | None = None
) -> float:
    """Return the median duration of `once` in milliseconds. `after` follows each, even one that raised, and is not counted."""
    durations = []
    for _ in range(warmup + rounds):
        start = time.perf_counter()
        try:
            await once()
            durations.append(time.perf_counter() - start)
        finally:
            if after is not None:
                await after()
    return statistics.median(durations[warmup:]) * 1_000
