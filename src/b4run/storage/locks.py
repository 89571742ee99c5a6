"""Locks between processes that share a database. Whoever dies gives them up: the kernel or the server sees to that."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from sqlalchemy import text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from b4run.errors import DeadlinePassed, StorageUnusable

_POLL_SECONDS = 0.02


class Locks:
    """The locks of one open database: files beside SQLite's, advisory locks in PostgreSQL, all of them on one connection."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._held: set[str] = set()
        self._connection: AsyncConnection | None = None
        self._asking = asyncio.Lock()

    @asynccontextmanager
    async def hold(self, name: str, *, deadline_s: float) -> AsyncIterator[None]:
        """Hold the lock called `name` for the length of the block.

        Raises:
            DeadlinePassed: another holder, of this process or another, did not give it up in time.
            StorageUnusable: the database or its folder fails.
        """
        digest = hashlib.sha256(name.encode(errors="surrogatepass")).hexdigest()
        async with _bounded(name, deadline_s):
            while digest in self._held:
                await asyncio.sleep(_POLL_SECONDS)
            self._held.add(digest)
            try:
                held = await (self._take_file(digest) if self._engine.dialect.name == "sqlite" else self._take_advisory(digest))
            except BaseException:
                self._held.discard(digest)
                raise
        try:
            yield
        finally:
            try:
                if isinstance(held, _File):
                    held.give_up()
                else:
                    await asyncio.shield(self._give_up_advisory(held))
            finally:
                self._held.discard(digest)

    async def aclose(self) -> None:
        """Give up the connection, and with it whatever is still held by it."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                await connection.invalidate()
                await connection.close()

    async def _take_file(self, digest: str) -> _File:
        folder = Path(str(self._engine.url.database)).parent / "locks"
        try:
            folder.mkdir(mode=0o700, exist_ok=True)
            while (found := _File.try_take(folder / digest[:40])) is None:
                await asyncio.sleep(_POLL_SECONDS)
        except OSError as error:
            raise StorageUnusable(reason=f"a lock cannot be taken ({error.strerror})") from error
        return found

    async def _take_advisory(self, digest: str) -> int:
        key = int.from_bytes(bytes.fromhex(digest[:16]), signed=True)
        while True:
            asking = asyncio.ensure_future(self._ask("SELECT pg_try_advisory_lock(:key)", key))
            try:
                if await asyncio.shield(asking):
                    return key
            except asyncio.CancelledError:
                # The server may have given it all the same.
                await asyncio.wait({asking})
                if not asking.exception() and asking.result():
                    await self._give_up_advisory(key)
                raise
            await asyncio.sleep(_POLL_SECONDS)

    async def _give_up_advisory(self, key: int) -> None:
        with suppress(StorageUnusable):
            await self._ask("SELECT pg_advisory_unlock(:key)", key)

    async def _ask(self, query: str, key: int) -> bool:
        async with self._asking:
            try:
                if self._connection is None:
                    self._connection = await self._engine.execution_options(isolation_level="AUTOCOMMIT").connect()
                return bool(await self._connection.scalar(text(query), {"key": key}))
            except (SQLAlchemyError, OSError) as error:
                # A connection that broke holds nothing any more.
                await self.aclose()
                raise StorageUnusable(reason="a lock cannot be taken") from error


class _File:
    """A lock file that is held."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path, self._descriptor = path, descriptor

    @classmethod
    def try_take(cls, path: Path) -> _File | None:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return cls(path, descriptor)
        except (BlockingIOError, FileNotFoundError):
            pass
        os.close(descriptor)
        return None

    def give_up(self) -> None:
        # Removed while it is held, so that whoever waits sees that its file is not the one any more.
        self._path.unlink(missing_ok=True)
        os.close(self._descriptor)


@asynccontextmanager
async def _bounded(name: str, deadline_s: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(deadline_s):
            yield
    except TimeoutError as error:
        raise DeadlinePassed(operation=f"another process that works on {name}", seconds=deadline_s) from error
