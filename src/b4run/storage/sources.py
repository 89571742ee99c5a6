"""Sources as bounded rows: written once, read piece by piece, dropped when nothing names them any more."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, delete, exists, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from b4run.storage.statements import now_ms
from b4run.storage.tables import source_rows, sources, staged, workspaces
from b4run.workspace import SourceBundle, SourceEntry
from b4run.workspace.bundle import json_size
from b4run.workspace.content import PIECE_BYTES

_MANIFEST, _CONTENT = 0, 1


@dataclass(frozen=True)
class StoredSource:
    """`SourceContent` of a source in the database. Whoever uses the bytes checks them against the digest."""

    reader: AsyncEngine
    digest: str
    manifest: Sequence[SourceEntry]

    async def pieces(self) -> AsyncIterator[bytes]:
        number = 0
        while (data := await _row(self.reader, self.digest, _CONTENT, number)) is not None:
            yield data
            number += 1


async def store_source(connection: AsyncConnection, bundle: SourceBundle) -> None:
    """Keep a source within the transaction of `connection`; one that is there already stays as it is."""
    await store_content(connection, bundle.digest, bundle.manifest, (file.data for file in bundle.files))


async def store_content(connection: AsyncConnection, digest: str, manifest: Sequence[SourceEntry], content: Iterable[bytes]) -> None:
    """As `store_source`, of verified files whose bytes come in the manifest's order, in pieces of any size."""
    if await connection.scalar(select(exists().where(sources.c.digest == digest))):
        return
    values = {
        "files": len(manifest),
        "bytes": sum(entry.size for entry in manifest),
        "json_bytes": json_size(manifest),
        "stored_ms": now_ms(),
    }
    await connection.execute(insert(sources).values(digest=digest, uploaded_ms=None, **values))
    listed = json.dumps([[entry.path, entry.size, entry.executable] for entry in manifest], separators=(",", ":")).encode()
    for part, pieces in ((_MANIFEST, _cut([listed])), (_CONTENT, _cut(content))):
        for number, data in enumerate(pieces):
            await connection.execute(insert(source_rows).values(digest=digest, part=part, number=number, data=data))


async def find_source(reader: AsyncEngine, digest: str) -> StoredSource | None:
    """Return a stored source, or None."""
    data, number = b"", 0
    while (row := await _row(reader, digest, _MANIFEST, number)) is not None:
        data += row
        number += 1
    if not data:
        return None
    return StoredSource(reader, digest, tuple(SourceEntry(path, size, executable) for path, size, executable in json.loads(data)))


async def drop_unused(connection: AsyncConnection, digest: str) -> None:
    """Drop a source that nothing names and nobody uploaded."""
    await connection.execute(delete(sources).where(sources.c.digest == digest, sources.c.uploaded_ms.is_(None), unused()))


def unused() -> ColumnElement[bool]:
    """Whether neither a workspace nor a thread that waits for its workspace names a source."""
    return ~exists().where(workspaces.c.source_digest == sources.c.digest) & ~exists().where(staged.c.source_digest == sources.c.digest)


async def _row(reader: AsyncEngine, digest: str, part: int, number: int) -> bytes | None:
    query = select(source_rows.c.data).where(source_rows.c.digest == digest, source_rows.c.part == part, source_rows.c.number == number)
    async with reader.connect() as connection:
        found: bytes | None = await connection.scalar(query)
    return found


def _cut(data: Iterable[bytes]) -> Iterator[bytes]:
    """Join and cut to pieces of at most `PIECE_BYTES`."""
    waiting = bytearray()
    for piece in data:
        for at in range(0, len(piece), PIECE_BYTES):
            waiting += piece[at : at + PIECE_BYTES]
            while len(waiting) >= PIECE_BYTES:
                yield bytes(waiting[:PIECE_BYTES])
                del waiting[:PIECE_BYTES]
    if waiting:
        yield bytes(waiting)
