"""Shell text to simple commands, twice: a strict reading that grants may trust, and a wide one that denials search.

tree-sitter-bash finds the structure; it forgives much and reads some text unlike `/bin/sh`. The strict reading therefore accounts for every
byte: node types from a list, words spelled in a way all shells agree on, nothing between them but blanks. What is not on the list is
unknown, however harmless.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from b4run.permissions.words import Word, read_word, read_words

if TYPE_CHECKING:
    from tree_sitter import Language, Node

MAX_BYTES = 65_536
MAX_DEPTH = 64
MAX_PARSE_SECONDS = 0.25
"""Repairing errors takes the parser quadratic time; it gives up after this."""

_SLICE = 128

_STATEMENTS = frozenset({";", "&"})
_TOKENS: Mapping[str, frozenset[str]] = {
    "program": _STATEMENTS,
    "list": frozenset({"&&", "||"}),
    "pipeline": frozenset({"|"}),
    "negated_command": frozenset({"!"}),
    "redirected_statement": frozenset(),
    "heredoc_redirect": frozenset({"<<", "<<-", "&&", "||", "|", ";"}),
    "subshell": frozenset({"(", ")"}) | _STATEMENTS,
    "compound_statement": frozenset({"{", "}"}) | _STATEMENTS,
    "if_statement": frozenset({"if", "then", "fi"}) | _STATEMENTS,
    "elif_clause": frozenset({"elif", "then"}) | _STATEMENTS,
    "else_clause": frozenset({"else"}) | _STATEMENTS,
    "while_statement": frozenset({"while", "until"}) | _STATEMENTS,
    "for_statement": frozenset({"for", "in"}) | _STATEMENTS,
    "do_group": frozenset({"do", "done"}) | _STATEMENTS,
    "case_statement": frozenset({"case", "in", "esac"}) | _STATEMENTS,
    "case_item": frozenset({"(", ")", "|", ";;"}) | _STATEMENTS,
}
"""The composite nodes of the strict reading and the tokens that may stand directly in each."""

_ONE_LINE = frozenset({"command", "negated_command", "redirected_statement", "file_redirect"})
_WORDS = frozenset({"word", "number", "string", "raw_string", "concatenation", "simple_expansion", "expansion", "extglob_pattern"})
_WORD_PLACES = frozenset({"for_statement", "case_statement", "case_item"})
_LOOP_VARIABLE = re.compile(r"[a-z][a-z0-9]*")
"""Short of anything that steers a program, such as `PATH` or `http_proxy`."""

_GAP = re.compile(r"(?:[ \t\n]|(?<=[ \t])\\\n)*")
_LINE_GAP = re.compile(r"(?:[ \t]|(?<=[ \t])\\\n)*")
_METACHARACTERS = b" \t\n;&|()<>"
_REDIRECT = re.compile(r"(?P<fd>[0-9]?)(?P<operator>>>|>\||>&|<&|>|<)[ \t]*(?P<target>\S[\s\S]*)")
_HEREDOC_START = re.compile(r"(?P<quote>['\"]?)(?P<mark>[A-Za-z0-9_]+)(?P=quote)")
_HEREDOC_LIVE = re.compile(r"`|\$[({\[]|\\(?:\n|\Z)")
"""What a body without quotes runs, or how it hides its end."""


class Unreadable(Exception):
    """The text is outside the strict reading."""


@dataclass(frozen=True, slots=True)
class Simple:
    """One simple command: its words, assignments before the name included, and its text."""

    words: tuple[Word, ...]
    text: str


@dataclass(slots=True)
class Script:
    """The strict reading: every command that can run, and the files that redirections open."""

    commands: list[Simple] = field(default_factory=list)
    files: list[Word] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Parsed:
    """A tree over UTF-8 text. `sound` is False when there was an error, or no time to finish."""

    root: Node
    data: bytes
    sound: bool

    def text(self, node: Node) -> str:
        return self.data[node.start_byte : node.end_byte].decode()


def parse(text: str) -> Parsed | None:
    """Return the tree of `text`; None when it is too long, or no text that a shell is given."""
    from tree_sitter import Parser

    try:
        data = text.encode()
    except UnicodeEncodeError:
        return None
    if len(data) > MAX_BYTES or any(not sign.isprintable() and sign not in "\t\n" for sign in text):
        return None
    parser = Parser(_language())
    started, late = time.monotonic(), False

    def read(offset: int, _point: object) -> bytes:
        nonlocal late
        late = late or time.monotonic() - started > MAX_PARSE_SECONDS
        return b"" if late else data[offset : offset + _SLICE]

    root = parser.parse(read).root_node
    sound = not (late or root.has_error) and _depth_of(root) <= MAX_DEPTH
    return Parsed(root, data, sound)


@cache
def _language() -> Language:
    import tree_sitter_bash
    from tree_sitter import Language

    return Language(tree_sitter_bash.language())


def _depth_of(root: Node) -> int:
    """Return the depth of a tree, counting no further than is needed to know it is too deep."""
    level, depth = [root], 0
    while level and depth <= MAX_DEPTH:
        level = [child for node in level for child in node.children]
        depth += 1
    return depth


def nodes(root: Node, *types: str) -> Iterator[Node]:
    """Yield every node of those types, in no order."""
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node.type in types:
            yield node
        waiting.extend(node.children)


def read_script(parsed: Parsed) -> Script:
    """Return the strict reading.

    Raises:
        Unreadable: something in it is not on the list.
    """
    if not parsed.sound:
        raise Unreadable
    reader = _Reader(parsed)
    reader.visit_program()
    return reader.script


class _Reader:
    def __init__(self, parsed: Parsed) -> None:
        self._data = parsed.data
        self._root = parsed.root
        self._heredocs = 0
        self.script = Script()

    def visit_program(self) -> None:
        root = self._root
        first, last = (root.children[0].start_byte, root.children[-1].end_byte) if root.children else (0, 0)
        self._blank(0, first, _GAP)
        self._blank(last, len(self._data), _GAP)
        self._children(root)

    def _text(self, start: int, end: int) -> str:
        return self._data[start:end].decode()

    def _of(self, node: Node) -> str:
        return self._text(node.start_byte, node.end_byte)

    def _blank(self, start: int, end: int, pattern: re.Pattern[str]) -> str:
        gap = self._text(start, end)
        before = self._data[start - 1 : start].decode(errors="replace") if start else " "
        if start > end or not pattern.fullmatch(before + gap if before in " \t" else gap):
            raise Unreadable
        return gap

    def _children(self, node: Node) -> None:
        previous = None
        for child in node.children:
            if previous is not None:
                self._blank(previous.end_byte, child.start_byte, _LINE_GAP if node.type in _ONE_LINE else _GAP)
                self._apart(previous, child)
            self._visit(child, node)
            previous = child

    def _apart(self, left: Node, right: Node) -> None:
        """Words that touch are one word to the shell."""
        touching = self._data[left.end_byte - 1 : left.end_byte] + self._data[right.start_byte : right.start_byte + 1]
        if left.end_byte == right.start_byte and not any(sign in _METACHARACTERS for sign in touching):
            raise Unreadable

    def _visit(self, node: Node, parent: Node) -> None:
        kind = node.type
        if not node.is_named:
            if kind not in _TOKENS[parent.type] or node.is_missing:
                raise Unreadable
        elif kind == "comment":
            self._comment(node)
        elif kind == "command":
            self._command(node)
        elif kind == "test_command":
            self._add(self._of(node), read_words(self._of(node)))
        elif kind == "file_redirect":
            self._redirect(node)
        elif kind == "heredoc_redirect":
            self._heredoc(node)
        elif kind in _WORDS and parent.type in _WORD_PLACES:
            self._word(node)
        elif kind == "variable_name" and parent.type == "for_statement":
            self._loop_variable(node)
        elif kind in _TOKENS:
            self._children(node)
        elif not (parent.type == "heredoc_redirect" and kind in ("heredoc_start", "heredoc_body", "heredoc_end")):
            raise Unreadable

    def _word(self, node: Node) -> Word:
        word = read_word(self._of(node))
        if word is None:
            raise Unreadable
        return word

    def _loop_variable(self, node: Node) -> None:
        if not _LOOP_VARIABLE.fullmatch(self._of(node)):
            raise Unreadable

    def _comment(self, node: Node) -> None:
        before, after = self._data[: node.start_byte][-1:], self._data[node.end_byte :][:1]
        if (
            before not in (b"", b" ", b"\t", b"\n", b";")
            or after not in (b"", b"\n")
            or b"\n" in self._data[node.start_byte : node.end_byte]
        ):
            raise Unreadable

    def _command(self, node: Node) -> None:
        words, previous = [], None
        for child in node.children:
            if previous is not None:
                self._blank(previous.end_byte, child.start_byte, _LINE_GAP)
                self._apart(previous, child)
            if child.type == "file_redirect":
                self._redirect(child)
            else:
                words.append(self._word(child))
            previous = child
        self._add(self._of(node), tuple(words))

    def _add(self, text: str, words: tuple[Word, ...] | None) -> None:
        if not words:
            raise Unreadable
        self.script.commands.append(Simple(words, text))

    def _redirect(self, node: Node) -> None:
        found = _REDIRECT.fullmatch(self._of(node))
        target = read_word(found["target"]) if found else None
        if found is None or target is None or not target.static:
            raise Unreadable
        if found["operator"] not in (">&", "<&"):
            self.script.files.append(target)
        elif not re.fullmatch(r"[0-9]|-", target.value):
            raise Unreadable

    def _heredoc(self, node: Node) -> None:
        """Find the end of the body again, as the shell does: the first line that is the mark."""
        self._heredocs += 1
        parts = {child.type: child for child in node.children}
        start, body, end = (parts.get(name) for name in ("heredoc_start", "heredoc_body", "heredoc_end"))
        mark = _HEREDOC_START.fullmatch(self._of(start)) if start else None
        if self._heredocs > 1 or start is None or end is None or mark is None:
            raise Unreadable
        line_end = self._data.find(b"\n", start.end_byte)
        lines = self._text(line_end + 1, len(self._data)).split("\n")
        stripped = [line.lstrip("\t") if "<<-" in parts else line for line in lines]
        position = stripped.index(mark["mark"]) if mark["mark"] in stripped else -1
        content = "\n".join(lines[:position])
        after = line_end + 1 + len("\n".join(lines[: position + 1]).encode())
        if position < 0 or end.end_byte != after or (body is not None and body.start_byte <= line_end):
            raise Unreadable
        if not mark["quote"] and _HEREDOC_LIVE.search(content):
            raise Unreadable
        self._heredoc_line(node, line_end)

    def _heredoc_line(self, node: Node, line_end: int) -> None:
        """What stands behind the mark on its line is ordinary shell text; nothing of it may reach into the body."""
        inside = ("heredoc_body", "heredoc_end")
        previous = None
        for child in node.children:
            if child.type in inside:
                continue
            if child.end_byte > line_end:
                raise Unreadable
            if previous is not None:
                self._blank(previous.end_byte, child.start_byte, _LINE_GAP)
            self._visit(child, node)
            previous = child
        if previous is not None:
            self._blank(previous.end_byte, line_end, _LINE_GAP)
