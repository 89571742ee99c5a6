"""The arithmetic of `editFile`: exact replacement in a text, everything around it untouched."""

from __future__ import annotations

from dataclasses import dataclass

from b4run.errors import EditRefused

LISTED_LINES = 20


@dataclass(frozen=True, slots=True)
class Edit:
    """A text with its replacements made; `lines` are their lines in the old text."""

    text: str
    lines: tuple[int, ...]
    changed: bool

    def told(self, path: str) -> str:
        count = len(self.lines)
        found = f"{count} occurrence{'s' if count != 1 else ''}"
        more = f" and {count - LISTED_LINES} more" if count > LISTED_LINES else ""
        where = f"line{'s' if count != 1 else ''} {', '.join(map(str, self.lines[:LISTED_LINES]))}{more}"
        if not self.changed:
            return f"No change to {path}: oldText and newText are equal ({found}, {where})."
        return f"Replaced {found} in {path} ({where})."


def replace_exactly(text: str, old: str, new: str, *, every: bool, path: str) -> Edit:
    """Replace the one occurrence of `old`, or with `every` all of them from left to right.

    Raises:
        EditRefused: it is not there, or it is there more than once (overlaps count) and `every` is not set.
    """
    places = _places(text, old, overlapping=not every)
    if not places:
        raise EditRefused(path=path, reason="oldText is not in it", remedy=_absent_remedy(text, old))
    if len(places) > 1 and not every:
        raise EditRefused(
            path=path,
            reason=f"oldText is in it {len(places)} times",
            remedy="Give more of the text around the place that is meant, or set replaceAll.",
        )
    changed = old != new
    lines = tuple(_line_numbers(text, places))
    return Edit(text.replace(old, new) if changed else text, lines, changed)


def _places(text: str, old: str, *, overlapping: bool) -> list[int]:
    step = 1 if overlapping else len(old)
    places: list[int] = []
    at = text.find(old)
    while at >= 0:
        places.append(at)
        at = text.find(old, at + step)
    return places


def _line_numbers(text: str, places: list[int]) -> list[int]:
    numbers, line, done = [], 1, 0
    for place in places:
        line += text.count("\n", done, place)
        done = place
        numbers.append(line)
    return numbers


def _absent_remedy(text: str, old: str) -> str:
    if "\r\n" in text and "\n" in old.replace("\r\n", ""):
        return "The file ends its lines with CRLF and oldText with a bare LF: write \\r\\n in oldText and newText, or replace line by line."
    return "Read the file again and copy the text exactly, white space included."
