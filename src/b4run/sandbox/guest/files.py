"""The workspace's files over the guest's channel."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from b4run.errors import FileRefused
from b4run.sandbox.contract import DirectoryPage, FileContent, FileEntry, FileLines, RealPath
from b4run.sandbox.guest.calls import NOTHING, ChunkQueue, Collector, Inflow, Patience, Plan
from b4run.sandbox.guest.client import GuestClient, RequestTooLarge
from b4run.sandbox.guest.feeding import Source
from b4run.sandbox.guest.frames import Lane, ProtocolError
from b4run.sandbox.guest.messages import GuestRefusal, Message, boolean, integer, items, read_entry, read_path, read_version

T = TypeVar("T")

READ_CEILING: Final = 1_073_741_824
"""The most bytes that `read` returns at once; `read_stream` has no bound."""
MAX_LISTED: Final = 100_000
MAX_WALKED: Final = 1_000_000

_LONGEST_PATH: Final = 4_096
_PAGES: Final = 268_435_456
"""Bytes of pages that one answer may have."""
_REASONS: Final = {
    "bad_range": "The lines asked for are beyond the end of the file",
    "busy": "The sandbox has too many requests open",
    "cancelled": "The operation was cancelled",
    "changed": "The file was changed in the meantime",
    "cross_device": "Source and target are on different file systems",
    "denied": "The file's permissions do not allow it",
    "exists": "There is something at this path already",
    "invalid": "The path cannot be used",
    "is_directory": "This is a folder, not a file",
    "loop": "The path has too many symbolic links",
    "no_space": "There is no space left for it",
    "not_directory": "This is not a folder",
    "not_empty": "The folder is not empty",
    "not_found": "There is no such file or folder",
    "not_regular": "This is not a regular file",
    "outside": "The path leads out of the workspace",
    "read_only": "The file system is read-only",
    "short": "The content did not arrive whole",
    "too_large": "It is larger than the limit",
    "too_many": "There are more files than the limit",
}


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


class GuestFiles:
    """`FileBackend` over a `GuestClient`."""

    def __init__(self, client: GuestClient) -> None:
        self._client = client

    async def stat(self, path: str, *, follow: bool = True, beyond: bool = False) -> FileEntry:
        return await self._ask("fs.stat", path, {"follow": follow} | _beyond(beyond), lambda answer: read_entry(answer, "name"))

    async def real_path(self, path: str) -> RealPath:
        return await self._ask("fs.real", path, {}, _real_path)

    async def list(self, path: str = ".", *, after: str | None = None, limit: int = 10_000, beyond: bool = False) -> DirectoryPage:
        pages = Pages(limit, _name)
        more = await self._list(path, after, limit, pages, {"names": True} | _beyond(beyond))
        return DirectoryPage(pages.read, more)

    async def entries(self, path: str = ".", *, after: str | None = None, limit: int = 10_000) -> Sequence[FileEntry]:
        pages = Pages(limit, lambda entry: read_entry(entry, "name"))
        await self._list(path, after, limit, pages, {})
        return pages.read

    async def walk(self, path: str = ".", *, limit: int = 100_000, exclude: Sequence[str] = ()) -> Sequence[FileEntry]:
        _check_range("limit", limit, 1, MAX_WALKED)
        pages = Pages(limit, lambda entry: read_entry(entry, "path"))
        fields: dict[str, Any] = {"limit": limit}
        if exclude:
            fields["exclude"] = [_octets(name) for name in exclude]
        return await self._ask("fs.walk", path, fields, pages.whole, on_event=pages.take)

    async def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, max_size: int | None = 67_108_864, beyond: bool = False
    ) -> FileContent:
        _check_range("offset", offset, 0)
        fields: dict[str, Any] = {"offset": offset} | _beyond(beyond)
        most = READ_CEILING
        if limit is not None:
            most = fields["limit"] = _check_range("limit", limit, 0, READ_CEILING)
        else:
            max_size = READ_CEILING + offset if max_size is None else max_size
        if max_size is not None:
            fields["max_size"] = _check_range("max_size", max_size, 0)
            most = min(most, max_size)
        kept = Collector(most)
        return await self._ask("fs.read", path, fields, lambda answer: _content(answer, kept), inflow=kept)

    async def read_lines(
        self, path: str, *, first: int = 1, last: int | None = None, limit: int = 262_144, beyond: bool = False
    ) -> FileLines:
        fields: dict[str, Any] = {"first": _check_range("first", first, 1), "limit": _check_range("limit", limit, 0, READ_CEILING)}
        if last is not None:
            fields["last"] = _check_range("last", last, first)
        kept = Collector(limit)
        return await self._ask("fs.lines", path, fields | _beyond(beyond), lambda answer: _lines(answer, kept), inflow=kept)

    async def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        _check_range("offset", offset, 0)
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
        fields: dict[str, Any] = {"parents": parents, "create": create} | _beyond(beyond)
        if mode is not None:
            fields["mode"] = _check_range("mode", mode, 0, 0o7777)
        if expect is not None:
            fields["expect"] = expect
        if isinstance(data, bytes):
            fields["size"] = len(data)
        return await self._ask("fs.write", path, fields, lambda answer: _written(answer, path), source=data)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> bool:
        fields = {"parents": parents, "mode": _check_range("mode", mode, 0, 0o7777)}
        return await self._ask("fs.mkdir", path, fields, lambda answer: boolean(answer, "created"))

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        return await self._ask("fs.remove", path, {"recursive": recursive}, lambda answer: integer(answer, "removed"))

    async def rename(self, source: str, target: str, *, replace: bool = True) -> None:
        message = {"op": "fs.rename", "from": _octets(source), "to": _octets(target), "replace": replace}
        plan = Plan("fs.rename", message, lambda _: None, patience=Patience(quiet_s=self._client.timing.quiet))
        await self._answer(self._client.request(plan), source)

    async def _list(self, path: str, after: str | None, limit: int, pages: Pages, fields: dict[str, Any]) -> bool:
        fields["limit"] = _check_range("limit", limit, 1, MAX_LISTED)
        if after is not None:
            fields["after"] = _octets(after)

        def more(answer: Message) -> bool:
            pages.whole(answer)
            return boolean(answer, "more")

        return await self._ask("fs.list", path, fields, more, on_event=pages.take)

    async def _ask(
        self,
        op: str,
        path: str,
        fields: dict[str, Any],
        parse: Callable[[Message], T],
        *,
        inflow: Inflow = NOTHING,
        on_event: Callable[[Message, int], None] | None = None,
        source: Source | None = None,
    ) -> T:
        plan = self._plan(op, path, fields, parse, inflow, on_event)
        return await self._answer(self._client.request(plan, source), path)

    def _plan(
        self,
        op: str,
        path: str,
        fields: dict[str, Any],
        parse: Callable[[Message], T],
        inflow: Inflow,
        on_event: Callable[[Message, int], None] | None = None,
    ) -> Plan[T]:
        patience = Patience(quiet_s=self._client.timing.quiet)
        return Plan(op, {"op": op, "path": _octets(path)} | fields, parse, inflow, on_event, patience)

    async def _answer(self, asking: Awaitable[T], path: str) -> T:
        try:
            return await asking
        except GuestRefusal as refusal:
            raise _refused(refusal, path) from None
        except RequestTooLarge:
            raise FileRefused(kind="invalid", path=path, reason="The request is over 1 MiB") from None


def _refused(refusal: GuestRefusal, path: str) -> FileRefused:
    reason = _REASONS.get(refusal.code)
    kind = refusal.code if reason is not None else "io"
    if reason is None:
        reason = f"The file system says: {os.strerror(refusal.errno)}" if refusal.errno else "The guest could not do it"
    fields = refusal.fields
    extra: dict[str, Any] = {key: fields[key] for key in ("size", "total") if type(fields.get(key)) is int}
    if type(fields.get("real")) is bytes:
        extra["real"] = fields["real"].decode(errors="surrogateescape")
    return FileRefused(kind=kind, path=path, reason=reason, errno=refusal.errno, **extra)


def _octets(path: str) -> bytes:
    try:
        octets = path.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise FileRefused(kind="invalid", path=path, reason="The path cannot be encoded") from None
    if not 1 <= len(octets) <= _LONGEST_PATH:
        raise FileRefused(kind="invalid", path=path[:256], reason=f"A path has 1 to {_LONGEST_PATH} bytes")
    if 0 in octets:
        raise FileRefused(kind="invalid", path=path, reason="A path contains no NUL")
    return octets


def _beyond(beyond: bool) -> dict[str, Any]:
    return {"beyond": True} if beyond else {}


def _check_range(name: str, value: int, low: int, high: int = (1 << 63) - 1) -> int:
    if not low <= value <= high:
        raise ValueError(f"{name} is {low} to {high}, not {value}")
    return value


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


def _written(answer: Message, path: str) -> FileEntry:
    return replace(read_entry(answer, "name"), path=path)
