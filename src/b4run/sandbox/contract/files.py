"""Working on a thread's files: entries, contents, and what reads and writes them.

Paths are relative to the workspace, or absolute inside the sandbox; names that are not UTF-8 travel as surrogate escapes (`os.fsdecode`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    BLOCK = "block"
    CHAR = "char"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file as `stat`, `list` (`path` is the name) and `walk` (`path` is relative to what was asked) give it."""

    path: str
    kind: FileKind
    mode: int
    """Permission bits."""
    size: int
    mtime_ns: int
    target: str | None = None
    version: bytes = b""
    """Opaque; equal as long as nobody wrote the file."""


@dataclass(frozen=True, slots=True)
class FileContent:
    data: bytes
    size: int
    """Of the whole file."""
    version: bytes


@dataclass(frozen=True, slots=True)
class FileLines:
    """Lines `first` to `last` of `total`, joined as they stand in the file."""

    data: bytes
    first: int
    last: int
    total: int
    size: int
    version: bytes


@dataclass(frozen=True, slots=True)
class DirectoryPage:
    names: Sequence[str]
    more: bool


@dataclass(frozen=True, slots=True)
class RealPath:
    path: str
    """Canonical and absolute inside the sandbox."""
    exists: bool
    inside: bool
    """At or below the workspace."""


@dataclass(frozen=True, slots=True)
class FileTree:
    """What is below a folder: `entries` depth first in byte order, and what the regular files among them hold, by path."""

    entries: Sequence[FileEntry]
    contents: Mapping[str, bytes]


class FileReader(Protocol):
    """Looks at the workspace. Every method raises `FileRefused` with its `kind`, or `SandboxLost`.

    What leads out of the workspace is refused with kind `outside`, unless `beyond=True`; then the path must be canonical (as
    `real_path` gives it) and no symlink is followed.
    """

    async def stat(self, path: str, *, follow: bool = True, beyond: bool = False) -> FileEntry: ...

    async def real_path(self, path: str) -> RealPath: ...

    async def list(self, path: str = ".", *, after: str | None = None, limit: int = 10_000, beyond: bool = False) -> DirectoryPage:
        """Return names in byte order, from behind `after` on, at most `limit` (1 to 100,000)."""

    async def entries(self, path: str = ".", *, after: str | None = None, limit: int = 10_000) -> Sequence[FileEntry]:
        """As `list`, with kind, mode, size and version of each."""

    async def walk(self, path: str = ".", *, limit: int = 100_000, exclude: Sequence[str] = ()) -> Sequence[FileEntry]:
        """Return everything below in one answer, depth first in byte order, links not followed; `too_many` past `limit`."""

    async def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, max_size: int | None = 67_108_864, beyond: bool = False
    ) -> FileContent:
        """Return bytes; `too_large` when the file is over `max_size`."""

    async def read_lines(
        self, path: str, *, first: int = 1, last: int | None = None, limit: int = 262_144, beyond: bool = False
    ) -> FileLines:
        """Return whole lines of a file of any size; `bad_range` beyond its end, `too_large` when they are over `limit` bytes."""

    def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """Read a file of any size piece by piece, with back-pressure."""


class FileBackend(FileReader, Protocol):
    """Works on the workspace, under the rules of `FileReader`."""

    async def write(
        self,
        path: str,
        data: bytes | AsyncIterator[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        expect: bytes | None = None,
        create: bool = False,
        beyond: bool = False,
    ) -> FileEntry:
        """Replace the file in one step; `changed` unless it still has version `expect`, `exists` if `create` and it is there."""

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> bool: ...

    async def remove(self, path: str, *, recursive: bool = False) -> int: ...

    async def rename(self, source: str, target: str, *, replace: bool = True) -> None: ...
