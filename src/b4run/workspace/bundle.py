"""Source bundles: the files that a workspace starts from, addressed by a digest of their paths, bytes and executable bits.

Format, bounds and digest are those of the specification's `formats.md`, section "Source bundle". A `SourceBundle` comes only from
`create_source_bundle`, `verify_source_bundle` and what is built on them, so whoever holds one holds verified bytes.
"""

from __future__ import annotations

import binascii
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from b4run.errors import WorkspaceInvalid
from b4run.workspace.paths import PathSet, check_path

MAX_FILES = 10_000
MAX_FILE_BYTES = 16_777_216
MAX_TOTAL_BYTES = 67_108_864
MAX_JSON_BYTES = 100_663_296

_PIECE = 3 << 18
"""Bytes that are encoded at a time: whole base64 groups, so that pieces join without padding."""

_DIGEST = re.compile(r"[0-9a-f]{64}")
_START = re.compile(rb'\{"version":1,"digest":"([0-9a-f]{64})","files":\[')
_ENTRY = re.compile(rb'\{"path":"([A-Za-z0-9._ /-]{1,1024})","base64":"([A-Za-z0-9+/=]*)","executable":(true|false)\}')
_COMMA = ord(",")

_Entry = tuple[str, memoryview, bool]
"""Path, base64 and executable bit, as they were sent."""


@dataclass(frozen=True, slots=True)
class SourceFile:
    """One file of a source, at a portable path."""

    path: str
    data: bytes
    executable: bool = False


@dataclass(frozen=True, slots=True)
class SourceEntry:
    """What a manifest says of one file."""

    path: str
    size: int
    executable: bool


@dataclass(frozen=True, slots=True, init=False, eq=False)
class SourceBundle:
    """Verified files in ascending order of their paths, and their digest."""

    digest: str
    files: tuple[SourceFile, ...]

    def __init__(self) -> None:
        raise TypeError("a SourceBundle comes from create_source_bundle or verify_source_bundle")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SourceBundle) and self.digest == other.digest

    def __hash__(self) -> int:
        return hash(self.digest)

    @property
    def manifest(self) -> tuple[SourceEntry, ...]:
        return tuple(SourceEntry(file.path, len(file.data), file.executable) for file in self.files)

    @property
    def total_bytes(self) -> int:
        return sum(len(file.data) for file in self.files)

    def json_pieces(self) -> Iterator[bytes]:
        """Give out the canonical JSON piece by piece."""
        yield json_start(self.digest)
        for index, file in enumerate(self.files):
            yield from json_file(file.path, file.data, file.executable, first=not index)
        yield JSON_END

    def to_json(self) -> bytes:
        """Return the canonical JSON, in which bundles are sent and kept."""
        return b"".join(self.json_pieces())


JSON_END = b"]}"


def json_start(digest: str) -> bytes:
    """Return what canonical JSON has before its first file."""
    return f'{{"version":1,"digest":"{digest}","files":['.encode()


def json_file(path: str, data: bytes | bytearray, executable: bool, *, first: bool) -> Iterator[bytes]:
    """Give out one file of canonical JSON piece by piece."""
    yield f'{"" if first else ","}{{"path":"{path}","base64":"'.encode()
    yield from base64_pieces(data)
    yield f'","executable":{_word(executable)}}}'.encode()


def base64_pieces(data: bytes | bytearray) -> Iterator[bytes]:
    """Give out the base64 of `data` piece by piece."""
    if len(data) <= _PIECE:
        yield binascii.b2a_base64(data, newline=False)
        return
    with memoryview(data) as view:
        for at in range(0, len(view), _PIECE):
            yield binascii.b2a_base64(view[at : at + _PIECE], newline=False)


def _word(flag: bool) -> str:
    return "true" if flag else "false"


def is_digest(value: object) -> bool:
    """Whether `value` is a SHA-256 in lower-case hex."""
    return isinstance(value, str) and _DIGEST.fullmatch(value) is not None


def json_size(manifest: Iterable[SourceEntry]) -> int:
    """Return how many bytes the canonical JSON of a bundle with these files has."""
    size = len('{"version":1,"digest":"","files":[]}') + 64
    for index, entry in enumerate(manifest):
        encoded = (entry.size + 2) // 3 * 4
        size += len('{"path":"","base64":"","executable":}') + len(entry.path) + encoded + len(_word(entry.executable)) + (index > 0)
    return size


class SourceDigest:
    """The digest of a source, file by file in ascending order of their paths."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256(b'["b4-workspace-source-v1",[')
        self._first = True

    def add(self, path: str, data: bytes | bytearray, executable: bool) -> None:
        self._digest.update(f'{"" if self._first else ","}["{path}","'.encode())
        for piece in base64_pieces(data):
            self._digest.update(piece)
        self._digest.update(f'",{_word(executable)}]'.encode())
        self._first = False

    def hexdigest(self) -> str:
        """Return the digest; nothing may be added afterwards."""
        self._digest.update(b"]]")
        return self._digest.hexdigest()


def source_digest(files: Iterable[SourceFile]) -> str:
    """Return the digest of files that are in order already."""
    digest = SourceDigest()
    for file in files:
        digest.add(file.path, file.data, file.executable)
    return digest.hexdigest()


def create_source_bundle(files: Iterable[SourceFile]) -> SourceBundle:
    """Return the bundle of `files`, in whatever order they come.

    Raises:
        WorkspaceInvalid: a path is not portable or conflicts with another, or there is too much of something.
    """
    kept: list[SourceFile] = []
    total = 0
    for file in files:
        check_path(file.path)
        if not isinstance(file.data, bytes) or not isinstance(file.executable, bool):
            raise WorkspaceInvalid(reason=f"file {file.path!r} has no bytes, or no flag that says whether it is executable")
        total += len(file.data)
        check_bounds(len(kept) + 1, file.path, len(file.data), total)
        kept.append(file)
    kept.sort(key=lambda file: file.path)
    PathSet(file.path for file in kept)
    return _bundle(source_digest(kept), kept)


def check_bounds(count: int, path: str, size: int, total: int) -> None:
    """Check the `count`-th file, of `size` bytes, with which there are `total`. Raises: WorkspaceInvalid."""
    if count > MAX_FILES:
        raise WorkspaceInvalid(reason=f"there are more than {MAX_FILES:,} files")
    if size > MAX_FILE_BYTES:
        raise WorkspaceInvalid(reason=f"file {path!r} has more than {MAX_FILE_BYTES:,} bytes")
    if total > MAX_TOTAL_BYTES:
        raise WorkspaceInvalid(reason=f"the files have more than {MAX_TOTAL_BYTES:,} bytes in all")


def verify_source_bundle(value: bytes | str | Mapping[str, Any]) -> SourceBundle:
    """Return the bundle that `value` says it is: its JSON, or the same already parsed. Every byte is checked against the digest.

    Raises:
        WorkspaceInvalid: keys, order, paths, base64, bounds or digest are off by anything.
    """
    if isinstance(value, (bytes, str)):
        if len(value) > MAX_JSON_BYTES:
            raise WorkspaceInvalid(reason=f"the bundle has more than {MAX_JSON_BYTES:,} bytes of JSON")
        if isinstance(value, bytes) and (found := _canonical(value)) is not None:
            return found
        value = parse_json(value, "the bundle")
    body = _fields(value, ("version", "digest", "files"), "the bundle")
    if type(body["version"]) is not int or body["version"] != 1:
        raise WorkspaceInvalid(reason="the bundle's version is not 1")
    if not is_digest(body["digest"]):
        raise WorkspaceInvalid(reason="the bundle's digest is not 64 lower-case hexadecimal digits")
    entries = body["files"]
    if not isinstance(entries, (list, tuple)):
        raise WorkspaceInvalid(reason="the bundle's files are not a list")
    listed = [_entry(entry) for entry in entries[: MAX_FILES + 1]]
    _check_entries(listed)
    return _verified(body["digest"], [SourceFile(path, _decoded(path, text), executable) for path, text, executable in listed])


def read_source_file(bundle: SourceBundle, path: str) -> SourceFile:
    """Return one file of a bundle. Raises: WorkspaceInvalid: it has none at `path`."""
    for file in bundle.files:
        if file.path == path:
            return file
    raise WorkspaceInvalid(reason=f"the source has no file {path!r}")


def parse_json(text: bytes | str, what: str) -> Any:
    """Return what JSON says; a key that is there twice is a fault. Raises: WorkspaceInvalid."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise WorkspaceInvalid(reason=f"{what} has a key twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        raise WorkspaceInvalid(reason=f"{what} is not JSON ({type(error).__name__})") from None


def _canonical(text: bytes) -> SourceBundle | None:
    """Read canonical JSON where it stands, one file's base64 at a time; None: it is spelled in another way, or not a bundle."""
    start = _START.match(text)
    if start is None or not text.endswith(b"]}"):
        return None
    at, end = start.end(), len(text) - 2
    listed: list[_Entry] = []
    with memoryview(text) as view:
        while at < end:
            entry = _ENTRY.match(text, at + (1 if listed else 0), end)
            if entry is None or (listed and text[at] != _COMMA) or len(listed) > MAX_FILES:
                return None
            listed.append((entry[1].decode("ascii"), view[entry.start(2) : entry.end(2)], entry[3] == b"true"))
            at = entry.end()
        _check_entries(listed)
        files = [SourceFile(path, _decoded(path, encoded), executable) for path, encoded, executable in listed]
        del listed
    return _verified(start[1].decode("ascii"), files)


def _verified(digest: str, files: list[SourceFile]) -> SourceBundle:
    if (found := source_digest(files)) != digest:
        raise WorkspaceInvalid(reason=f"the bundle's files have the digest {found}, not {digest}")
    return _bundle(found, files)


def _bundle(digest: str, files: list[SourceFile]) -> SourceBundle:
    made = object.__new__(SourceBundle)
    object.__setattr__(made, "digest", digest)
    object.__setattr__(made, "files", tuple(files))
    return made


def _fields(value: Any, names: tuple[str, ...], what: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping) or set(value) != set(names):
        raise WorkspaceInvalid(reason=f"{what} has other keys than {', '.join(names)}")
    return value


def _entry(value: Any) -> _Entry:
    fields = _fields(value, ("path", "base64", "executable"), "a file of the bundle")
    path = check_path(fields["path"])
    if type(fields["executable"]) is not bool:
        raise WorkspaceInvalid(reason=f"`executable` of {path!r} is neither true nor false")
    if not isinstance(fields["base64"], str) or not fields["base64"].isascii():
        raise _not_base64(path)
    return path, memoryview(fields["base64"].encode("ascii")), fields["executable"]


def _check_entries(entries: list[_Entry]) -> None:
    """Everything that can be known without decoding."""
    paths = PathSet()
    total, last = 0, ""
    for count, (path, encoded, _) in enumerate(entries, 1):
        check_path(path)
        if path <= last:
            raise WorkspaceInvalid(reason=f"path {path!r} is not in ascending order")
        last = path
        if len(encoded) % 4:
            raise _not_base64(path)
        size = len(encoded) // 4 * 3 - bytes(encoded[-2:]).count(b"=")
        total += size
        check_bounds(count, path, size, total)
        paths.add(path)


def _decoded(path: str, encoded: memoryview) -> bytes:
    try:
        data = binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError:
        raise _not_base64(path) from None
    # Strict decoding passes over the unused bits of the last group.
    if encoded[-4:] != binascii.b2a_base64(data[-((len(data) - 1) % 3 + 1) :] if data else b"", newline=False):
        raise _not_base64(path)
    return data


def _not_base64(path: str) -> WorkspaceInvalid:
    return WorkspaceInvalid(reason=f"the base64 of {path!r} is not canonical")
