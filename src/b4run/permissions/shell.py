"""What a rule about commands covers.

A grant covers a command line only when every simple command in it is covered, on word boundaries, in the strict reading. A denial hits
when its command stands anywhere in the line, also behind `env`, `sudo` or `sh -c`, under any path and quoting. It is a guard against
mistakes, not a wall: a script or program may do the same without its name being seen. The sandbox is the wall.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum

from b4run.permissions.grammar import MAX_BYTES, Script, Simple, Unreadable, parse, read_script
from b4run.permissions.programs import DIRECTORY_CHANGERS, acts, is_find, only_exact
from b4run.permissions.search import CommandSearch
from b4run.permissions.words import plain_words

_DEVICES = frozenset({"/dev/null", "/dev/stdin", "/dev/stdout", "/dev/stderr"})


class Hit(Enum):
    """What denials say about a command line."""

    NO = "no"
    YES = "yes"
    UNKNOWN = "unknown"
    """What it runs cannot be told from its text."""


def covering_rule(command: str, rules: Sequence[str], workspace_root: str = "/workspace") -> str | None:
    """Return the rule that allows a command line (the first one needed, when its parts need several), or None.

    A rule that is the whole line, to the letter, always allows it.
    """
    if command in rules:
        return command
    prefixes = [(rule, words) for rule in rules if (words := plain_words(rule)) and not only_exact(words)]
    parsed = parse(command) if prefixes else None
    if parsed is None:
        return None
    try:
        script = read_script(parsed)
    except Unreadable:
        return None
    if not script.commands or not _stays_inside(script, workspace_root):
        return None
    found = [next((rule for rule, words in prefixes if _covers(words, part)), None) for part in script.commands]
    return found[0] if all(found) else None


def _covers(rule: tuple[str, ...], command: Simple) -> bool:
    """Return whether a command begins with the rule's words and its further words change nothing about what runs."""
    words = command.words
    head, rest = words[: len(rule)], words[len(rule) :]
    if len(head) < len(rule) or not all(word.static and word.value == text for word, text in zip(head, rule, strict=True)):
        return False
    name = next((index for index, word in enumerate(words) if not word.assignment), None)
    if name is None or name >= len(rule) or only_exact(rule[name:]):
        return False
    if is_find(rule[name]) and not all(word.static for word in rest):
        return False
    return not acts(rule[name], tuple(word.value for word in words[name + 1 :]))


def _stays_inside(script: Script, root: str) -> bool:
    """Return whether redirections stay in the workspace, as far as names tell; after `cd` a relative name tells nothing."""
    names = [next((word.value for word in command.words if not word.assignment), "") for command in script.commands]
    moves = any(name in DIRECTORY_CHANGERS for name in names)
    if moves and any("/" in name and not name.startswith("/") for name in names):
        return False
    return all(_file_inside(target.value, root, moves) for target in script.files)


def _file_inside(path: str, root: str, moves: bool) -> bool:
    if path in _DEVICES:
        return True
    if ".." in path.split("/"):
        return False
    return path.startswith(f"{root}/") if path.startswith("/") else not moves


def denial(command: str, rules: Sequence[str]) -> tuple[Hit, str | None]:
    """Return whether one of the rules forbids a command line, and which.

    Wide on purpose: words between a command and its subcommand that look like options are passed over (`git -C x push` is hit by
    `git push`), wrappers' arguments are tried at every position, and text that was not read strictly is searched word by word.
    """
    wanted = {rule: words for rule in rules if (words := plain_words(rule))}
    if not rules:
        return Hit.NO, None
    if len(command) > MAX_BYTES:
        return Hit.UNKNOWN, None
    search = CommandSearch()
    search.read(command)
    for rule, words in wanted.items():
        if search.runs(words):
            return Hit.YES, rule
    return (Hit.UNKNOWN if search.uncertain or len(wanted) < len(set(rules)) else Hit.NO), None


_GLOB_TAIL = re.compile(r"(?:^|[\s:])\*$")


def rule_fault(rule: str, *, denies: bool) -> str | None:
    """Return why a text is no rule about commands, or None."""
    if _GLOB_TAIL.search(rule):
        return "ends in `*`; leave it out: a rule covers whatever words follow"
    if not denies:
        return None
    if plain_words(rule) is None:
        return "is no simple command of fixed words; a denial names a command, such as 'rm' or 'git push'"
    return None
