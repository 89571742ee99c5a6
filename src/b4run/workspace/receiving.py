"""Reading a source bundle as it arrives: every byte is checked on its way to a file, so that no bundle is ever whole in memory.

Takes what `verify_source_bundle` takes, in any spelling that JSON allows; at no time more than one file's bytes are held.
"""

from __future__ import annotations

import binascii
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from b4run.errors import WorkspaceInvalid
from b4run.workspace.bundle import (
    MAX_FILE_BYTES,
    MAX_FILES,
    MAX_TOTAL_BYTES,
    SourceDigest,
    SourceEntry,
    check_bounds,
    is_digest,
)
from b4run.workspace.paths import PathSet, check_path

_PIECE = 1_048_576
_LONGEST_TOKEN = 8_192
"""A path of 1,024 characters, each of them escaped, with its quotes."""
_SPACE = b" \t\r\n"
_BEGINS_VALUE = b'{["-0123456789tfn'
_PLAIN_BASE64 = re.compile(rb"[A-Za-z0-9+/=]*")
_KEYS = ("version", "digest", "files")
_FILE_KEYS = ("path", "base64", "executable")


class BundleMalformed(Exception):
    """What arrived is not JSON: {0}"""


class ReceivedBundle:
    """A verified bundle whose bytes wait in a file. Close it."""

    def __init__(self, digest: str, manifest: tuple[SourceEntry, ...], spool: IO[bytes]) -> None:
        self.digest = digest
        self.manifest = manifest
        self._spool = spool

    def pieces(self) -> Iterator[bytes]:
        """The bytes of all files, one after the other."""
        self._spool.seek(0)
        while piece := self._spool.read(_PIECE):
            yield piece

    def close(self) -> None:
        self._spool.close()


class BundleReceiver:
    """Feed it the body as it comes, then `finish`. Blocks while it works, so it belongs in a thread.

    `folder` holds the file that the bytes go to; it has no name, so nothing is left of it.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._parser = self._document()
        self._buffer = bytearray()
        self._at = 0
        self._ended = False
        self._spool: IO[bytes] = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - handed over, or closed with this object
        self._manifest: list[SourceEntry] = []
        self._digest = SourceDigest()
        self._paths = PathSet()
        self._total = 0
        self._claimed: str | None = None
        self._started = False
        self._done = False

    def feed(self, data: bytes) -> None:
        """Take the next bytes.

        Raises:
            BundleMalformed: they cannot be JSON.
            WorkspaceInvalid: they cannot be a bundle.
        """
        self._buffer += data
        self._advance()

    def finish(self) -> ReceivedBundle:
        """Return the bundle once all has been fed. Raises: as `feed`."""
        self._ended = True
        self._advance()
        if not self._done:
            raise BundleMalformed("it ends too early")
        found = self._digest.hexdigest()
        if found != self._claimed:
            raise WorkspaceInvalid(reason=f"the bundle's files have the digest {found}, not {self._claimed}")
        self._spool.flush()
        return ReceivedBundle(found, tuple(self._manifest), self._spool)

    def close(self) -> None:
        """Drop what was received; not after `finish` has handed it over."""
        self._spool.close()

    def _advance(self) -> None:
        if self._done:
            self._only_space()
            return
        try:
            next(self._parser)
        except StopIteration:
            self._done = True
            self._only_space()

    def _only_space(self) -> None:
        rest = bytes(self._buffer[self._at :]).strip(_SPACE)
        self._buffer.clear()
        self._at = 0
        if rest:
            raise BundleMalformed("something follows its end")

    # The parser is a generator that yields when it needs more bytes.

    def _more(self) -> Iterator[None]:
        if self._ended:
            raise BundleMalformed("it ends too early")
        del self._buffer[: self._at]
        self._at = 0
        yield

    def _peek(self) -> Iterator[None]:
        """Stand at the next byte that is not space."""
        while True:
            while self._at < len(self._buffer):
                if self._buffer[self._at] not in _SPACE:
                    return
                self._at += 1
            yield from self._more()

    def _take(self, expected: bytes) -> Iterator[None]:
        yield from self._peek()
        if self._buffer[self._at] != expected[0]:
            raise BundleMalformed(f"{expected.decode()!r} is missing")
        self._at += 1

    def _is(self, wanted: bytes) -> bool:
        return self._buffer[self._at] == wanted[0]

    def _opens(self, bracket: bytes, what: str) -> Iterator[None]:
        """Enter an object or a list; any other value is one that a bundle does not have there."""
        yield from self._peek()
        if not self._is(bracket):
            raise self._unexpected(f"{what} is not {'an object' if bracket == b'{' else 'a list'}")
        self._at += 1

    def _unexpected(self, reason: str) -> BundleMalformed | WorkspaceInvalid:
        if self._buffer[self._at] not in _BEGINS_VALUE:
            return BundleMalformed("a value is missing")
        return WorkspaceInvalid(reason=reason)

    def _text(self) -> Iterator[None]:
        """Read a short string into `self._token`."""
        yield from self._peek()
        if not self._is(b'"'):
            raise self._unexpected("the bundle has something else where a text belongs")
        end = self._at + 1
        while True:
            while end < len(self._buffer) and self._buffer[end] != ord('"'):
                end += 2 if self._buffer[end] == ord("\\") else 1
            if end < len(self._buffer):
                break
            if end - self._at > _LONGEST_TOKEN:
                raise WorkspaceInvalid(reason="the bundle has a text that is too long for where it stands")
            end -= self._at
            yield from self._more()
        if end - self._at > _LONGEST_TOKEN:
            raise WorkspaceInvalid(reason="the bundle has a text that is too long for where it stands")
        try:
            self._token = json.loads(bytes(self._buffer[self._at : end + 1]))
        except ValueError:
            raise BundleMalformed("a text is not JSON") from None
        self._at = end + 1

    def _word(self) -> Iterator[None]:
        """Read a number or a literal into `self._token`."""
        yield from self._peek()
        end = self._at
        while True:
            while end < len(self._buffer) and self._buffer[end] not in b",]}" + _SPACE:
                end += 1
            if end < len(self._buffer) or self._ended:
                break
            if end - self._at > _LONGEST_TOKEN:
                raise WorkspaceInvalid(reason="the bundle has a value that is too long for where it stands")
            end -= self._at
            yield from self._more()
        try:
            self._token = json.loads(bytes(self._buffer[self._at : end]))
        except (ValueError, RecursionError):
            raise BundleMalformed("a value is not JSON") from None
        self._at = end

    def _members(self, names: tuple[str, ...], what: str, value: object) -> Iterator[None]:
        """Read the members of an object that has exactly these keys, each once; `value(name)` reads one."""
        yield from self._opens(b"{", what)
        seen: set[str] = set()
        yield from self._peek()
        while not self._is(b"}"):
            if seen:
                yield from self._take(b",")
                yield from self._peek()
                if not self._is(b'"'):
                    raise BundleMalformed("a key is missing")
            yield from self._text()
            name = self._token
            if name not in names or name in seen:
                raise WorkspaceInvalid(reason=f"{what} has other keys than {', '.join(names)}, or one twice")
            seen.add(name)
            yield from self._take(b":")
            yield from value(name)  # type: ignore[operator]
            yield from self._peek()
        self._at += 1
        if len(seen) != len(names):
            raise WorkspaceInvalid(reason=f"{what} has other keys than {', '.join(names)}")

    def _document(self) -> Iterator[None]:
        yield from self._members(_KEYS, "the bundle", self._top)
        yield from ()

    def _top(self, name: str) -> Iterator[None]:
        if name == "files":
            yield from self._files()
        elif name == "digest":
            yield from self._text()
            if not is_digest(self._token):
                raise WorkspaceInvalid(reason="the bundle's digest is not 64 lower-case hexadecimal digits")
            self._claimed = str(self._token)
        else:
            yield from self._word()
            if type(self._token) is not int or self._token != 1:
                raise WorkspaceInvalid(reason="the bundle's version is not 1")

    def _files(self) -> Iterator[None]:
        yield from self._opens(b"[", "the bundle's `files`")
        yield from self._peek()
        while not self._is(b"]"):
            if self._manifest:
                yield from self._take(b",")
            if len(self._manifest) == MAX_FILES:
                raise WorkspaceInvalid(reason=f"there are more than {MAX_FILES:,} files")
            yield from self._file()
            yield from self._peek()
        self._at += 1

    def _file(self) -> Iterator[None]:
        self._path: str | None = None
        self._data = bytearray()
        self._executable = False
        yield from self._members(_FILE_KEYS, "a file of the bundle", self._member)
        path, data = str(self._path), self._data
        if self._manifest and path <= self._manifest[-1].path:
            raise WorkspaceInvalid(reason=f"path {path!r} is not in ascending order")
        self._paths.add(path)
        self._total += len(data)
        check_bounds(len(self._manifest) + 1, path, len(data), self._total)
        self._digest.add(path, data, self._executable)
        self._spool.write(data)
        self._manifest.append(SourceEntry(path, len(data), self._executable))
        self._data = bytearray()

    def _member(self, name: str) -> Iterator[None]:
        if name == "path":
            yield from self._text()
            self._path = check_path(self._token)
        elif name == "executable":
            yield from self._word()
            if type(self._token) is not bool:
                raise WorkspaceInvalid(reason="`executable` of a file is neither true nor false")
            self._executable = self._token
        else:
            yield from self._base64()

    def _base64(self) -> Iterator[None]:
        """Decode a string of any length piece by piece."""
        yield from self._peek()
        if not self._is(b'"'):
            raise self._unexpected("the `base64` of a file is not a text")
        self._at += 1
        group = bytearray()
        while True:
            plain = _PLAIN_BASE64.match(self._buffer, self._at)
            assert plain is not None, "it matches nothing, too"
            group += plain[0]
            self._at = plain.end()
            self._decode(group, last=False)
            if self._at == len(self._buffer):
                yield from self._more()
                continue
            if self._is(b'"'):
                break
            if not self._is(b"\\"):
                raise self._not_base64()
            while len(self._buffer) - self._at < 6 and not self._ended and b'"' not in self._buffer[self._at + 2 :]:
                yield from self._more()
            group += self._escaped()
        self._at += 1
        self._decode(group, last=True)

    def _escaped(self) -> bytes:
        """JSON may escape any character; of those that base64 has, the slash often is."""
        length = 6 if self._buffer[self._at + 1 : self._at + 2] == b"u" else 2
        try:
            text = str(json.loads(b'"' + bytes(self._buffer[self._at : self._at + length]) + b'"'))
        except ValueError:
            raise BundleMalformed("a text is not JSON") from None
        self._at += length
        if not text.isascii():
            raise self._not_base64()
        return text.encode()

    def _decode(self, group: bytearray, *, last: bool) -> None:
        """Decode whole groups of four, and keep the last one until it is known whether it ends the file."""
        ready = len(group) if last else max(0, len(group) - 4) // 4 * 4
        if not ready:
            return
        whole = bytes(group[:ready])
        del group[:ready]
        if len(whole) % 4 or (not last and b"=" in whole):
            raise self._not_base64()
        try:
            data = binascii.a2b_base64(whole, strict_mode=True)
        except ValueError:
            raise self._not_base64() from None
        # Strict decoding passes over the unused bits of the last group.
        if last and binascii.b2a_base64(data[-((len(data) - 1) % 3 + 1) :], newline=False) != whole[-4:]:
            raise self._not_base64()
        self._data += data
        if len(self._data) > MAX_FILE_BYTES:
            raise WorkspaceInvalid(reason=f"file {self._path!r} has more than {MAX_FILE_BYTES:,} bytes")
        if self._total + len(self._data) > MAX_TOTAL_BYTES:
            raise WorkspaceInvalid(reason=f"the files have more than {MAX_TOTAL_BYTES:,} bytes in all")

    def _not_base64(self) -> WorkspaceInvalid:
        return WorkspaceInvalid(reason=f"the base64 of {self._path!r} is not canonical")
