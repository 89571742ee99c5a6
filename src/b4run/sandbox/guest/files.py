"""The workspace's files over the guest's channel, reading and writing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from b4run.sandbox.contract import FileEntry
from b4run.sandbox.guest.calls import Patience, Plan
from b4run.sandbox.guest.file_reads import GuestFileReader
from b4run.sandbox.guest.file_requests import beyond_field, check_range, octets
from b4run.sandbox.guest.messages import Message, boolean, integer, read_entry


class GuestFiles(GuestFileReader):
    """`FileBackend` over a `GuestClient`."""

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
        fields: dict[str, Any] = {"parents": parents, "create": create} | beyond_field(beyond)
        if mode is not None:
            fields["mode"] = check_range("mode", mode, 0, 0o7777)
        if expect is not None:
            fields["expect"] = expect
        if isinstance(data, bytes):
            fields["size"] = len(data)
        return await self._ask("fs.write", path, fields, lambda answer: _written(answer, path), source=data)

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> bool:
        fields = {"parents": parents, "mode": check_range("mode", mode, 0, 0o7777)}
        return await self._ask("fs.mkdir", path, fields, lambda answer: boolean(answer, "created"))

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        return await self._ask("fs.remove", path, {"recursive": recursive}, lambda answer: integer(answer, "removed"))

    async def rename(self, source: str, target: str, *, replace: bool = True) -> None:
        message = {"op": "fs.rename", "from": octets(source), "to": octets(target), "replace": replace}
        plan = Plan("fs.rename", message, lambda _: None, patience=Patience(quiet_s=self._client.timing.quiet))
        await self._answer(self._client.request(plan), source)


def _written(answer: Message, path: str) -> FileEntry:
    return replace(read_entry(answer, "name"), path=path)
