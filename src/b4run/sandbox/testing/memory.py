"""A POSIX file tree in memory: folders, files, symbolic links, FIFOs, modes; paths resolved beneath the workspace."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from b4run.errors import FileRefused
from b4run.sandbox.contract import WORKSPACE_ROOT, FileEntry, FileKind

MAX_LINKS = 40
MAX_NAME = 255
MAX_PATH = 4_096
MAX_CONTENT = 1_073_741_824
"""Bytes that the files of one tree may hold together."""

WORKSPACE = tuple(part.encode() for part in WORKSPACE_ROOT.strip("/").split("/"))
_numbers = itertools.count(1)


@dataclass(slots=True, eq=False)
class Node:
    """One inode; `changed` rises with every change of content or mode."""

    kind: FileKind
    mode: int
    data: bytes = b""
    children: dict[bytes, Node] = field(default_factory=dict)
    inode: int = field(default_factory=lambda: next(_numbers))
    changed: int = field(default_factory=lambda: next(_numbers))

    @property
    def version(self) -> bytes:
        return b"".join(number.to_bytes(8, "big") for number in (0, self.inode, len(self.data), self.changed, self.changed))

    def entry(self, path: bytes) -> FileEntry:
        target = self.data.decode(errors="surrogateescape") if self.kind is FileKind.SYMLINK else None
        name = path.decode(errors="surrogateescape")
        return FileEntry(name, self.kind, self.mode, len(self.data), self.changed, target, self.version)

    def touch(self) -> None:
        self.changed = next(_numbers)


def folder(mode: int = 0o755) -> Node:
    return Node(FileKind.DIRECTORY, mode)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a path leads: a name in a folder, and what stands there."""

    path: tuple[bytes, ...]
    """Canonical, from the root."""
    parent: Node
    name: bytes
    node: Node | None

    @property
    def inside(self) -> bool:
        return self.path[: len(WORKSPACE)] == WORKSPACE

    @property
    def text(self) -> str:
        return "/" + b"/".join(self.path).decode(errors="surrogateescape")


class MemoryTree:
    """The file system of one thread's fake sandbox. Paths are bytes, relative to the workspace or absolute."""

    def __init__(self, outside: Mapping[str, bytes] = MappingProxyType({})) -> None:
        self.root = folder()
        here = self.root
        for name in WORKSPACE:
            here = here.children.setdefault(name, folder())
        self.root.children[b"tmp"] = folder(0o1777)
        for path, data in outside.items():
            *parents, name = [part for part in path.encode().split(b"/") if part]
            here = self.root
            for parent in parents:
                here = here.children.setdefault(parent, folder())
            here.children[name] = Node(FileKind.FILE, 0o644, data)

    def symlink(self, target: str, path: str) -> None:
        """Make a symbolic link at `path`, as `ln -s` does."""
        self._add(path, Node(FileKind.SYMLINK, 0o777, target.encode(errors="surrogateescape")))

    def fifo(self, path: str) -> None:
        self._add(path, Node(FileKind.FIFO, 0o644))

    def chmod(self, mode: int, path: str) -> None:
        node = self.find(path)
        node.mode = mode
        node.touch()

    def content(self, path: str) -> bytes:
        """Return a file's bytes, links followed."""
        return self.find(path).data

    def put(self, path: str, data: bytes) -> None:
        """Write a file as a command would: its folder must exist, links inside are followed."""
        place = self.resolve(path)
        if place.node is None:
            self.charge(len(data), path)
            place.parent.children[place.name] = Node(FileKind.FILE, 0o644, data)
            return
        self.charge(len(data) - len(place.node.data), path)
        place.node.data = data
        place.node.touch()

    def find(self, path: str, *, follow: bool = True, beyond: bool = False) -> Node:
        place = self.resolve(path, follow=follow, beyond=beyond)
        if place.node is None:
            raise refused("not_found", path)
        return place.node

    def charge(self, growth: int, path: str) -> None:
        if growth > 0 and growth + sum(len(node.data) for node in _nodes(self.root)) > MAX_CONTENT:
            raise refused("no_space", path)

    def resolve(self, path: str, *, follow: bool = True, beyond: bool = False) -> Place:
        """Return where `path` leads; its folder must exist, the last name need not.

        Raises:
            FileRefused: with the kind that the guest would give.
        """
        return _Walk(self.root, path, follow=follow, beyond=beyond).end()

    def real(self, path: str) -> tuple[str, bool, bool]:
        """Return the canonical path, whether it exists and whether it is inside; what is missing is added as it stands."""
        walk = _Walk(self.root, path, follow=True, beyond=False, anywhere=True)
        place = walk.end()
        return place.text, place.node is not None and not walk.missing, place.inside

    def _add(self, path: str, node: Node) -> None:
        place = self.resolve(path, follow=False)
        if place.node is not None:
            raise refused("exists", path)
        place.parent.children[place.name] = node


class _Walk:
    """One resolution of a path, segment by segment."""

    def __init__(self, root: Node, path: str, *, follow: bool, beyond: bool, anywhere: bool = False) -> None:
        self._asked = path
        self._root = root
        self._follow = follow
        self._beyond = beyond
        self._anywhere = anywhere
        self._links = 0
        self._here: list[tuple[bytes, Node]] = []
        self.missing = False
        octets = path_bytes(path)
        self._must_be_folder = octets.endswith(b"/")
        self._pending = [part for part in reversed(octets.split(b"/")) if part not in (b"", b".")]
        self._start(absolute=octets.startswith(b"/"))

    def end(self) -> Place:
        place = self._place()
        while self._pending:
            name = self._pending.pop()
            if len(name) > MAX_NAME:
                raise refused("invalid", self._asked)
            place = self._up() if name == b".." else self._down(name)
        if self._must_be_folder and place.node is not None and place.node.kind is not FileKind.DIRECTORY:
            raise refused("not_directory", self._asked)
        return place

    def _start(self, *, absolute: bool) -> None:
        """Begin at the workspace, or at the root for what is allowed to lie beyond; a path below the workspace means the place in it."""
        self._here = []
        size = len(WORKSPACE)
        if absolute and tuple(reversed(self._pending[-size:])) == WORKSPACE:
            del self._pending[-size:]
        elif absolute and not self._beyond and not self._anywhere:
            raise refused("outside", self._asked, real="/" + b"/".join(reversed(self._pending)).decode(errors="surrogateescape"))
        elif absolute:
            return
        node = self._root
        for name in WORKSPACE:
            node = node.children[name]
            self._here.append((name, node))

    def _place(self) -> Place:
        if not self._here:
            return Place((), self._root, b"", self._root)
        name, node = self._here[-1]
        parent = self._here[-2][1] if len(self._here) > 1 else self._root
        return Place(tuple(part for part, _ in self._here), parent, name, node)

    def _up(self) -> Place:
        if self._here:
            self._here.pop()
        place = self._place()
        if not place.inside and not self._beyond and not self._anywhere:
            raise refused("outside", self._asked, real=place.text)
        return place

    def _down(self, name: bytes) -> Place:
        parent = self._here[-1][1] if self._here else self._root
        if parent.kind is not FileKind.DIRECTORY:
            raise refused("not_directory", self._asked)
        node = parent.children.get(name)
        last = not self._pending
        if node is not None and node.kind is FileKind.SYMLINK and (self._follow or not last):
            return self._link(node)
        path = (*(part for part, _ in self._here), name)
        if node is None:
            if not last and not self._anywhere:
                raise refused("not_found", self._asked)
            self.missing = True
            self._here.append((name, folder()))
            return Place(path, parent, name, None)
        self._here.append((name, node))
        return Place(path, parent, name, node)

    def _link(self, node: Node) -> Place:
        self._links += 1
        if self._links > MAX_LINKS or self._beyond:
            raise refused("loop", self._asked)
        self._pending += [part for part in reversed(node.data.split(b"/")) if part not in (b"", b".")]
        if node.data.startswith(b"/"):
            self._start(absolute=True)
        return self._place()


def path_bytes(path: str) -> bytes:
    """Return the path's bytes. Raises FileRefused (`invalid`) for what no file system takes."""
    try:
        octets = path.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise refused("invalid", path) from None
    if not 1 <= len(octets) <= MAX_PATH or 0 in octets:
        raise refused("invalid", path)
    return octets


def refused(kind: str, path: str, **fields: object) -> FileRefused:
    return FileRefused(kind=kind, path=path, reason=f"The file system refuses it ({kind.replace('_', ' ')})", **fields)


def _nodes(node: Node) -> Iterator[Node]:
    yield node
    for child in node.children.values():
        yield from _nodes(child)
