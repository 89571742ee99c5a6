"""One shell word: what it says once quotes are removed, and whether the shell would change it first.

Only spellings on which every POSIX shell agrees are words here. Bash's own (`$'…'`, `$"…"`, extended globs) are not: dash reads them
differently, so what follows them could be hidden.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PARAMETER = rf"\$(?:{_NAME}|\{{{_NAME}\}}|[0-9@*#?$!-])"
_BARE = r"[A-Za-z0-9_@%+=:,./*?\[\]{}~^!#\u0080-\U0010ffff-]"
_PIECE = re.compile(
    rf"(?P<bare>{_BARE}+)"
    r"|\\(?P<escaped>[^\n])"
    r"|'(?P<single>[^']*)'"
    rf'|"(?P<double>(?:[^"\\`$]|\\[\s\S]|{_PARAMETER}|\$(?=["\s]))*)"'
    rf"|(?P<parameter>{_PARAMETER})"
)
_DOUBLE_ESCAPE = re.compile(r'\\([$`"\\])|\\\n')
_DOUBLE_PARAMETER = re.compile(rf"(?<!\\)(?:\\\\)*{_PARAMETER}")
_ASSIGNMENT = re.compile(rf"{_NAME}(?:\[[^\]]*\])?\+?=")
_BETWEEN = re.compile(r"[ \t]+")


@dataclass(frozen=True, slots=True)
class Word:
    """One word of a command."""

    value: str
    """Without its quotes; parameters stand as they are written."""
    static: bool
    """The program gets `value` itself, whatever variables and files there are."""
    assignment: bool = False
    """It sets a variable when it stands before the command's name."""


def read_word(text: str) -> Word | None:
    """Return what `text` says as one word, or None when it is none that every shell reads alike."""
    if text.startswith("#") or not text:
        return None
    position, value, static, bare = 0, [], True, []
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            return None
        kind = str(piece.lastgroup)
        content = piece[kind]
        if kind == "double":
            static = static and not _DOUBLE_PARAMETER.search(content)
            content = _DOUBLE_ESCAPE.sub(lambda found: found[1] or "", content)
        if kind == "bare":
            bare.append(content)
        value.append(content)
        static = static and kind != "parameter"
        position = piece.end()
    static = static and not _changed_by_shell(text, "".join(bare))
    return Word("".join(value), static, bool(_ASSIGNMENT.match(text)))


def _changed_by_shell(text: str, bare: str) -> bool:
    """Whether a tilde, a glob or braces make other words of it. A bracket alone is the name of a program."""
    braces = "{" in bare and ("," in bare or ".." in bare)
    return text.startswith("~") or braces or (text != "[" and any(sign in bare for sign in "*?["))


def plain_words(text: str) -> tuple[str, ...] | None:
    """Return the values of a rule's words; None when it is more than one simple command of fixed words."""
    words = read_words(text.strip(" \t"))
    if words is None or not all(word.static for word in words):
        return None
    return tuple(word.value for word in words)


def read_words(text: str) -> tuple[Word, ...] | None:
    """Return the words of a text that holds nothing but words and blanks."""
    words, position = [], 0
    while position < len(text):
        end = _word_end(text, position)
        word = read_word(text[position:end])
        if word is None:
            return None
        words.append(word)
        gap = _BETWEEN.match(text, end)
        position = gap.end() if gap else end
        if gap is None and end < len(text):
            return None
    return tuple(words) or None


def _word_end(text: str, position: int) -> int:
    while position < len(text):
        piece = _PIECE.match(text, position)
        if piece is None:
            return position
        position = piece.end()
    return position
