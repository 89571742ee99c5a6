"""Spans of time within a day, in minutes since midnight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Span:
    """From `start` up to, but not including, `end`."""

    start: int
    end: int

    def __post_init__(self) -> None:
        if not 0 <= self.start < self.end <= 24 * 60:
            raise ValueError(f"no span of a day: {self.start} to {self.end}")

    @property
    def minutes(self) -> int:
        return self.end - self.start


def merge(spans: Iterable[Span]) -> list[Span]:
    """Return the same time as spans that neither overlap nor touch, in order."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start <= merged[-1].end:
            merged[-1] = Span(merged[-1].start, span.end)
        else:
            merged.append(span)
    return merged


def total(spans: Iterable[Span]) -> int:
    """Return the minutes that the spans cover; time that several cover counts once."""
    return sum(span.minutes for span in merge(spans))
