"""Reading one thread's workspace through a guest of its own, beside the thread's sandbox."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from b4run.errors import ReaderClosed
from b4run.sandbox.contract import FileEntry, FileKind, FileTree
from b4run.sandbox.guest.calls import Collector
from b4run.sandbox.guest.client import GuestClient
from b4run.sandbox.guest.file_reads import MAX_WALKED, READ_CEILING, GuestFileReader, Pages
from b4run.sandbox.guest.file_requests import check_range, octets
from b4run.sandbox.guest.frames import Lane, ProtocolError
from b4run.sandbox.guest.messages import Message, integer, read_entry


class GuestReader(GuestFileReader):
    """`WorkspaceReader` over a guest that answers nothing but reads. `remove` is what the provider has to take away at the end."""

    def __init__(self, client: GuestClient, *, remove: Callable[[], Awaitable[None]]) -> None:
        super().__init__(client)
        self._remove = remove
        self._closed = False

    @property
    def thread_id(self) -> str:
        return self._client.thread_id

    @property
    def workspace_root(self) -> str:
        return self._client.hello.root

    async def read_tree(
        self,
        path: str = ".",
        *,
        skip: Sequence[str] = (),
        max_entries: int = 10_000,
        max_file_bytes: int = 2_097_152,
        max_total_bytes: int = 16_777_216,
    ) -> FileTree:
        fields: dict[str, Any] = {
            "limit": check_range("max_entries", max_entries, 0, MAX_WALKED),
            "max_file": check_range("max_file_bytes", max_file_bytes, 0, READ_CEILING),
            "max_total": check_range("max_total_bytes", max_total_bytes, 0, READ_CEILING),
        }
        if skip:
            fields["skip"] = [octets(name) for name in skip]
        pages = Pages(max_entries, lambda entry: read_entry(entry, "path"))
        kept = Collector(max_total_bytes)
        return await self._ask("fs.tree", path, fields, lambda answer: _tree(answer, pages, kept), inflow=kept, on_event=pages.take)

    async def aclose(self) -> None:
        """Remove what the reader is made of; safe to repeat when it failed."""
        self._closed = True
        try:
            await self._client.close()
        finally:
            await self._remove()

    def _check(self) -> None:
        if self._closed:
            raise ReaderClosed(thread_id=self.thread_id)


def _tree(answer: Message, pages: Pages, kept: Collector) -> FileTree:
    entries: list[FileEntry] = pages.whole(answer)
    data = bytes(kept.kept(Lane.OUTPUT))
    contents: dict[str, bytes] = {}
    at = 0
    for entry in entries:
        if entry.kind is FileKind.FILE:
            contents[entry.path] = data[at : at + entry.size]
            at += entry.size
    if integer(answer, "length") != len(data) or at != len(data):
        raise ProtocolError("content that is not of the length announced")
    return FileTree(entries, contents)
