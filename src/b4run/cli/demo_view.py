"""What `b4 demo` shows: each call on a line as it ends, the diff, the verdict."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.text import Text

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

    @property
    def subject(self) -> str:
        """What it is about: the command, or the path."""
        return str(self.arguments.get("command") or self.arguments.get("path") or ".")

    @property
    def summary(self) -> str:
        """The part of the answer that tells how it went."""
        command = _command_answer(self.answer) if self.tool == "runBash" and not self.failed else None
        if command is None:
            return _first_line(self.answer)
        said = str(command.get("stderr") or command.get("stdout") or "").strip()
        return f"exit {command['exitCode']}  {said.rpartition(chr(10))[2]}".strip()

    def as_dict(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "arguments": dict(self.arguments),
            "answer": self.answer,
            "failed": self.failed,
            "durationMs": round(self.duration_ms, 3),
        }


def _command_answer(answer: str) -> dict[str, Any] | None:
    try:
        document = json.loads(answer)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "exitCode" in document else None


def _first_line(answer: str) -> str:
    lines = answer.strip().splitlines() or [""]
    return lines[0] if len(lines) == 1 else f"{lines[0]} … {len(lines)} lines"


class View:
    """Prints to a console; colours only where the terminal has them and `NO_COLOR` is not set."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def note(self, text: str, style: str = "") -> None:
        self._console.print(Text(text, style), soft_wrap=True)

    def call(self, call: Call) -> None:
        line = Text("  ")
        line.append(f"{printable(call.tool):<10}", "bold")
        line.append(f"{_cut(call.subject, _SUBJECT_WIDTH):<{_SUBJECT_WIDTH}}")
        line.append(f"{_duration(call.duration_ms):>10}  ", "cyan")
        line.append(_cut(call.summary, _ANSWER_WIDTH), "red" if call.failed else "dim")
        self._console.print(line, soft_wrap=True)

    def diff(self, text: str) -> None:
        for line in text.splitlines():
            self._console.print(Text(printable(line), _DIFF_STYLES.get(line[:1], "")), soft_wrap=True)


def _cut(text: str, width: int) -> str:
    shown = printable(text)
    return shown if len(shown) < width else f"{shown[: width - 2]}…"


def _duration(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"
