"""Filling a workspace through its guest, which checks every byte against the source's digest before it says that it is done."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Final

from b4run.errors import SandboxUnavailable, WorkspaceInvalid
from b4run.sandbox.guest.calls import Patience, Plan
from b4run.sandbox.guest.client import GuestClient
from b4run.sandbox.guest.frames import ProtocolError
from b4run.sandbox.guest.messages import GuestRefusal, integer
from b4run.workspace import EnvironmentLink, SourceEntry
from b4run.workspace.baseline import GitBaseline
from b4run.workspace.content import SourceContent, by_file

_FILE, _PROGRAM, _LINK, _BESIDE = range(4)
_RECORD: Final = struct.Struct(">BHQ")
_BATCH: Final = 262_144
"""Bytes of small records that are sent together."""
_OFF_LOOP: Final = 65_536
"""From how many bytes on compressing leaves the event loop."""

_SILENT_S: Final = 60.0
"""How long the guest may take between two pieces, and from the last to its answer."""


async def seed_workspace(
    client: GuestClient, content: SourceContent, *, links: Sequence[EnvironmentLink] = (), baseline: bool = False
) -> str | None:
    """Replace whatever the workspace holds by `content`, links and, if asked for, a git baseline; return the baseline's commit.

    After a failure the workspace is empty, or the next call empties it.

    Raises:
        WorkspaceInvalid: the content is not what its digest says.
        SandboxUnavailable: the workspace could not be written.
        SandboxLost: the connection has ended.
    """
    repository = GitBaseline() if baseline else None
    result: list[str] = []
    message = {"op": "fs.seed", "digest": bytes.fromhex(content.digest)}
    plan: Plan[tuple[int, int]] = Plan(
        "fs.seed", message, lambda answer: (integer(answer, "files"), integer(answer, "bytes")), patience=Patience(quiet_s=_SILENT_S)
    )
    expected = (len(content.manifest), sum(entry.size for entry in content.manifest))
    try:
        found = await client.request(plan, _batched(_records(content, links, repository, result.append)))
    except ValueError as error:
        raise WorkspaceInvalid(reason=str(error)) from None
    except GuestRefusal as refusal:
        if refusal.code in ("changed", "short"):
            raise WorkspaceInvalid(reason=f"the stored bytes of source {content.digest} are not what they were") from None
        raise SandboxUnavailable(thread_id=client.thread_id, reason=f"its workspace could not be filled ({refusal.code})") from None
    if found != expected:
        raise ProtocolError("a workspace filled with another number of files")
    return result[0] if result else None


async def _records(
    content: SourceContent, links: Sequence[EnvironmentLink], repository: GitBaseline | None, settle: Callable[[str], Any]
) -> AsyncIterator[bytes]:
    began: SourceEntry | None = None
    async for entry, part, last in by_file(content):
        if entry is not began:
            began = entry
            yield _record(_PROGRAM if entry.executable else _FILE, entry.path, entry.size)
            if repository is not None:
                repository.begin(entry)
        yield part
        if repository is not None:
            await _off_loop(len(part), repository.content, part)
            if last:
                repository.end()
    for link in links:
        target = link.target.encode()
        yield _record(_LINK, link.path, len(target)) + target
    if repository is not None:
        commit, files = await asyncio.to_thread(repository.finish, links)
        for path, data in files:
            yield _record(_BESIDE, path, len(data))
            yield data
        settle(commit)


async def _off_loop(size: int, work: Callable[[bytes], None], data: bytes) -> None:
    if size < _OFF_LOOP:
        work(data)
    else:
        await asyncio.to_thread(work, data)


def _record(kind: int, path: str, size: int) -> bytes:
    name = path.encode()
    return _RECORD.pack(kind, len(name), size) + name


async def _batched(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    waiting = bytearray()
    async for piece in pieces:
        if len(piece) >= _BATCH:
            if waiting:
                yield bytes(waiting)
                waiting.clear()
            yield piece
            continue
        waiting += piece
        if len(waiting) >= _BATCH:
            yield bytes(waiting)
            waiting.clear()
    if waiting:
        yield bytes(waiting)
