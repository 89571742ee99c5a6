"""Capturing a workspace's source from an app's folder: exactly the files that were named, or nothing.

The rules are those of the specification's `formats.md`, section "Workspace definition and capture". Nothing is opened through a symbolic
link, nothing blocks on a pipe, and what changes meanwhile is noticed by device, inode, mode, size and times: that is change detection,
no atomic snapshot.
"""

from __future__ import annotations

import asyncio
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from b4run.errors import CaptureRefused, WorkspaceInvalid
from b4run.workspace.bundle import SourceBundle, SourceFile, check_bounds, create_source_bundle
from b4run.workspace.captured import CapturedWorkspace, EnvironmentLink
from b4run.workspace.definition import ExtraFile, WorkspaceDefinition, WorkspaceSource
from b4run.workspace.paths import PathSet, check_path

MAX_LOOKED_AT = 10_000
_CHUNK = 65_536
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


async def capture_workspace_definition(root: str | os.PathLike[str], definition: WorkspaceDefinition) -> CapturedWorkspace:
    """Return what `definition` names in the app's folder `root`.

    Raises:
        CaptureRefused: a file is missing, not named, or no regular file; a path leads through a link; something changed meanwhile.
        WorkspaceInvalid: a path is not portable, something conflicts, or there is too much of it.
    """
    links = tuple(EnvironmentLink(path, target) for path, target in definition.environment_links.items())
    source = await capture_workspace_source(root, definition.source)
    return CapturedWorkspace(source, links, definition.baseline)


async def capture_workspace_source(root: str | os.PathLike[str], source: WorkspaceSource) -> SourceBundle:
    """Return the bundle of the files that `source` names. Raises: as `capture_workspace_definition`."""
    given_up = threading.Event()
    try:
        return await asyncio.to_thread(_capture, Path(root), source, given_up)
    finally:
        # The thread looks at it between steps when the caller was cancelled.
        given_up.set()


@dataclass(frozen=True, slots=True)
class _Seen:
    """What tells one state of a file from another."""

    device: int
    inode: int
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result, *, inside: bool = True) -> _Seen:
        """`inside` False: of a folder whose content does not matter."""
        times = (status.st_size, status.st_mtime_ns, status.st_ctime_ns) if inside else (0, 0, 0)
        return cls(status.st_dev, status.st_ino, status.st_mode, *times)


@dataclass(slots=True)
class _Inventory:
    """Everything that was looked at, by path below the app's folder."""

    excluded: frozenset[str]
    seen: dict[str, _Seen] = field(default_factory=dict)
    files: list[str] = field(default_factory=list)
    total: int = 0

    def note(self, path: str, status: os.stat_result) -> None:
        """Record what stands at `path`; it must be what stood there before."""
        seen = _Seen.of(status, inside=path not in self.excluded)
        if self.seen.setdefault(path, seen) != seen:
            raise _changed(path)
        if len(self.seen) > MAX_LOOKED_AT + 1:
            raise CaptureRefused(reason=f"there are more than {MAX_LOOKED_AT:,} files and folders to look at")


def _capture(root: Path, source: WorkspaceSource, given_up: threading.Event) -> SourceBundle:
    _check_names(source)
    base = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        before = _inventory(base, source, given_up)
        _check_inventory(before, source)
        files = [_included(base, before, source, name, given_up) for name in source.include]
        files += [_extra(base, before, extra, given_up) for extra in source.files]
        after = _inventory(base, source, given_up)
        for extra in source.files:
            if extra.file is not None:
                with _opened(base, extra.file, _FILE, after):
                    pass
        if changed := sorted(path for path in before.seen.keys() | after.seen.keys() if before.seen.get(path) != after.seen.get(path)):
            raise _changed(changed[0])
    finally:
        os.close(base)
    return create_source_bundle(files)


def _check_names(source: WorkspaceSource) -> None:
    """Everything that needs no look at the disk."""
    if source.directory != ".":
        check_path(source.directory, "directory")
    for name in source.include:
        check_path(name, "included path")
    for name in source.exclude_directories:
        check_path(name, "excluded directory")
    PathSet(source.include)
    included = [f"{name.lower()}/" for name in source.include]
    for name in source.exclude_directories:
        excluded = f"{name.lower()}/"
        if overlap := next((path for path in included if path.startswith(excluded) or excluded.startswith(path)), None):
            raise CaptureRefused(reason=f"the excluded directory {name!r} and the included file {overlap[:-1]!r} overlap")
    for extra in source.files:
        check_path(extra.path, "path of an extra file")
        if extra.file is not None:
            check_path(extra.file, "extra file")


def _below(directory: str, name: str) -> str:
    return name if directory == "." else f"{directory}/{name}"


def _changed(path: str) -> CaptureRefused:
    return CaptureRefused(reason=f"{path!r} changed while it was captured")


def _go_on(given_up: threading.Event) -> None:
    if given_up.is_set():
        raise CaptureRefused(reason="the capture was cancelled")


def _inventory(base: int, source: WorkspaceSource, given_up: threading.Event) -> _Inventory:
    found = _Inventory(frozenset(_below(source.directory, name) for name in source.exclude_directories))
    for path in sorted(found.excluded):
        with _opened(base, path, _FOLDER, found):
            pass
    waiting = [source.directory]
    while waiting:
        _go_on(given_up)
        folder = waiting.pop()
        with _opened(base, folder, _FOLDER, found) as descriptor:
            for name in sorted(os.listdir(descriptor)):
                path = _below(folder, name)
                status = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                found.note(path, status)
                if stat.S_ISDIR(status.st_mode):
                    if path not in found.excluded:
                        waiting.append(path)
                elif stat.S_ISREG(status.st_mode):
                    found.files.append(path)
                    found.total += status.st_size
                    check_bounds(len(found.files), path, status.st_size, found.total)
                else:
                    raise CaptureRefused(reason=f"{path!r} is neither a file nor a folder")
    return found


def _check_inventory(found: _Inventory, source: WorkspaceSource) -> None:
    there = set(found.files)
    named = {_below(source.directory, name) for name in source.include}
    if missing := sorted(named - there):
        raise CaptureRefused(reason=f"{missing[0]!r} is included, and is not there as a file ({len(missing)} of {len(named)})")
    if extra := sorted(there - named):
        raise CaptureRefused(reason=f"{extra[0]!r} is there, and is neither included nor excluded ({len(extra)} such files)")


def _included(base: int, found: _Inventory, source: WorkspaceSource, name: str, given_up: threading.Event) -> SourceFile:
    data, mode = _read(base, found, _below(source.directory, name), given_up)
    return SourceFile(name, data, bool(mode & 0o111))


def _extra(base: int, found: _Inventory, extra: ExtraFile, given_up: threading.Event) -> SourceFile:
    if extra.file is not None:
        data, mode = _read(base, found, extra.file, given_up)
        return SourceFile(extra.path, data, bool(mode & 0o111))
    try:
        return SourceFile(extra.path, (extra.text or "").encode(), bool(extra.executable))
    except UnicodeEncodeError:
        raise WorkspaceInvalid(reason=f"the text of {extra.path!r} is not valid Unicode") from None


def _read(base: int, found: _Inventory, path: str, given_up: threading.Event) -> tuple[bytes, int]:
    """Return a file's bytes and mode; it is what the inventory saw, before and after."""
    _go_on(given_up)
    with _opened(base, path, _FILE, found) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise CaptureRefused(reason=f"{path!r} is not a regular file")
        check_bounds(1, path, status.st_size, 0)
        pieces, left = [], status.st_size
        # One byte more than there should be, so that growth shows.
        while piece := os.read(descriptor, min(_CHUNK, left + 1)):
            left -= len(piece)
            if left < 0:
                break
            pieces.append(piece)
        if left or _Seen.of(os.fstat(descriptor)) != _Seen.of(status):
            raise _changed(path)
    return b"".join(pieces), status.st_mode


@contextmanager
def _opened(base: int, path: str, flags: int, found: _Inventory) -> Iterator[int]:
    """Open `path` below `base` one segment at a time, never through a link, and note each."""
    segments = [] if path == "." else path.split("/")
    at, reached = os.dup(base), path
    try:
        for index, segment in enumerate(segments):
            reached = "/".join(segments[: index + 1])
            below = os.open(segment, flags if reached == path else _FOLDER, dir_fd=at)
            os.close(at)
            at = below
            found.note(reached, os.fstat(at))
        if not segments:
            found.note(".", os.fstat(at))
        yield at
    except FileNotFoundError:
        raise CaptureRefused(reason=f"{reached!r} is not there") from None
    except OSError as error:
        raise CaptureRefused(reason=f"{reached!r} is a link, of another kind, or cannot be read ({error.strerror})") from None
    finally:
        os.close(at)
