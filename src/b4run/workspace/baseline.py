"""A git repository with one commit over a source's files, made without git, so that every image and provider has the same.

What it holds is fixed by the specification's `decisions.md`, section "Git baseline": the commit's hash is a function of the files. Formats:
gitformat-pack(5), gitformat-index(5), git-hash-object(1).
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from b4run.workspace.bundle import SourceEntry, SourceFile
from b4run.workspace.captured import EnvironmentLink

_COMMIT, _TREE, _BLOB = 1, 2, 3
_NAMES = {_COMMIT: b"commit", _TREE: b"tree", _BLOB: b"blob"}
_PERSON = b"b4run <b4run@localhost> 946684800 +0000"
_FILE, _PROGRAM, _FOLDER = b"100644", b"100755", b"40000"
_FASTEST = 1
_CONFIG = b"[core]\n\trepositoryformatversion = 0\n\tfilemode = true\n\tbare = false\n\tlogallrefupdates = true\n"


@dataclass(slots=True)
class _Packed:
    """One object as a pack holds it."""

    id: bytes
    data: list[bytes]
    crc: int


@dataclass(slots=True)
class _Open:
    """The file that is coming in."""

    entry: SourceEntry
    id: Any
    packer: Any
    data: list[bytes]


@dataclass(slots=True)
class GitBaseline:
    """Takes files in the order of their paths (`begin`, `content`, `end`), then gives the repository (`finish`)."""

    _objects: dict[bytes, _Packed] = field(default_factory=dict)
    _index: list[tuple[SourceEntry, bytes]] = field(default_factory=list)
    _open: _Open | None = None

    def add(self, file: SourceFile) -> None:
        """Take one file that is whole."""
        self.begin(SourceEntry(file.path, len(file.data), file.executable))
        self.content(file.data)
        self.end()

    def begin(self, entry: SourceEntry) -> None:
        self._open = _Open(entry, hashlib.sha1(_header(_BLOB, entry.size), usedforsecurity=False), zlib.compressobj(_FASTEST), [])

    def content(self, data: bytes) -> None:
        assert self._open is not None
        self._open.id.update(data)
        self._open.data.append(self._open.packer.compress(data))

    def end(self) -> None:
        assert self._open is not None
        file, self._open = self._open, None
        file.data.append(file.packer.flush())
        self._keep(_BLOB, file.entry.size, file.id.digest(), file.data)
        self._index.append((file.entry, file.id.digest()))

    def finish(self, links: Iterable[EnvironmentLink]) -> tuple[str, list[tuple[str, bytes]]]:
        """Return the commit's hash, and the repository's files by their paths in the workspace. `links` are ignored by git."""
        tree = self._tree()
        commit = self._add(_COMMIT, b"tree %s\nauthor %s\ncommitter %s\n\nbaseline\n" % (tree.hex().encode(), _PERSON, _PERSON)).hex()
        pack, table = self._pack()
        name = f".git/objects/pack/pack-{pack[-20:].hex()}"
        ignored = "".join(f"/{link.path}\n" for link in links)
        return commit, [
            (".git/HEAD", b"ref: refs/heads/main\n"),
            (".git/config", _CONFIG),
            (".git/index", self._stage()),
            (".git/info/exclude", ignored.encode()),
            (f"{name}.idx", table),
            (f"{name}.pack", pack),
            (".git/refs/heads/main", f"{commit}\n".encode()),
        ]

    def _add(self, kind: int, data: bytes) -> bytes:
        id = hashlib.sha1(_header(kind, len(data)) + data, usedforsecurity=False).digest()
        self._keep(kind, len(data), id, [zlib.compress(data, _FASTEST)])
        return id

    def _keep(self, kind: int, size: int, id: bytes, data: list[bytes]) -> None:
        """A pack holds an object once, however many files have that content."""
        if id not in self._objects:
            packed = [_pack_header(kind, size), *data]
            crc = 0
            for piece in packed:
                crc = zlib.crc32(piece, crc)
            self._objects[id] = _Packed(id, packed, crc)

    def _tree(self) -> bytes:
        root: dict[bytes, Any] = {}
        for entry, id in self._index:
            *folders, name = entry.path.encode().split(b"/")
            at = root
            for folder in folders:
                at = at.setdefault(folder, {})
            at[name] = (_PROGRAM if entry.executable else _FILE, id)
        return self._add_tree(root)

    def _add_tree(self, folder: dict[bytes, Any]) -> bytes:
        entries = []
        for name, value in folder.items():
            if isinstance(value, dict):
                entries.append((name + b"/", _FOLDER, name, self._add_tree(value)))
            else:
                entries.append((name, *value[:1], name, value[1]))
        return self._add(_TREE, b"".join(b"%s %s\0%s" % (mode, name, id) for _, mode, name, id in sorted(entries)))

    def _pack(self) -> tuple[bytes, bytes]:
        objects = list(self._objects.values())
        pieces = [struct.pack(">4sII", b"PACK", 2, len(objects))]
        offsets, at = {}, len(pieces[0])
        for packed in objects:
            offsets[packed.id] = at
            pieces += packed.data
            at += sum(map(len, packed.data))
        digest = hashlib.sha1(usedforsecurity=False)
        for piece in pieces:
            digest.update(piece)
        pieces.append(digest.digest())
        return b"".join(pieces), _pack_table(objects, offsets, digest.digest())

    def _stage(self) -> bytes:
        """The index. Times are not known, so that git compares contents once."""
        pieces = [struct.pack(">4sII", b"DIRC", 2, len(self._index))]
        for entry, id in self._index:
            path = entry.path.encode()
            mode = 0o100755 if entry.executable else 0o100644
            fixed = struct.pack(">10I20sH", 0, 0, 0, 0, 0, 0, mode, 0, 0, entry.size, id, min(len(path), 0xFFF))
            pieces.append(fixed + path + b"\0" * (8 - (len(fixed) + len(path)) % 8))
        data = b"".join(pieces)
        return data + hashlib.sha1(data, usedforsecurity=False).digest()


def _header(kind: int, size: int) -> bytes:
    return b"%s %d\0" % (_NAMES[kind], size)


def _pack_header(kind: int, size: int) -> bytes:
    """Kind and size, the latter in groups of 4, then 7 bits."""
    first, size = kind << 4 | size & 0x0F, size >> 4
    out = bytearray()
    while size:
        out.append(first | 0x80)
        first, size = size & 0x7F, size >> 7
    out.append(first)
    return bytes(out)


def _pack_table(objects: list[_Packed], offsets: dict[bytes, int], pack_id: bytes) -> bytes:
    """The pack's index, version 2. A pack of at most 64 MiB of files needs no offsets beyond 31 bits."""
    ordered = sorted(objects, key=lambda packed: packed.id)
    counts = [0] * 256
    for packed in ordered:
        counts[packed.id[0]] += 1
    total, fanout = 0, []
    for count in counts:
        total += count
        fanout.append(total)
    data = b"".join(
        [
            struct.pack(">4sI256I", b"\377tOc", 2, *fanout),
            *(packed.id for packed in ordered),
            *(struct.pack(">I", packed.crc) for packed in ordered),
            *(struct.pack(">I", offsets[packed.id]) for packed in ordered),
            pack_id,
        ]
    )
    return data + hashlib.sha1(data, usedforsecurity=False).digest()
