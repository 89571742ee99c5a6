"""One tool call on one line: what it is about, and how it went."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_SUBJECTS = ("command", "path", "subagent")


def subject(arguments: Mapping[str, Any]) -> str:
    """Return what a call is about: its command, its path, the subagent it goes to, or else its arguments."""
    for name in _SUBJECTS:
        if isinstance(arguments.get(name), str):
            return str(arguments[name])
    return json.dumps(dict(arguments), ensure_ascii=False) if arguments else ""


def summary(tool: str, answer: str, *, failed: bool) -> str:
    """Return the part of an answer that tells how the call went."""
    command = None if failed or tool != "runBash" else _command_answer(answer)
    if command is None:
        lines = answer.strip().splitlines() or [""]
        return lines[0] if len(lines) == 1 else f"{lines[0]} … {len(lines)} lines"
    said = str(command.get("stderr") or command.get("stdout") or "").strip()
    return f"exit {command['exitCode']}  {said.splitlines()[-1] if said else ''}".strip()


def duration(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.2f} s" if milliseconds >= 1000 else f"{milliseconds:.1f} ms"


def cut(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _command_answer(answer: str) -> dict[str, Any] | None:
    try:
        document = json.loads(answer)
    except ValueError:
        return None
    return document if isinstance(document, dict) and "exitCode" in document else None
