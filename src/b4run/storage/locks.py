"""Locks between processes that share a database. Whoever dies gives them up: the kernel or the server sees to that."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from b4run.errors import DeadlinePassed, StorageUnusable

_POLL_SECONDS = 0.02


@asynccontextmanager
async def named_lock(engine: AsyncEngine, name: str, *, deadline_s: float) -> AsyncIterator[None]:
    """Hold the lock called `name` for the length of the block: a file beside a SQLite database, an advisory lock in PostgreSQL.

    Raises:
        DeadlinePassed: another holder did not give it up in time.
        StorageUnusable: the database or its folder fails.
    """
    digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
    holding = _file_lock if engine.dialect.name == "sqlite" else _advisory_lock
    async with holding(engine, digest, name, deadline_s):
        yield


@asynccontextmanager
async def _file_lock(engine: AsyncEngine, digest: str, name: str, deadline_s: float) -> AsyncIterator[None]:
    folder = Path(str(engine.url.database)).parent / "locks"
    path = folder / digest[:40]
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        async with _bounded(name, deadline_s):
            while (descriptor := _try_file(path)) is None:
                await asyncio.sleep(_POLL_SECONDS)
    except OSError as error:
        raise StorageUnusable(reason=f"a lock cannot be taken ({error.strerror})") from error
    try:
        yield
    finally:
        # Removed while it is held, so that whoever waits sees that its file is not the one any more.
        path.unlink(missing_ok=True)
        os.close(descriptor)


def _try_file(path: Path) -> int | None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(descriptor)
    return None


@asynccontextmanager
async def _advisory_lock(engine: AsyncEngine, digest: str, name: str, deadline_s: float) -> AsyncIterator[None]:
    """One connection holds it for as long as it lasts; one that breaks gives it up."""
    key = {"key": int.from_bytes(bytes.fromhex(digest[:16]), signed=True)}
    try:
        connection = await engine.execution_options(isolation_level="AUTOCOMMIT").connect()
    except SQLAlchemyError as error:
        raise StorageUnusable(reason="a lock cannot be taken") from error
    try:
        async with _bounded(name, deadline_s):
            while not await connection.scalar(text("SELECT pg_try_advisory_lock(:key)"), key):
                await asyncio.sleep(_POLL_SECONDS)
        yield
    finally:
        # Not back to the pool: a lock that could not be given up must end with its connection.
        await asyncio.shield(connection.invalidate())
        await asyncio.shield(connection.close())


@asynccontextmanager
async def _bounded(name: str, deadline_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError as error:
        raise DeadlinePassed(operation=f"another process that works on {name}", seconds=deadline_s) from error
