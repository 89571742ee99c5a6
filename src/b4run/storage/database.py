"""Opening a database: where it lies, how it is set up, and bringing its schema up to date."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, event, inspect, make_url, text
from sqlalchemy.exc import ArgumentError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from b4run.errors import StorageUnusable
from b4run.storage.grants import SqlGrantStore
from b4run.storage.locks import Locks
from b4run.storage.runs import SqlRunStore
from b4run.storage.slots import SqlSlotStore
from b4run.storage.statements import Engines
from b4run.storage.tables import HEAD
from b4run.storage.threads import SqlThreadStore
from b4run.storage.uploads import SqlUploadStore
from b4run.storage.workspaces import SqlWorkspaceStore

DATABASE_VARIABLE = "B4_DATABASE_URL"
"""Where the app's records are kept, if not in its `.b4`; holds a password, so it is no key of `b4_config.py`."""

BUSY_TIMEOUT_MS = 10_000
"""How long a process waits for another one's write."""

WRITE_QUEUE_SECONDS = 60
"""How long a write may wait for those of its own process."""

_READERS = 8
"""Connections that are kept, and as many more while they are needed."""

_DRIVERS = {"postgresql": "postgresql+psycopg", "postgres": "postgresql+psycopg", "sqlite": "sqlite+aiosqlite"}
"""The asynchronous driver for a URL that names none."""

_MIGRATION_LOCK = 0x62347275
"""Any number that nothing else in a PostgreSQL database locks by."""


@dataclass(frozen=True)
class Storage:
    """One open database."""

    engines: Engines

    @cached_property
    def grants(self) -> SqlGrantStore:
        return SqlGrantStore(self.engines)

    @cached_property
    def workspaces(self) -> SqlWorkspaceStore:
        return SqlWorkspaceStore(self.engines)

    @cached_property
    def threads(self) -> SqlThreadStore:
        return SqlThreadStore(self.engines)

    @cached_property
    def runs(self) -> SqlRunStore:
        return SqlRunStore(self.engines)

    @cached_property
    def slots(self) -> SqlSlotStore:
        return SqlSlotStore(self.engines)

    @cached_property
    def uploads(self) -> SqlUploadStore:
        return SqlUploadStore(self.engines)

    @cached_property
    def locks(self) -> Locks:
        return Locks(self.engines.durable)


def state_folder(app_root: Path) -> Path:
    """Return the app's `.b4`, made for its owner alone and ignored by git."""
    folder = app_root / ".b4"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        ignore = folder / ".gitignore"
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        raise StorageUnusable(reason=f"the folder .b4 cannot be made ({error.strerror})") from error
    return folder


def app_storage_url(app_root: Path) -> str:
    """Return the URL of the app's database: `B4_DATABASE_URL`, or SQLite in the app's `.b4`, whose folder is made."""
    if url := os.environ.get(DATABASE_VARIABLE):
        return url
    return f"sqlite+aiosqlite:///{state_folder(app_root) / 'b4.sqlite'}"


@asynccontextmanager
async def open_storage(url: str) -> AsyncIterator[Storage]:
    """Open a database by SQLAlchemy URL (`sqlite+aiosqlite:///…`, `postgresql+psycopg://…`) with a current schema.

    Several processes may open the same one at the same time; one of them brings the schema up to date.

    Raises:
        StorageUnusable: it cannot be reached, is no database of ours, or was made by a newer version.
    """
    engines = _engines(url)
    try:
        try:
            async with engines.reader.connect() as connection:
                current = await connection.run_sync(_revision) == HEAD
            if not current:
                async with engines.durable.begin() as connection:
                    await connection.run_sync(_upgrade)
        except (SQLAlchemyError, OSError) as error:
            raise StorageUnusable(reason=_plain(error)) from error
        storage = Storage(engines)
        try:
            yield storage
        finally:
            await storage.locks.aclose()
    finally:
        for engine in (engines.reader, engines.durable, engines.urgent):
            await engine.dispose()


def _engines(url: str) -> Engines:
    reader = _engine(url, pool_size=_READERS, max_overflow=_READERS)
    if reader.dialect.name != "sqlite":
        return Engines(reader, reader, reader.execution_options(reading=True), _engine(url, pool_size=1, max_overflow=0))
    # Writers that find each other in SQLite poll, and the unlucky one starves; here they queue up before it.
    writer = _engine(url, pool_size=1, max_overflow=0, pool_timeout=WRITE_QUEUE_SECONDS)
    urgent = _engine(url, pool_size=1, max_overflow=0).execution_options(quick=True)
    return Engines(writer, writer.execution_options(quick=True), reader.execution_options(reading=True), urgent)


def _engine(url: str, **pool: Any) -> AsyncEngine:
    try:
        parsed = make_url(url)
        driver = _DRIVERS.get(parsed.drivername)
        engine = create_async_engine(parsed.set(drivername=driver) if driver else parsed, **pool)
    except ArgumentError as error:
        raise StorageUnusable(reason="its URL is no database URL") from error
    except ImportError as error:
        raise StorageUnusable(reason=f"the driver {error.name!r} is not installed") from error
    if engine.dialect.name == "sqlite":
        event.listen(engine.sync_engine, "connect", _set_up_sqlite)
        event.listen(engine.sync_engine, "begin", _begin_sqlite)
    return engine


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in (f"busy_timeout={BUSY_TIMEOUT_MS}", "journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_sqlite(connection: Connection) -> None:
    """The driver would leave schema changes out of the transaction; and a reader that turns writer could only fail.

    Who only reads says so by the execution option `reading`, and then waits for nobody; `quick` writes do not wait for the disk.
    """
    options = connection.get_execution_options()
    if options.get("reading"):
        connection.exec_driver_sql("BEGIN")
        return
    quick = bool(options.get("quick"))
    if connection.info.get("quick", False) != quick:
        connection.exec_driver_sql(f"PRAGMA synchronous={'NORMAL' if quick else 'FULL'}")
        connection.info["quick"] = quick
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _revision(connection: Connection) -> str | None:
    """Return the migration a database stands at."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    found: str | None = connection.scalar(text("SELECT version_num FROM alembic_version"))
    return found


def _upgrade(connection: Connection) -> None:
    """Run what migrations are missing, alone: SQLite by the write lock this transaction holds, PostgreSQL by a lock of its own."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _MIGRATION_LOCK})
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).with_name("migrations")).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise StorageUnusable(reason="a newer version of b4run made it") from error


def _plain(error: Exception) -> str:
    """Return the database's own words, without the statement and its parameters."""
    return str(getattr(error, "orig", None) or error)
