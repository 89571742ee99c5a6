"""Reading a source from a tar as it arrives: regular files alone, in any order, plain or gzip, verified like a bundle.

A tar has no digest of its own; whoever uploads one says which digest it must come to.
"""

from __future__ import annotations

import queue
import tarfile
import tempfile
import threading
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from b4run.errors import WorkspaceInvalid
from b4run.workspace.bundle import MAX_FILES, SourceDigest, SourceEntry, check_bounds
from b4run.workspace.paths import PathSet, check_path
from b4run.workspace.receiving import BundleMalformed

_PIECE = 1_048_576
_LONGEST_HEADER = 65_536
_MAX_MEMBERS = 2 * MAX_FILES
"""Folders included."""
_GZIP = b"\x1f\x8b"
_AHEAD = 4
"""Pieces that may wait for the reader."""
_WAIT_S = 600.0
"""How long either side may wait for the other: an upload's own time limit is shorter."""


class _Member(tarfile.TarInfo):
    """A member whose extended headers are bounded: `tarfile` reads them whole, whatever size they claim."""

    def _proc_pax(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        self._check_header()
        return super()._proc_pax(archive)  # type: ignore[misc, no-any-return]

    def _proc_gnulong(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        self._check_header()
        return super()._proc_gnulong(archive)  # type: ignore[misc, no-any-return]

    def _check_header(self) -> None:
        if self.size > _LONGEST_HEADER:
            raise WorkspaceInvalid(reason=f"an entry of the tar has a header of more than {_LONGEST_HEADER:,} bytes")


class ReceivedTar:
    """A verified source whose bytes wait in a file. Close it."""

    def __init__(self, digest: str, files: list[tuple[SourceEntry, int]], spool: IO[bytes]) -> None:
        self.digest = digest
        self.manifest = tuple(entry for entry, _ in files)
        self._files = files
        self._spool = spool

    def pieces(self) -> Iterator[bytes]:
        """The bytes of all files in ascending order of their paths, one after the other."""
        for entry, at in self._files:
            yield from _read(self._spool, at, entry.size)

    def close(self) -> None:
        self._spool.close()


class TarReceiver:
    """Feed it the body as it comes, then `finish`. Both may block, so they belong in a thread; a second thread unpacks."""

    def __init__(self, folder: Path | None = None) -> None:
        self._pieces: queue.Queue[bytes | None] = queue.Queue(_AHEAD)
        self._spool: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - handed over, or closed with this object
        self._files: list[tuple[SourceEntry, int]] = []
        self._failure: BundleMalformed | WorkspaceInvalid | None = None
        self._source = _Pieces(self._pieces)
        self._thread = threading.Thread(target=self._unpack, name="b4run-tar", daemon=True)
        self._thread.start()

    def feed(self, data: bytes) -> None:
        """Take the next bytes. Raises: BundleMalformed: it is no tar. WorkspaceInvalid: it holds what a source may not."""
        if self._failure is None:
            self._pieces.put(data, timeout=_WAIT_S)
        if self._failure is not None:
            raise self._failure

    def finish(self) -> ReceivedTar:
        """Return the source once all has been fed. Raises: as `feed`."""
        self._pieces.put(None, timeout=_WAIT_S)
        self._thread.join(_WAIT_S)
        if self._failure is not None:
            raise self._failure
        self._spool.flush()
        self._files.sort(key=lambda file: file[0].path)
        digest = SourceDigest()
        for entry, at in self._files:
            digest.add(entry.path, b"".join(_read(self._spool, at, entry.size)), entry.executable)
        return ReceivedTar(digest.hexdigest(), self._files, self._spool)

    def close(self) -> None:
        """Drop what was received; not after `finish` has handed it over."""
        # Whoever unpacks may wait for a piece, and whoever feeds for room.
        while self._thread.is_alive():
            try:
                self._pieces.put_nowait(None)
            except queue.Full:
                self._pieces.get_nowait()
            self._thread.join(0.05)
        self._spool.close()

    def _unpack(self) -> None:
        try:
            self._read_members()
        except (BundleMalformed, WorkspaceInvalid) as error:
            self._failure = error
        except (tarfile.TarError, EOFError, OSError, ValueError, zlib.error, queue.Empty) as error:
            self._failure = BundleMalformed(f"it is not a tar that can be read ({type(error).__name__})")
        finally:
            # What still comes must not block its feeder.
            with suppress(queue.Empty):
                self._source.drain()

    def _read_members(self) -> None:
        paths, total, at = PathSet(), 0, 0
        # Only what unpacks with little work; and no transparent choice, which would take more kinds.
        mode = "r|gz" if self._source.peek(2) == _GZIP else "r|"
        with tarfile.TarFile.open(None, mode, self._source, tarinfo=_Member) as tar:  # type: ignore[call-overload]
            for count, member in enumerate(tar):
                if count >= _MAX_MEMBERS:
                    raise WorkspaceInvalid(reason=f"the tar has more than {_MAX_MEMBERS:,} entries")
                # Else it would keep every entry.
                tar.members = []
                name = member.name.removeprefix("./")
                if member.isdir():
                    continue
                if not member.isreg():
                    raise WorkspaceInvalid(reason=f"{name[:80]!r} is neither a regular file nor a folder")
                check_path(name)
                paths.add(name)
                total += member.size
                check_bounds(len(self._files) + 1, name, member.size, total)
                content = tar.extractfile(member)
                assert content is not None, "it is a regular file"
                while piece := content.read(_PIECE):
                    self._spool.write(piece)
                self._files.append((SourceEntry(name, member.size, bool(member.mode & 0o111)), at))
                at += member.size


class _Pieces:
    """What `tarfile` reads from: the pieces that are fed."""

    def __init__(self, pieces: queue.Queue[bytes | None]) -> None:
        self._pieces = pieces
        self._rest = b""
        self._ended = False

    def peek(self, size: int) -> bytes:
        self._rest = self.read(size) + self._rest
        return self._rest[:size]

    def read(self, size: int) -> bytes:
        while len(self._rest) < size and not self._ended:
            piece = self._pieces.get(timeout=_WAIT_S)
            if piece is None:
                self._ended = True
            else:
                self._rest += piece
        data, self._rest = self._rest[:size], self._rest[size:]
        return data

    def drain(self) -> None:
        """Read away what is left: padding behind the archive's end, or what comes after a failure."""
        while not self._ended:
            self._ended = self._pieces.get(timeout=_WAIT_S) is None


def _read(spool: IO[bytes], at: int, size: int) -> Iterator[bytes]:
    spool.seek(at)
    while size:
        piece = spool.read(min(_PIECE, size))
        if not piece:
            raise WorkspaceInvalid(reason="the received files cannot be read back")
        size -= len(piece)
        yield piece
