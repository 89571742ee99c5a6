"""The hours of each day, from a CSV file with the columns `day,start,length`."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import dataclass

from worklog.durations import format_duration, parse_duration
from worklog.spans import Span, total


@dataclass(frozen=True)
class Entry:
    """One line of the log."""

    day: str
    span: Span


def read_entries(lines: Iterable[str]) -> list[Entry]:
    """Return the entries of a log.

    Raises:
        ValueError: a line holds no time of day or no duration.
    """
    return [_entry(row) for row in csv.DictReader(lines)]


def _entry(row: dict[str, str]) -> Entry:
    hours, _, minutes = row["start"].partition(":")
    start = int(hours) * 60 + int(minutes)
    return Entry(row["day"], Span(start, start + parse_duration(row["length"])))


def report(entries: Iterable[Entry]) -> list[str]:
    """Return one line for each day, in order."""
    days: dict[str, list[Span]] = {}
    for entry in entries:
        days.setdefault(entry.day, []).append(entry.span)
    return [f"{day}  {format_duration(total(spans))}" for day, spans in sorted(days.items())]
