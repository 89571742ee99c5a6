"""Uploaded sources: who uploaded them, how long they are kept, and which threads wait to be made from them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from b4run.storage.sources import find_source, store_content, unused
from b4run.storage.statements import Engines, now_ms, storage_failure, thread_key
from b4run.storage.tables import source_uploaders, sources, staged, threads
from b4run.workspace import SourceEntry, StagedReference
from b4run.workspace.bundle import json_size
from b4run.workspace.captured import check_keys, read_links

MAX_UPLOADERS = 64
"""Of one source."""


class UploadStatus(StrEnum):
    CREATED = "created"
    HELD = "held"
    """These very bytes were uploaded before; their time begins anew."""


class StagedQuotaExceeded(Exception):
    """There is no room for another upload: {0}"""


class SourceNotHeld(Exception):
    """Nobody uploaded that source, or it was removed meanwhile."""


class AlreadyStaged(Exception):
    """The thread has a workspace to start from already."""


@dataclass(frozen=True, slots=True)
class UploadLimits:
    """`total_bytes` of canonical JSON may be held at once, `uploader_bytes` by one uploader, each unused one for `retention_ms`."""

    total_bytes: int
    uploader_bytes: int
    retention_ms: int


@dataclass(frozen=True, slots=True)
class UploadRow:
    digest: str
    files: int
    bytes: int
    uploaded_ms: int


class SqlUploadStore:
    """The uploads of one database. Every call raises `StorageUnusable` when the database fails."""

    def __init__(self, engines: Engines) -> None:
        self._engine = engines.durable
        self._reader = engines.reader

    async def put(
        self,
        digest: str,
        manifest: Sequence[SourceEntry],
        content: Callable[[], Iterable[bytes]],
        *,
        stamp: Mapping[str, Any] | None,
        limits: UploadLimits,
    ) -> UploadStatus:
        """Keep a verified source as uploaded, in one transaction; what is due is dropped first.

        Raises:
            StagedQuotaExceeded: it does not fit; what is held already always does.
        """
        with storage_failure("the upload cannot be kept"):
            async with self._engine.begin() as connection:
                await _reclaim(connection, limits.retention_ms)
                held = await connection.scalar(select(sources.c.uploaded_ms).where(sources.c.digest == digest)) is not None
                size = json_size(manifest)
                if not held:
                    await _check_room(connection, size, stamp, limits)
                    await store_content(connection, digest, manifest, content())
                await connection.execute(update(sources).where(sources.c.digest == digest).values(uploaded_ms=now_ms()))
                await _bind(connection, digest, stamp, size)
        return UploadStatus.HELD if held else UploadStatus.CREATED

    async def reclaim(self, retention_ms: int) -> int:
        """Drop every source that nothing names, uploads only once `retention_ms` have passed; return how many."""
        with storage_failure("unused sources cannot be removed"):
            async with self._engine.begin() as connection:
                return await _reclaim(connection, retention_ms)

    async def uploaders(self, digest: str) -> Sequence[Mapping[str, Any]]:
        """Return the stamps of those who uploaded a source, the first one first."""
        query = select(source_uploaders.c.stamp).where(source_uploaders.c.digest == digest, source_uploaders.c.stamp.is_not(None))
        with storage_failure("the uploaders cannot be read"):
            async with self._reader.connect() as connection:
                stamps = (await connection.scalars(query.order_by(source_uploaders.c.first_ms, source_uploaders.c.uploader))).all()
        return [json.loads(stamp) for stamp in stamps]

    async def paths(self, digest: str) -> Sequence[str] | None:
        """Return the paths of an uploaded source's files; None when nobody uploaded it, though an admission may have stored it."""
        with storage_failure("the upload cannot be read"):
            async with self._reader.connect() as connection:
                held = await connection.scalar(select(sources.c.uploaded_ms).where(sources.c.digest == digest))
            found = None if held is None else await find_source(self._reader, digest)
        return None if found is None else [entry.path for entry in found.manifest]

    async def of_uploader(self, stamp: Mapping[str, Any] | None) -> Sequence[UploadRow]:
        """Return what one uploader has uploaded, the newest first."""
        query = (
            select(sources.c.digest, sources.c.files, sources.c.bytes, sources.c.uploaded_ms)
            .join(source_uploaders, source_uploaders.c.digest == sources.c.digest)
            .where(source_uploaders.c.uploader == _uploader(stamp), sources.c.uploaded_ms.is_not(None))
            .order_by(sources.c.uploaded_ms.desc(), sources.c.digest)
        )
        with storage_failure("the uploads cannot be read"):
            async with self._reader.connect() as connection:
                return [UploadRow(*row) for row in (await connection.execute(query)).all()]

    async def withdraw(self, digest: str, stamp: Mapping[str, Any] | None) -> bool:
        """Take one uploader's upload back; the bytes go when nobody else uploaded them and no thread needs them. False: not theirs."""
        mine = (source_uploaders.c.digest == digest, source_uploaders.c.uploader == _uploader(stamp))
        with storage_failure("the upload cannot be removed"):
            async with self._engine.begin() as connection:
                if not (await connection.execute(delete(source_uploaders).where(*mine))).rowcount:
                    return False
                others = select(func.count()).select_from(source_uploaders).where(source_uploaders.c.digest == digest)
                if not await connection.scalar(others):
                    await connection.execute(update(sources).where(sources.c.digest == digest).values(uploaded_ms=None))
                    await connection.execute(delete(sources).where(sources.c.digest == digest, unused()))
        return True

    async def attach(self, thread_id: str, reference: StagedReference) -> None:
        """Record what a thread is to start from.

        Raises:
            SourceNotHeld: its source is gone.
            AlreadyStaged: it has something to start from already.
        """
        values = {
            "key": thread_key(thread_id),
            "thread_id": thread_id,
            "source_digest": reference.source_digest,
            "reference": reference.to_json(),
        }
        try:
            with storage_failure("the thread's workspace cannot be recorded"):
                async with self._engine.begin() as connection:
                    there = select(sources.c.uploaded_ms).where(sources.c.digest == reference.source_digest).with_for_update()
                    if await connection.scalar(there) is None:
                        raise SourceNotHeld
                    await connection.execute(insert(staged).values(values))
        except Exception as error:
            if isinstance(error.__cause__, IntegrityError):
                raise AlreadyStaged from error
            raise

    async def reference(self, thread_id: str) -> StagedReference | None:
        """Return what a thread is to start from, or None."""
        with storage_failure("the thread's workspace cannot be read"):
            async with self._reader.connect() as connection:
                text = await connection.scalar(select(staged.c.reference).where(staged.c.key == thread_key(thread_id)))
        if text is None:
            return None
        body = check_keys(json.loads(text), ("sourceDigest", "environmentLinks"), ("baseline",), "the staged workspace")
        return StagedReference(body["sourceDigest"], read_links(body["environmentLinks"]), body.get("baseline"))

    async def detach(self, thread_id: str) -> None:
        """Forget what a thread was to start from."""
        with storage_failure("the thread's workspace cannot be forgotten"):
            async with self._engine.begin() as connection:
                await connection.execute(delete(staged).where(staged.c.key == thread_key(thread_id)))

    async def detach_orphans(self) -> int:
        """Forget what threads were to start from that are not there any more; return how many."""
        known = select(threads.c.key).where(threads.c.key == staged.c.key).exists()
        with storage_failure("left workspaces cannot be forgotten"):
            async with self._engine.begin() as connection:
                return (await connection.execute(delete(staged).where(~known))).rowcount


def canonical_stamp(stamp: Mapping[str, Any]) -> str:
    """Return a stamp as JSON with its keys in order at every depth, by which stamps are compared."""
    return json.dumps(stamp, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _uploader(stamp: Mapping[str, Any] | None) -> str:
    return "" if stamp is None else hashlib.sha256(canonical_stamp(stamp).encode(errors="surrogatepass")).hexdigest()


async def _check_room(connection: AsyncConnection, size: int, stamp: Mapping[str, Any] | None, limits: UploadLimits) -> None:
    total = await connection.scalar(select(func.coalesce(func.sum(sources.c.json_bytes), 0)).where(sources.c.uploaded_ms.is_not(None)))
    if int(total or 0) + size > limits.total_bytes:
        raise StagedQuotaExceeded(f"{limits.total_bytes:,} bytes may be held in all")
    own = select(func.coalesce(func.sum(source_uploaders.c.bytes), 0)).where(source_uploaders.c.uploader == _uploader(stamp))
    if int(await connection.scalar(own) or 0) + size > limits.uploader_bytes:
        raise StagedQuotaExceeded(f"one uploader may hold {limits.uploader_bytes:,} bytes")


async def _bind(connection: AsyncConnection, digest: str, stamp: Mapping[str, Any] | None, size: int) -> None:
    uploader = _uploader(stamp)
    known = (await connection.scalars(select(source_uploaders.c.uploader).where(source_uploaders.c.digest == digest))).all()
    if uploader in known:
        return
    if len(known) >= MAX_UPLOADERS:
        raise StagedQuotaExceeded(f"one source may have {MAX_UPLOADERS} uploaders")
    text = None if stamp is None else canonical_stamp(stamp)
    values = {"digest": digest, "uploader": uploader, "stamp": text, "bytes": size, "first_ms": now_ms()}
    await connection.execute(insert(source_uploaders).values(values))


async def _reclaim(connection: AsyncConnection, retention_ms: int) -> int:
    due = sources.c.uploaded_ms.is_(None) | (sources.c.uploaded_ms < now_ms() - retention_ms)
    return (await connection.execute(delete(sources).where(due, unused()))).rowcount
