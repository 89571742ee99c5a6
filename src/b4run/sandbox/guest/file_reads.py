"""Looking at the workspace's files over the guest's channel."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final, TypeVar

from b4run.sandbox.contract import DirectoryPage, FileContent, FileEntry, FileLines, RealPath
from b4run.sandbox.guest.calls import ChunkQueue, Collector
from b4run.sandbox.guest.file_requests import FileRequests, beyond_field, check_range, octets
from b4run.sandbox.guest.frames import Lane, ProtocolError
from b4run.sandbox.guest.messages import Message, boolean, integer, items, read_entry, read_path, read_version

T = TypeVar("T")

READ_CEILING: Final = 1_073_741_824
"""The most bytes that `read` returns at once; `read_stream` has no bound."""
MAX_LISTED: Final = 100_000
MAX_WALKED: Final = 1_000_000


_PAGES: Final = 268_435_456
"""Bytes of pages that one answer may have."""


class Pages:
    """Puts the pages of a listing together, within the number asked for."""

    def __init__(self, limit: int, read: Callable[[Message], T]) -> None:
        self.read: list[Any] = []
        self._limit = limit
        self._item = read
        self._size = 0

    def take(self, event: Message, size: int) -> None:
        if event.get("event") != "entries":
            return
        self.read += map(self._item, items(event, "entries"))
        self._size += size
        if len(self.read) > self._limit or self._size > _PAGES:
            raise ProtocolError("more entries than asked for")

    def whole(self, answer: Message) -> list[Any]:
        if integer(answer, "count") != len(self.read):
            raise ProtocolError("not as many entries as announced")
        return self.read


class GuestFileReader(FileRequests):
    """`FileReader` over a `GuestClient`."""

    async def stat(self, path: str, *, follow: bool = True, beyond: bool = False) -> FileEntry:
        return await self._ask("fs.stat", path, {"follow": follow} | beyond_field(beyond), lambda answer: read_entry(answer, "name"))

    async def real_path(self, path: str) -> RealPath:
        return await self._ask("fs.real", path, {}, _real_path)

    async def list(self, path: str = ".", *, after: str | None = None, limit: int = 10_000, beyond: bool = False) -> DirectoryPage:
        pages = Pages(limit, _name)
        more = await self._list(path, after, limit, pages, {"names": True} | beyond_field(beyond))
        return DirectoryPage(pages.read, more)

    async def entries(self, path: str = ".", *, after: str | None = None, limit: int = 10_000) -> Sequence[FileEntry]:
        pages = Pages(limit, lambda entry: read_entry(entry, "name"))
        await self._list(path, after, limit, pages, {})
        return pages.read

    async def walk(self, path: str = ".", *, limit: int = 100_000, exclude: Sequence[str] = ()) -> Sequence[FileEntry]:
        check_range("limit", limit, 1, MAX_WALKED)
        pages = Pages(limit, lambda entry: read_entry(entry, "path"))
        fields: dict[str, Any] = {"limit": limit}
        if exclude:
            fields["exclude"] = [octets(name) for name in exclude]
        return await self._ask("fs.walk", path, fields, pages.whole, on_event=pages.take)

    async def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, max_size: int | None = 67_108_864, beyond: bool = False
    ) -> FileContent:
        check_range("offset", offset, 0)
        fields: dict[str, Any] = {"offset": offset} | beyond_field(beyond)
        most = READ_CEILING
        if limit is not None:
            most = fields["limit"] = check_range("limit", limit, 0, READ_CEILING)
        else:
            max_size = READ_CEILING + offset if max_size is None else max_size
        if max_size is not None:
            fields["max_size"] = check_range("max_size", max_size, 0)
            most = min(most, max_size)
        kept = Collector(most)
        return await self._ask("fs.read", path, fields, lambda answer: _content(answer, kept), inflow=kept)

    async def read_lines(
        self, path: str, *, first: int = 1, last: int | None = None, limit: int = 262_144, beyond: bool = False
    ) -> FileLines:
        fields: dict[str, Any] = {"first": check_range("first", first, 1), "limit": check_range("limit", limit, 0, READ_CEILING)}
        if last is not None:
            fields["last"] = check_range("last", last, first)
        kept = Collector(limit)
        return await self._ask("fs.lines", path, fields | beyond_field(beyond), lambda answer: _lines(answer, kept), inflow=kept)

    async def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        self._check()
        check_range("offset", offset, 0)
        queue = ChunkQueue()
        plan = self._plan("fs.read", path, {"offset": offset}, lambda _: None, queue)
        call = await self._client.open(plan)
        try:
            while True:
                while (chunk := queue.pop()) is not None:
                    lane, data = chunk
                    self._client.consumed(call, lane, len(data))
                    with call.on_hold():
                        yield data
                if call.end.done():
                    break
                await queue.changed()
            await self._answer(self._client.finish(call), path)
        finally:
            queue.discard()
            await self._client.give_up(call)

    async def _list(self, path: str, after: str | None, limit: int, pages: Pages, fields: dict[str, Any]) -> bool:
        fields["limit"] = check_range("limit", limit, 1, MAX_LISTED)
        if after is not None:
            fields["after"] = octets(after)

        def more(answer: Message) -> bool:
            pages.whole(answer)
            return boolean(answer, "more")

        return await self._ask("fs.list", path, fields, more, on_event=pages.take)


def _name(entry: Message) -> str:
    return read_path(entry, "name")


def _real_path(answer: Message) -> RealPath:
    return RealPath(read_path(answer, "real"), boolean(answer, "exists"), boolean(answer, "inside"))


def _content(answer: Message, kept: Collector) -> FileContent:
    data = bytes(kept.kept(Lane.OUTPUT))
    if integer(answer, "length") != len(data):
        raise ProtocolError("content that is not of the length announced")
    return FileContent(data, integer(answer, "size"), read_version(answer))


def _lines(answer: Message, kept: Collector) -> FileLines:
    return FileLines(
        data=bytes(kept.kept(Lane.OUTPUT)),
        first=integer(answer, "first"),
        last=integer(answer, "last"),
        total=integer(answer, "total"),
        size=integer(answer, "size"),
        version=read_version(answer),
    )
