"""A run on a terminal: the agent's text on stdout as it comes, its calls on stderr."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Self

from b4run.agents import Chunk, Event, SubagentEnd, SubagentEvent, SubagentStart, ToolCall, ToolResult
from b4run.cli.calls import cut, duration, subject, summary
from b4run.cli.output import coloured, note, printable

_WIDTH = 100


class Screen:
    """Shows the events of a run in their order; leaving it closes the line that the agent's text left open."""

    def __init__(self) -> None:
        self._subjects: dict[str, str] = {}
        self._mid_line = False

    def show(self, event: Event) -> None:
        match event:
            case Chunk(text=text):
                self._say(text)
            case SubagentEvent(event=inner, depth=depth) if not isinstance(inner, Chunk):
                self._call(inner, depth)
            case ToolCall() | ToolResult():
                self._call(event, 0)
            case SubagentStart(name=name, depth=depth):
                self._note(f"{_indent(depth)}{printable(name)} begins")
            case SubagentEnd(name=name, depth=depth, error=error):
                self._note(f"{_indent(depth)}{printable(name)} {'ends' if error is None else f'failed: {printable(error)}'}")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._close_line()

    def _close_line(self) -> None:
        if self._mid_line:
            print(flush=True)
            self._mid_line = False

    def _say(self, text: str) -> None:
        shown = "\n".join(printable(line) for line in text.split("\n"))
        print(shown, end="", flush=True)
        self._mid_line = not shown.endswith("\n") if shown else self._mid_line

    def _call(self, event: ToolCall | ToolResult, depth: int) -> None:
        if isinstance(event, ToolCall):
            self._subjects[event.id] = _described(event.name, event.input)
            self._note(coloured(f"{_indent(depth)}→ {self._subjects[event.id]}", "dim", sys.stderr))
            return
        mark, colour = ("✗", "red") if event.is_error else ("✓", "green")
        told = cut(printable(summary(event.name, event.output, failed=event.is_error)), _WIDTH)
        asked = self._subjects.pop(event.id, printable(event.name))
        self._note(f"{_indent(depth)}{coloured(mark, colour, sys.stderr)} {cut(asked, _WIDTH // 2)}  {duration(event.duration_ms)}  {told}")

    def _note(self, text: str) -> None:
        self._close_line()
        note(text)


def _described(tool: str, arguments: Mapping[str, object]) -> str:
    return cut(f"{printable(tool)} {printable(subject(arguments))}".strip(), _WIDTH)


def _indent(depth: int) -> str:
    return "  " * depth
