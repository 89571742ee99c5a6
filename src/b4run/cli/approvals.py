"""Asking the person at the terminal before a call that no rule covers."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Literal

from b4run.cli.aio import read_line
from b4run.cli.output import coloured, note, printable
from b4run.permissions import always_means

Answer = Literal["once", "always", "deny"]

_ANSWERS: Mapping[str, Answer] = {"y": "once", "yes": "once", "o": "once", "once": "once", "a": "always", "always": "always"}
_SHOWN = 2_000


async def ask(interrupt: Mapping[str, Any]) -> Answer:
    """Show one permission request and return the decision; anything but a clear yes, and the end of input, is no."""
    note(coloured("The agent asks to", "yellow", sys.stderr) + f" {_subject(interrupt)}")
    note(f"    always: {printable(always_means(interrupt))}, in this thread")
    print("  [y] once  [a] always  [n] no: ", end="", file=sys.stderr, flush=True)
    return _ANSWERS.get((await read_line() or "").strip().lower(), "deny")


def _subject(interrupt: Mapping[str, Any]) -> str:
    """Say what is asked for, with everything that could act on the terminal escaped."""
    detail = interrupt.get("detail", {})
    match interrupt.get("kind"):
        case "command":
            return f"run:\n    {_shown(detail.get('command'))}"
        case "path":
            return f"use {_shown(detail.get('operation'))} outside its workspace:\n    {_shown(detail.get('path'))}"
        case "tool":
            return f"call {_shown(detail.get('toolName'))}:\n    {_shown(detail.get('argsPreview'))}"
        case "subagent":
            return f"hand work to {_shown(detail.get('subagentName'))}:\n    {_shown(detail.get('inputPreview'))}"
        case kind:
            return f"do something of kind {_shown(kind)}:\n    {_shown(detail)}"


def _shown(value: Any) -> str:
    text = str(value)
    cut = text if len(text) <= _SHOWN else f"{text[:_SHOWN]} … ({len(text):,} characters)"
    return "\n    ".join(printable(line) for line in cut.split("\n"))
