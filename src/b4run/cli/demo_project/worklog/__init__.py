"""Adds up working time: durations, spans of time, and a report by day."""

from worklog.durations import format_duration, parse_duration
from worklog.report import Entry, read_entries, report
from worklog.spans import Span, merge, total

__all__ = ["Entry", "Span", "format_duration", "merge", "parse_duration", "read_entries", "report", "total"]
