"""What commands print: data on stdout, everything else on stderr; nothing a sandbox wrote reaches the terminal unescaped."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, TextIO

from b4run.cli.failure import UsageError

_COLOURS = {"red": "31", "yellow": "33", "green": "32", "bold": "1", "dim": "2"}


def print_json(document: Any) -> None:
    """Print one JSON document; names that are not UTF-8 stay recognisable by their surrogate escapes."""
    print(json.dumps(document, indent=2))


def note(text: str) -> None:
    """Tell the person at the terminal something that is not data."""
    print(text, file=sys.stderr)


def confirm(question: str) -> bool:
    """Ask a yes-or-no question at the terminal; anything but yes is no.

    Raises:
        UsageError: there is no terminal to ask at.
    """
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Nobody can answer here; say --yes.")
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def printable(text: str) -> str:
    """Show control characters and what is not UTF-8 as escapes, so that no name or command can act on the terminal."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape", "surrogatepass").decode() for char in text)


def coloured(text: str, colour: str, stream: TextIO | None = None) -> str:
    """Colour for a terminal, unless `NO_COLOR` is set."""
    target = stream or sys.stdout
    if os.environ.get("NO_COLOR") or not target.isatty():
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def table(headers: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return left-aligned columns under their headers; the last column is not padded."""
    lines = [list(headers), *([printable(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)


def size_text(size: int | None) -> str:
    """Return a size for people, such as `3.2 MiB`; `-` when it is not known."""
    if size is None:
        return "-"
    amount = float(size)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
