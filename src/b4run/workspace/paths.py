"""Portable paths: what a workspace's source may call its files, so that they mean the same on every system.

The rules are those of the specification's `formats.md`, section "Source bundle".
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from b4run.errors import WorkspaceInvalid

LONGEST_PATH = 1_024
LONGEST_SEGMENT = 255

_DEVICE = re.compile(r"(?:CON|PRN|AUX|NUL|COM[1-9]|LPT[1-9])(?:\..*)?", re.IGNORECASE)
_CHARACTERS = re.compile(r"[A-Za-z0-9._ /-]*")


def path_fault(path: object) -> str | None:
    """Return why `path` is not portable, or None."""
    if not isinstance(path, str):
        return "is not a string"
    if not 1 <= len(path) <= LONGEST_PATH:
        return f"has {len(path):,} characters; a path has 1 to {LONGEST_PATH:,}"
    if not _CHARACTERS.fullmatch(path):
        return "has a character other than ASCII letters, digits, `.`, `_`, `-`, space and `/`"
    return next((fault for segment in path.split("/") if (fault := _segment_fault(segment))), None)


def _segment_fault(segment: str) -> str | None:
    if not segment:
        return "has an empty segment"
    if len(segment) > LONGEST_SEGMENT:
        return f"has a segment of more than {LONGEST_SEGMENT} characters"
    if segment in (".", ".."):
        return f"has the segment `{segment}`"
    if segment[0] == " " or segment[-1] in " ." or "  " in segment:
        return "has a segment that begins or ends with a space, ends with a dot, or has two spaces in a row"
    if _DEVICE.fullmatch(segment):
        return f"has the segment {segment!r}, which is a device on Windows"
    return None


def check_path(path: object, what: str = "path") -> str:
    """Return `path`. Raises: WorkspaceInvalid: it is not portable."""
    if fault := path_fault(path):
        shown = path[:80] if isinstance(path, str) else type(path).__name__
        raise WorkspaceInvalid(reason=f"{what} {shown!r} {fault}")
    assert isinstance(path, str)
    return path


class PathSet:
    """Paths that can stand beside one another on any file system: unlike but for case they differ, and none lies under a file."""

    def __init__(self, paths: Iterable[str] = ()) -> None:
        self._files: dict[str, str] = {}
        self._folders: dict[str, str] = {}
        for path in paths:
            self.add(path)

    def add(self, path: str) -> None:
        """Take in one more portable path. Raises: WorkspaceInvalid: it conflicts with another."""
        folded = path.lower()
        if other := self._files.get(folded) or self._folders.get(folded):
            raise WorkspaceInvalid(reason=f"path {path!r} conflicts with {other!r}")
        at = path.find("/")
        while at >= 0:
            folder = path[:at]
            known = self._folders.setdefault(folder.lower(), folder)
            if known != folder or folder.lower() in self._files:
                raise WorkspaceInvalid(reason=f"path {path!r} conflicts with {self._files.get(folder.lower(), known)!r}")
            at = path.find("/", at + 1)
        self._files[folded] = path
