"""Searches a command line for commands that a denial names: everything that could run, by any spelling."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from b4run.permissions.grammar import Parsed, Unreadable, nodes, parse, read_script
from b4run.permissions.programs import EVALUATORS, WRAPPERS, acts, base_name, is_find, is_runtime, is_shell, runs_text
from b4run.permissions.words import Word, read_word

if TYPE_CHECKING:
    from tree_sitter import Node

_MAX_NESTED = 8
_MAX_READINGS = 200
_MAX_SECONDS = 0.5
_KEYWORD_COMMANDS = ("declaration_command", "unset_command", "test_command")
_RESERVED = frozenset({"!", "{", "if", "then", "elif", "else", "while", "until", "do"})
"""Words that the parser may take for a command's name where its grammar is off the shell's; the command is what follows."""
_SPLIT = re.compile(r"[^\w.+@-]+")
_QUOTES = re.compile(r"""['"\\]""")


class CommandSearch:
    """Collects what a line runs; then `runs` answers for one command after another."""

    def __init__(self) -> None:
        self.uncertain = False
        """Something runs whose name cannot be told from the text."""
        self._commands: list[tuple[str, ...]] = []
        self._loose: list[list[str]] = []
        self._code_from_input = False
        self._readings = 0
        self._started = time.monotonic()

    def read(self, text: str, *, nested: int = 0, shell: bool = True) -> None:
        """Take in shell text; `shell=False`: it may be something else, which is then no cause of doubt."""
        self._readings += 1
        late = time.monotonic() - self._started > _MAX_SECONDS
        if nested > _MAX_NESTED or self._readings > _MAX_READINGS or late:
            self.uncertain = True
            return
        parsed = parse(text)
        if parsed is None or not parsed.sound:
            self.uncertain = self.uncertain or shell
        if parsed is not None:
            self._read_tree(parsed, nested)
        if self._code_from_input or not _strict(parsed):
            self._loose.append(_tokens(text))
        if "\\\n" in text:
            self.read(text.replace("\\\n", ""), nested=nested + 1, shell=shell)

    def runs(self, rule: Sequence[str]) -> bool:
        """Return whether a command with these first words was found."""
        wanted = (base_name(rule[0]), *rule[1:])
        return any(_begins(command, wanted) for command in self._commands) or any(_in_order(tokens, wanted) for tokens in self._loose)

    def _read_tree(self, parsed: Parsed, nested: int) -> None:
        for node in nodes(parsed.root, "command", "file_redirect", "ansi_c_string", "command_substitution", *_KEYWORD_COMMANDS):
            if node.type == "command":
                self._add([_word(parsed, child) for child in node.children if child.type != "file_redirect"], nested)
            elif node.type == "file_redirect":
                self._add([_word(parsed, child) for child in _behind_target(node)], nested)
            elif node.type in _KEYWORD_COMMANDS:
                self._commands.append(tuple(parsed.text(node).split()))
            elif node.type == "ansi_c_string" or (parsed.text(node).startswith("`") and "\\" in parsed.text(node)):
                self.uncertain = True

    def _add(self, words: list[Word], nested: int) -> None:
        while words and (words[0].assignment or words[0].value in _RESERVED):
            words = words[1:]
        if not words:
            return
        name = words[0]
        self.uncertain = self.uncertain or not name.static
        self._commands.append((base_name(name.value), *(word.value for word in words[1:])))
        self._follow(name.value, words[1:], nested)

    def _follow(self, name: str, arguments: list[Word], nested: int) -> None:
        """Look into the arguments of a program that runs others."""
        program = base_name(name)
        if is_shell(name):
            self._follow_shell(arguments, nested)
        if program in WRAPPERS or is_find(name):
            self._follow_wrapper(program, arguments, nested)
        if runs_text(name) or acts(name, tuple(word.value for word in arguments)):
            self._loose.extend(_tokens(word.value) for word in arguments)
        if is_runtime(name) and all(word.value.startswith("-") for word in arguments):
            self._code_from_input = True

    def _follow_shell(self, arguments: list[Word], nested: int) -> None:
        index = next((i for i, word in enumerate(arguments) if not word.value.startswith(("-", "+"))), None)
        takes_script = any(re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", word.value) for word in arguments[: index or 0])
        if index is None or any(word.value == "-s" for word in arguments[:index]):
            self.uncertain = self.uncertain or not any(word.value in ("--version", "--help") for word in arguments)
        elif takes_script or not all(word.static for word in arguments[:index]):
            for word in arguments[index:]:
                self._read_argument(word, nested, shell=word is arguments[index])

    def _follow_wrapper(self, program: str, arguments: list[Word], nested: int) -> None:
        """Try every position as the start of a command; options of so many programs cannot be known."""
        evaluates = program in EVALUATORS
        if evaluates:
            self._read_argument(_joined(arguments), nested, shell=program == "eval")
        if program == "xargs" and any(re.match(r"-[A-Za-z]*[Ii]|--replace", word.value) for word in arguments):
            self.uncertain = True
        for index, word in enumerate(arguments):
            self._commands.append((base_name(word.value), *(rest.value for rest in arguments[index + 1 :])))
            if is_shell(word.value):
                self._follow_shell(arguments[index + 1 :], nested)
            if runs_text(word.value):
                self._loose.extend(_tokens(rest.value) for rest in arguments[index + 1 :])
            if any(sign in word.value for sign in " \t\n;&|$`("):
                self._read_argument(word, nested, shell=False)
            if program == "alias":
                self._read_argument(Word(word.value.partition("=")[2], word.static), nested, shell=False)
        first = next((word for word in arguments if not word.value.startswith("-") and not word.assignment), None)
        if first is not None and not first.static and not is_find(program):
            self.uncertain = True

    def _read_argument(self, word: Word, nested: int, *, shell: bool) -> None:
        if not word.static:
            self.uncertain = self.uncertain or shell
        self.read(word.value, nested=nested + 1, shell=shell)


def _strict(parsed: Parsed | None) -> bool:
    if parsed is None:
        return False
    try:
        read_script(parsed)
    except Unreadable:
        return False
    return True


def _word(parsed: Parsed, node: Node) -> Word:
    """Return a node as a word; what is spelled in a way of its own stays in doubt."""
    text = parsed.text(node)
    return read_word(text) or Word(_QUOTES.sub("", text), static=False)


def _behind_target(node: Node) -> list[Node]:
    """Return the words that the parser hangs on a redirection's target, which the shell takes for the command's."""
    targets = [child for child in node.children if child.is_named and child.type != "file_descriptor"]
    return targets[1:]


def _joined(words: list[Word]) -> Word:
    return Word(" ".join(word.value for word in words), all(word.static for word in words))


def _tokens(text: str) -> list[str]:
    """Return every piece of a text that could be a word, quotes taken away."""
    pieces = _SPLIT.split(_QUOTES.sub("", text)) + _SPLIT.split(_QUOTES.sub(" ", text))
    return [piece for piece in pieces if piece]


def _begins(command: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    """Return whether a command begins with the wanted words, options and their values between them passed over."""
    if command[0] != wanted[0]:
        return False
    position = 1
    for word in wanted[1:]:
        while position < len(command) and command[position] != word:
            if not (command[position].startswith("-") or command[position - 1].startswith("-")):
                return False
            position += 1
        if position == len(command):
            return False
        position += 1
    return True


def _in_order(tokens: list[str], wanted: tuple[str, ...]) -> bool:
    remaining = iter(tokens)
    return all(word in remaining for word in wanted)
