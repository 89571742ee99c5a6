"""Looking at what a thread produced: one bounded view of its text files, refused when there is anything else.

The rules are those of the specification's `formats.md`, section "Inspection". An inspection is no atomic snapshot: what moves while it
is read is refused as `changed`, within what sizes and times show.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Protocol

from b4run.errors import FileRefused, InspectionRefused

MAX_ENTRIES = 10_000
MAX_FILE_BYTES = 2_097_152
MAX_TOTAL_BYTES = 16_777_216
LARGEST_ENTRIES = 10_000
LARGEST_FILE_BYTES = 16_777_216
LARGEST_TOTAL_BYTES = 33_554_432

_LONGEST_ROOT = 1_024
_NO_LINKS: Mapping[str, str] = MappingProxyType({})
_NAME = re.compile(r"[^/\0]{1,255}")


class Entry(Protocol):
    """One file as a reader gives it; `kind` is `file`, `directory`, `symlink` or something that is refused."""

    @property
    def path(self) -> str: ...

    @property
    def kind(self) -> str: ...

    @property
    def mode(self) -> int: ...

    @property
    def target(self) -> str | None: ...


class Tree(Protocol):
    @property
    def entries(self) -> Collection[Entry]: ...

    @property
    def contents(self) -> Mapping[str, bytes]: ...


class TreeReader(Protocol):
    """What an inspection needs of a workspace reader."""

    async def stat(self, path: str, *, follow: bool = True) -> Entry: ...

    async def read_tree(
        self, path: str = ".", *, skip: Sequence[str] = (), max_entries: int, max_file_bytes: int, max_total_bytes: int
    ) -> Tree: ...


@dataclass(frozen=True, slots=True)
class Inspection:
    """What an inspection found, by path relative to its root."""

    files: Mapping[str, str]
    """Each file's text; a byte order mark is kept."""
    symlinks: Mapping[str, str]
    """The expected links, with their targets."""
    total_bytes: int
    entries: int
    """Files, folders and links below the root, skipped folders included."""


async def inspect_workspace(
    reader: TreeReader,
    *,
    root: str | None = None,
    exclude_root_directories: Sequence[str] = (),
    expected_root_symlinks: Mapping[str, str] = _NO_LINKS,
    max_entries: int = MAX_ENTRIES,
    max_file_bytes: int = MAX_FILE_BYTES,
    max_total_bytes: int = MAX_TOTAL_BYTES,
) -> Inspection:
    """Return the text of every file below `root`, a folder of the workspace (None is all of it), in one walk and one batched read.

    `exclude_root_directories` are folders directly in the root that are counted and not gone into. `expected_root_symlinks` are links
    directly in the root, with their exact targets; each must be there, and no other may be. Bounds: `max_entries` 0 to 10,000,
    `max_file_bytes` 0 to 16 MiB, `max_total_bytes` 0 to 32 MiB.

    Raises:
        InspectionRefused: kind `refused` for an executable, binary or non-UTF-8 file, one over its limit, too many entries, a link that is
            unexpected or missing, anything but files and folders, a bad name, or an excluded name that is no folder; `root_missing`, with
            `root` and `absence` (`absent` or `not_directory`) in its fields; `changed` for what moved meanwhile; `invalid_options`.
        FileRefused, SandboxUnavailable: the reader's own failures.
    """
    _check_options(root, exclude_root_directories, expected_root_symlinks, max_entries, max_file_bytes, max_total_bytes)
    await _check_root(reader, root)
    limits = {"max_entries": max_entries, "max_file_bytes": max_file_bytes, "max_total_bytes": max_total_bytes}
    try:
        tree = await reader.read_tree(root or ".", skip=exclude_root_directories, **limits)
    except FileRefused as error:
        raise _translated(error, limits) from None
    await _check_root(reader, root)
    _check_entries(tree, frozenset(exclude_root_directories), expected_root_symlinks)
    files = {path: _text(path, data) for path, data in tree.contents.items()}
    links = {entry.path: entry.target or "" for entry in tree.entries if entry.kind == "symlink"}
    return Inspection(files, links, sum(map(len, tree.contents.values())), len(tree.entries))


def _check_options(
    root: str | None, excluded: Collection[str], links: Mapping[str, str], entries: int, file_bytes: int, total_bytes: int
) -> None:
    if root is not None and not _is_root(root):
        raise _invalid(
            "root", "is not a relative path of 1 to 1,024 characters without empty, `.` or `..` segments, backslashes or controls"
        )
    if isinstance(excluded, str) or not all(_is_name(name) for name in excluded):
        raise _invalid("exclude_root_directories", "has something that is not the name of one folder")
    if not all(_is_name(name) and isinstance(target, str) and target for name, target in links.items()):
        raise _invalid("expected_root_symlinks", "has something that is not a name with its target")
    if both := sorted(set(excluded) & set(links)):
        raise _invalid("expected_root_symlinks", f"names {both[0]!r}, which is excluded as a folder")
    for option, value, largest in (
        ("max_entries", entries, LARGEST_ENTRIES),
        ("max_file_bytes", file_bytes, LARGEST_FILE_BYTES),
        ("max_total_bytes", total_bytes, LARGEST_TOTAL_BYTES),
    ):
        if type(value) is not int or not 0 <= value <= largest:
            raise _invalid(option, f"is not an integer from 0 to {largest:,}")


def _is_root(root: object) -> bool:
    if not isinstance(root, str) or not 1 <= len(root) <= _LONGEST_ROOT or "\\" in root or _has_control(root):
        return False
    return all(segment not in ("", ".", "..") for segment in root.split("/"))


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name not in (".", "..") and _NAME.fullmatch(name) is not None and not _has_control(name)


def _has_control(text: str) -> bool:
    """Control characters, and the surrogates that stand for bytes which are not UTF-8."""
    return any(unicodedata.category(character) in ("Cc", "Cs") for character in text)


async def _check_root(reader: TreeReader, root: str | None) -> None:
    """Look at every segment of the root: a link or a file on the way is no folder."""
    segments = root.split("/") if root else []
    for count in range(1, len(segments) + 1):
        path = "/".join(segments[:count])
        try:
            entry = await reader.stat(path, follow=False)
        except FileRefused as error:
            if error.kind == "not_found":
                raise _root_missing(root, "absent") from None
            if error.kind == "not_directory":
                raise _root_missing(root, "not_directory") from None
            raise
        if entry.kind != "directory":
            raise _root_missing(root, "not_directory")


def _check_entries(tree: Tree, excluded: frozenset[str], links: Mapping[str, str]) -> None:
    missing = dict(links)
    for entry in tree.entries:
        path = entry.path
        if not all(_is_name(segment) for segment in path.split("/")):
            raise _refused(path, "has a name that is not plain UTF-8 text")
        if path in excluded and entry.kind != "directory":
            raise _refused(path, f"is excluded as a folder, and is a {entry.kind}")
        if entry.kind == "symlink":
            if missing.pop(path, None) != entry.target:
                raise _refused(path, "is a symbolic link that was not expected")
        elif entry.kind == "file":
            if entry.mode & 0o111:
                raise _refused(path, "is executable")
        elif entry.kind != "directory":
            raise _refused(path, f"is a {entry.kind}")
    if missing:
        raise _refused(min(missing), "is expected to be a symbolic link, and is not there as one")


def _text(path: str, data: bytes) -> str:
    if b"\0" in data:
        raise _refused(path, "is binary: it contains a NUL byte")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _refused(path, f"is not UTF-8 text (byte {error.start})") from None


def _translated(error: FileRefused, limits: Mapping[str, int]) -> InspectionRefused | FileRefused:
    path = str(error.fields.get("path"))
    if error.kind == "too_large":
        return _refused(
            path, f"is larger than {limits['max_file_bytes']:,} bytes, or than what is left of {limits['max_total_bytes']:,} in all"
        )
    if error.kind == "too_many":
        return InspectionRefused(kind="refused", reason=f"it has more than {limits['max_entries']:,} entries, or is nested too deep")
    if error.kind in ("changed", "not_found"):
        return InspectionRefused(kind="changed", path=path, reason=f"{path!r} changed while it was read")
    return error


def _refused(path: str, reason: str) -> InspectionRefused:
    return InspectionRefused(kind="refused", path=path, reason=f"{path!r} {reason}")


def _root_missing(root: str | None, absence: str) -> InspectionRefused:
    reason = "is not there" if absence == "absent" else "is not a folder, or leads through something that is none"
    return InspectionRefused(kind="root_missing", root=root, absence=absence, reason=f"the root {root!r} {reason}")


def _invalid(option: str, reason: str) -> InspectionRefused:
    return InspectionRefused(kind="invalid_options", option=option, reason=f"option `{option}` {reason}")
