"""`FileBackend` over a `MemoryTree`, with the guest's answers and refusals."""

from __future__ import annotations

import asyncio
import posixpath
from collections.abc import AsyncIterator, Callable, Iterator, Sequence

from b4run.errors import ReaderClosed
from b4run.sandbox.contract import WORKSPACE_ROOT, DirectoryPage, FileContent, FileEntry, FileKind, FileLines, FileTree, RealPath
from b4run.sandbox.testing.memory import WORKSPACE, MemoryTree, Node, Place, folder, path_bytes, refused

_MAX_LISTED = 100_000
_PIECE = 262_144


class MemoryFileReader:
    """Looks at one tree. `check` runs first in every call and raises when nothing may be asked any more."""

    def __init__(self, tree: MemoryTree, check: Callable[[], None]) -> None:
        self._tree = tree
        self._check = check

    async def stat(self, path: str, *, follow: bool = True, beyond: bool = False) -> FileEntry:
        await self._enter()
        return self._tree.find(path, follow=follow, beyond=beyond).entry(path_bytes(path).rstrip(b"/").rpartition(b"/")[2] or b".")

    async def real_path(self, path: str) -> RealPath:
        await self._enter()
        return RealPath(*self._tree.real(path))

    async def list(self, path: str = ".", *, after: str | None = None, limit: int = 10_000, beyond: bool = False) -> DirectoryPage:
        await self._enter()
        page = self._page(path, after, limit, beyond)
        return DirectoryPage([name.decode(errors="surrogateescape") for name, _ in page[:limit]], len(page) > limit)

    async def entries(self, path: str = ".", *, after: str | None = None, limit: int = 10_000) -> Sequence[FileEntry]:
        await self._enter()
        return [node.entry(name) for name, node in self._page(path, after, limit, beyond=False)[:limit]]

    async def walk(self, path: str = ".", *, limit: int = 100_000, exclude: Sequence[str] = ()) -> Sequence[FileEntry]:
        await self._enter()
        _check_range("limit", limit, 1, 1_000_000)
        excluded = {path_bytes(name) for name in exclude}
        found: list[FileEntry] = []
        for name, node in _below(self._folder(path, beyond=False), excluded):
            if len(found) == limit:
                raise refused("too_many", path)
            found.append(node.entry(name))
        return found

    async def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, max_size: int | None = 67_108_864, beyond: bool = False
    ) -> FileContent:
        await self._enter()
        _check_range("offset", offset, 0)
        node = self._file(path, beyond=beyond)
        if max_size is not None and len(node.data) > max_size:
            raise refused("too_large", path, size=len(node.data))
        end = len(node.data) if limit is None else offset + _check_range("limit", limit, 0)
        return FileContent(node.data[offset:end], len(node.data), node.version)

    async def read_lines(
        self, path: str, *, first: int = 1, last: int | None = None, limit: int = 262_144, beyond: bool = False
    ) -> FileLines:
        await self._enter()
        _check_range("first", first, 1)
        node = self._file(path, beyond=beyond)
        lines = node.data.split(b"\n")
        ended = [line + b"\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
        if first > max(len(ended), 1):
            raise refused("bad_range", path, total=len(ended))
        end = len(ended) if last is None else min(_check_range("last", last, first), len(ended))
        text = b"".join(ended[first - 1 : end])
        if len(text) > limit:
            raise refused("too_large", path, size=len(text))
        return FileLines(text, first, end, len(ended), len(node.data), node.version)

    async def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        await self._enter()
        _check_range("offset", offset, 0)
        data = self._file(path, beyond=False).data
        for start in range(offset, len(data), _PIECE):
            await self._enter()
            yield data[start : start + _PIECE]

    async def _enter(self) -> None:
        """Let others run, as a real call does; what follows happens in one step."""
        await asyncio.sleep(0)
        self._check()

    def _page(self, path: str, after: str | None, limit: int, beyond: bool) -> Sequence[tuple[bytes, Node]]:
        _check_range("limit", limit, 1, _MAX_LISTED)
        behind = b"" if after is None else path_bytes(after)
        names = sorted((item for item in self._folder(path, beyond).children.items() if item[0] > behind), key=lambda item: item[0])
        return names[: limit + 1]

    def _folder(self, path: str, beyond: bool) -> Node:
        node = self._tree.find(path, beyond=beyond)
        if node.kind is not FileKind.DIRECTORY:
            raise refused("not_directory", path)
        return node

    def _file(self, path: str, *, beyond: bool) -> Node:
        node = self._tree.find(path, beyond=beyond)
        if node.kind is not FileKind.FILE:
            raise refused("is_directory" if node.kind is FileKind.DIRECTORY else "not_regular", path)
        if not node.mode & 0o400:
            raise refused("denied", path)
        return node


class MemoryFiles(MemoryFileReader):
    """The files of one fake sandbox."""

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
        await self._enter()
        content = data if isinstance(data, bytes) else b"".join([piece async for piece in data])
        self._check()
        place = self._place(path, parents=parents, beyond=beyond, follow=True)
        if path.endswith("/"):
            raise refused("is_directory", path)
        old = place.node
        if old is not None and create:
            raise refused("exists", path)
        if expect is not None and (old is None or old.version != expect):
            raise refused("changed", path)
        if old is not None and old.kind is not FileKind.FILE:
            raise refused("is_directory" if old.kind is FileKind.DIRECTORY else "not_regular", path)
        self._tree.charge(len(content) - (len(old.data) if old else 0), path)
        node = Node(FileKind.FILE, mode if mode is not None else old.mode if old else 0o644, content)
        place.parent.children[place.name] = node
        return node.entry(path_bytes(path))

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> bool:
        await self._enter()
        place = self._place(path, parents=parents)
        if place.node is None:
            place.parent.children[place.name] = folder(mode)
            return True
        if parents and place.node.kind is FileKind.DIRECTORY:
            return False
        raise refused("exists", path)

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        await self._enter()
        place = self._existing(path)
        inside = sum(1 for _ in _below(place.node)) if place.node else 0
        if inside and not recursive:
            raise refused("not_empty", path)
        del place.parent.children[place.name]
        return inside + 1

    async def rename(self, source: str, target: str, *, replace: bool = True) -> None:
        await self._enter()
        old, new = self._existing(source), self._tree.resolve(target, follow=False)
        if new.path[: len(old.path)] == old.path and new.path != old.path:
            raise refused("invalid", target)
        if new.node is not None:
            self._check_replaceable(old.node, new.node, target, replace)
        node = old.parent.children.pop(old.name)
        new.parent.children[new.name] = node

    def _check_replaceable(self, old: Node | None, new: Node, target: str, replace: bool) -> None:
        folders = [node is not None and node.kind is FileKind.DIRECTORY for node in (old, new)]
        if not replace:
            raise refused("exists", target)
        if folders[0] != folders[1]:
            raise refused("is_directory" if folders[1] else "not_directory", target)
        if new.children and new is not old:
            raise refused("not_empty", target)

    def _place(self, path: str, *, parents: bool, beyond: bool = False, follow: bool = False) -> Place:
        """Return the place, its folders made first where `parents` says so."""
        if parents:
            octets = path_bytes(path)
            start = b"/" if octets.startswith(b"/") else b""
            parts = [part for part in octets.split(b"/") if part]
            for count in range(1, len(parts)):
                above = (start + b"/".join(parts[:count])).decode(errors="surrogateescape")
                if start and not beyond and tuple(parts[:count]) == WORKSPACE[:count]:
                    continue
                place = self._tree.resolve(above, beyond=beyond)
                if place.node is None:
                    place.parent.children[place.name] = folder()
        return self._tree.resolve(path, follow=follow, beyond=beyond)

    def _existing(self, path: str) -> Place:
        place = self._tree.resolve(path, follow=False)
        if place.node is None:
            raise refused("not_found", path)
        if place.path == WORKSPACE:
            raise refused("invalid", path)
        return place


class MemoryReader(MemoryFileReader):
    """`WorkspaceReader` of one fake thread."""

    workspace_root = WORKSPACE_ROOT

    def __init__(self, thread_id: str, tree: MemoryTree) -> None:
        super().__init__(tree, self._refuse_when_closed)
        self.thread_id = thread_id
        self._closed = False

    async def read_tree(
        self,
        path: str = ".",
        *,
        skip: Sequence[str] = (),
        max_entries: int = 10_000,
        max_file_bytes: int = 2_097_152,
        max_total_bytes: int = 16_777_216,
    ) -> FileTree:
        await self._enter()
        start = self._folder(path, beyond=False)
        entries: list[FileEntry] = []
        contents: dict[str, bytes] = {}
        skipped = {path_bytes(name) for name in skip}
        for name, node in _below(start, set()):
            first, _, inside = name.partition(b"/")
            if inside and first in skipped:
                continue
            if len(entries) == max_entries:
                raise refused("too_many", path)
            entry = node.entry(name)
            entries.append(entry)
            if node.kind is FileKind.FILE:
                about = posixpath.normpath(posixpath.join(path, entry.path))
                if entry.size > min(max_file_bytes, max_total_bytes - sum(map(len, contents.values()))):
                    raise refused("too_large", about, size=entry.size)
                contents[entry.path] = self._file(about, beyond=False).data
        return FileTree(entries, contents)

    async def aclose(self) -> None:
        self._closed = True

    def _refuse_when_closed(self) -> None:
        if self._closed:
            raise ReaderClosed(thread_id=self.thread_id)


def _below(node: Node, exclude: set[bytes] | None = None, prefix: bytes = b"") -> Iterator[tuple[bytes, Node]]:
    for name, child in sorted(node.children.items(), key=lambda item: item[0]):
        if exclude and name in exclude:
            continue
        yield prefix + name, child
        yield from _below(child, None, prefix + name + b"/")


def _check_range(name: str, value: int, low: int, high: int = (1 << 63) - 1) -> int:
    if not low <= value <= high:
        raise ValueError(f"{name} is {low} to {high}, not {value}")
    return value
