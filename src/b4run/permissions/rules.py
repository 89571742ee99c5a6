"""Modes and lists of rules: what they may hold, and what each kind of rule matches."""

from __future__ import annotations

import json
import os
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from b4run.errors import ConfigurationError
from b4run.permissions import shell

MODE_VARIABLE = "B4_PERMISSIONS_MODE"
MAX_PATTERN = 4_096
"""Characters of one rule or grant."""


class PermissionMode(StrEnum):
    """What happens to a call that no rule knows: a person is asked, it is refused, or it is allowed. Denials hold in each."""

    INTERACTIVE = "interactive"
    NON_INTERACTIVE = "non-interactive"
    BYPASS = "bypass"


class Key(StrEnum):
    """What a rule is about, as lists spell it."""

    BASH = "bash"
    READ_FILE = "readFile"
    WRITE_FILE = "writeFile"
    LIST_DIR = "listDir"
    TOOL = "tool"
    SUBAGENT = "subagent"

    @property
    def is_path(self) -> bool:
        return self in (Key.READ_FILE, Key.WRITE_FILE, Key.LIST_DIR)


def mode_in_force(configured: PermissionMode | str, environ: Mapping[str, str] | None = None) -> PermissionMode:
    """Return the configured mode, or what `B4_PERMISSIONS_MODE` puts in its place for this process.

    Raises:
        ConfigurationError: one of them is no mode.
    """
    override = (os.environ if environ is None else environ).get(MODE_VARIABLE)
    where, value = ("permissions.mode", configured) if override is None else (MODE_VARIABLE, override)
    try:
        return PermissionMode(value)
    except ValueError:
        allowed = ", ".join(mode.value for mode in PermissionMode)
        raise ConfigurationError(reason=f"{where} is {value!r}; allowed: {allowed}") from None


@dataclass(frozen=True, slots=True)
class RuleLists:
    """Rules by key, as one `allow` or `deny` block holds them. Build them with `read_rules`."""

    rules: Mapping[Key, tuple[str, ...]] = field(default_factory=dict)

    def of(self, key: Key) -> tuple[str, ...]:
        return self.rules.get(key, ())


@dataclass(frozen=True, slots=True)
class ThreadRules:
    """A thread's own lists. `allow` stands in place of the app's; the app's denials hold beside `deny`."""

    allow: RuleLists = field(default_factory=RuleLists)
    deny: RuleLists = field(default_factory=RuleLists)


def read_rules(block: object, *, where: str, denies: bool = False) -> RuleLists:
    """Return the lists of a block such as `{"bash": ["npm test"]}`; `where` is its key, such as `permissions.allow`.

    Raises:
        ConfigurationError: an unknown key, or a rule that could never match or would match otherwise than it reads.
    """
    if not isinstance(block, Mapping):
        raise ConfigurationError(reason=f"{where}: must be a mapping of keys to lists, got {type(block).__name__}")
    rules: dict[Key, tuple[str, ...]] = {}
    for name, patterns in block.items():
        if name not in list(Key):
            raise ConfigurationError(reason=f"{where}.{name}: unknown key; known: {', '.join(Key)}")
        if not isinstance(patterns, (list, tuple)):
            raise ConfigurationError(reason=f"{where}.{name}: must be a list of texts, got {type(patterns).__name__}")
        for index, pattern in enumerate(patterns):
            fault = rule_fault(Key(name), pattern, denies=denies)
            if fault is not None:
                raise ConfigurationError(reason=f"{where}.{name}[{index}]: {pattern!r} {fault}")
        rules[Key(name)] = tuple(patterns)
    return RuleLists(rules)


def rule_fault(key: Key, pattern: object, *, denies: bool = False) -> str | None:
    """Return why a value is no rule of that key, or None."""
    if not isinstance(pattern, str):
        return f"must be text, not {type(pattern).__name__}"
    if not pattern.strip():
        return "is blank"
    if "\0" in pattern or len(pattern) > MAX_PATTERN:
        return f"has a NUL or more than {MAX_PATTERN:,} characters"
    if key is Key.BASH:
        return shell.rule_fault(pattern, denies=denies)
    if key.is_path:
        return _path_fault(pattern)
    if key is Key.SUBAGENT and _pair(pattern) is None:
        return 'must be a JSON pair of parent route and name, such as \'["/fix","review"]\''
    return None


def _path_fault(pattern: str) -> str | None:
    if not pattern.startswith("/"):
        return "must be absolute, as the sandbox sees it, such as '/etc/ssl/'"
    if pattern.removesuffix("/") != posixpath.normpath(pattern).removesuffix("/") or pattern.startswith("//"):
        return "must have no '.', '..' or empty segments"
    if any(sign in pattern for sign in "*?"):
        return "has a `*` or `?`; rules about paths are prefixes, not globs"
    return None


def subagent_pattern(parent_route: str, name: str) -> str:
    """Return the rule for one parent and child, spelled as the original spells it."""
    return json.dumps([parent_route, name], ensure_ascii=False, separators=(",", ":"))


def _pair(pattern: str) -> tuple[str, str] | None:
    try:
        pair = json.loads(pattern)
    except ValueError:
        return None
    if isinstance(pair, list) and len(pair) == 2 and all(isinstance(part, str) for part in pair):
        return pair[0], pair[1]
    return None


def matching_rule(key: Key, candidate: str, rules: Sequence[str]) -> str | None:
    """Return the first rule that covers the candidate of any key but `bash`.

    A path's rule covers it and what is below it (with a `/` at its end: only what is below); the others must be equal.
    """
    if key.is_path:
        return next((rule for rule in rules if _covers_path(rule, candidate)), None)
    if key is Key.SUBAGENT:
        return next((rule for rule in rules if _pair(rule) == _pair(candidate)), None)
    return candidate if candidate in rules else None


def _covers_path(rule: str, path: str) -> bool:
    return path == rule or path.startswith(rule if rule.endswith("/") else f"{rule}/")
