"""What the stores share: a thread's key, the clocks, and one way to tell that the database fails."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import BigInteger
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from b4run.errors import StorageUnusable


@dataclass(frozen=True, slots=True)
class Engines:
    """One database, opened for three kinds of work. In SQLite all writes pass one connection, first come, first served."""

    durable: AsyncEngine
    """Writes that outlive a power loss once they are answered."""
    quick: AsyncEngine
    """Writes that outlive the process; SQLite does not wait for the disk."""
    reader: AsyncEngine
    """Never waits for a write."""
    urgent: AsyncEngine
    """A connection of its own, for what must not queue behind other work: the heartbeat."""


def thread_key(thread_id: str) -> str:
    """Return the digest that stands for a thread's id, which may be too long to index."""
    return hashlib.sha256(thread_id.encode(errors="surrogatepass")).hexdigest()


def now_ms() -> int:
    """Return this host's clock in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


class database_ms(FunctionElement[int]):
    """The database's own clock in milliseconds since 1970: what processes on several hosts agree on."""

    name = "database_ms"
    type = BigInteger()
    inherit_cache = True


@compiles(database_ms, "sqlite")
def _sqlite_ms(element: database_ms, compiler: Any, **_: Any) -> str:
    return "CAST((julianday('now') - 2440587.5) * 86400000.0 AS INTEGER)"


@compiles(database_ms, "postgresql")
def _postgresql_ms(element: database_ms, compiler: Any, **_: Any) -> str:
    return "CAST(extract(epoch from clock_timestamp()) * 1000 AS BIGINT)"


@contextmanager
def storage_failure(reason: str) -> Iterator[None]:
    """Turn the database's failures into `StorageUnusable`."""
    try:
        yield
    except SQLAlchemyError as error:
        raise StorageUnusable(reason=reason) from error
