"""What `b4 demo` shows: each call on a line as it ends, the diff, the verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

from b4run.cli.calls import cut, duration, subject, summary
from b4run.cli.output import printable

_SUBJECT_WIDTH = 42
_ANSWER_WIDTH = 60
_DIFF_STYLES = {"+": "green", "-": "red", "@": "cyan"}


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call of the agent, ended."""

    tool: str
    arguments: Mapping[str, Any]
    answer: str
    failed: bool
    duration_ms: float

    def as_dict(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "arguments": dict(self.arguments),
            "answer": self.answer,
            "failed": self.failed,
            "durationMs": round(self.duration_ms, 3),
        }


class View:
    """Prints to a console; colours only where the terminal has them and `NO_COLOR` is not set."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)

    def call(self, call: Call) -> None:
        line = Text("  ")
        line.append(f"{printable(call.tool):<10}", "bold")
        line.append(f"{_fit(subject(call.arguments), _SUBJECT_WIDTH):<{_SUBJECT_WIDTH}}")
        line.append(f"{duration(call.duration_ms):>10}  ", "cyan")
        line.append(cut(printable(summary(call.tool, call.answer, failed=call.failed)), _ANSWER_WIDTH), "red" if call.failed else "dim")
        self._console.print(line, soft_wrap=True)

    def diff(self, text: str) -> None:
        for line in text.splitlines():
            self._console.print(Text(printable(line), _DIFF_STYLES.get(line[:1], "")), soft_wrap=True)


def _fit(text: str, width: int) -> str:
    """Cut a text so that a blank is left behind it."""
    return cut(printable(text), width - 1)
