"""Grants as rows. Each is one statement or one short transaction, so processes see each other's at once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Row, delete, insert, or_, select
from sqlalchemy.exc import IntegrityError, SQLAlchemyError

from b4run.errors import StorageUnusable
from b4run.permissions.grants import Grant, GrantNotRecorded, check_grant
from b4run.permissions.rules import Key
from b4run.storage.statements import Engines, now_ms
from b4run.storage.tables import grants


class SqlGrantStore:
    """The `GrantStore` of an app. Reads raise `StorageUnusable` when the database fails: then nothing is granted."""

    def __init__(self, engines: Engines) -> None:
        self._engine = engines.durable
        self._reader = engines.reader

    async def list(self, thread_id: str | None = None) -> Sequence[Grant]:
        valid = or_(grants.c.expires_ms.is_(None), grants.c.expires_ms > now_ms())
        query = select(grants).where(valid).order_by(grants.c.id)
        if thread_id is not None:
            query = query.where(or_(grants.c.thread_id == thread_id, grants.c.thread_id.is_(None)))
        try:
            async with self._reader.connect() as connection:
                return [_grant(row) for row in await connection.execute(query)]
        except SQLAlchemyError as error:
            raise StorageUnusable(reason="the grants cannot be read") from error

    async def add(self, grant: Grant) -> Grant:
        check_grant(grant)
        digest = _digest(grant)
        try:
            try:
                async with self._engine.begin() as connection:
                    await connection.execute(delete(grants).where(grants.c.digest == digest, grants.c.expires_ms <= now_ms()))
                    await connection.execute(insert(grants).values(digest=digest, **_values(grant)))
            except IntegrityError:
                pass  # It is there already, which is what was asked for.
            async with self._reader.connect() as connection:
                return _grant((await connection.execute(select(grants).where(grants.c.digest == digest))).one())
        except SQLAlchemyError as error:
            raise GrantNotRecorded(reason="the app's records cannot be written") from error

    async def revoke(self, grant_id: int) -> bool:
        return await self._delete(grants.c.id == grant_id) > 0

    async def forget_thread(self, thread_id: str) -> int:
        return await self._delete(grants.c.thread_id == thread_id)

    async def _delete(self, condition: Any) -> int:
        try:
            async with self._engine.begin() as connection:
                return (await connection.execute(delete(grants).where(condition))).rowcount
        except SQLAlchemyError as error:
            raise StorageUnusable(reason="the grants cannot be changed") from error


def _values(grant: Grant) -> dict[str, Any]:
    return {
        "key": grant.key.value,
        "pattern": grant.pattern,
        "exact": grant.exact,
        "thread_id": grant.thread_id,
        "granted_by": grant.granted_by,
        "granted_ms": now_ms(),
        "expires_ms": None if grant.expires_at is None else int(grant.expires_at.timestamp() * 1_000),
    }


def _digest(grant: Grant) -> str:
    identity = [grant.key.value, grant.pattern, grant.exact, grant.thread_id]
    return hashlib.sha256(json.dumps(identity).encode()).hexdigest()


def _grant(row: Row[Any]) -> Grant:
    return Grant(
        key=Key(row.key),
        pattern=row.pattern,
        exact=row.exact,
        thread_id=row.thread_id,
        granted_by=row.granted_by,
        id=row.id,
        granted_at=datetime.fromtimestamp(row.granted_ms / 1_000, UTC),
        expires_at=None if row.expires_ms is None else datetime.fromtimestamp(row.expires_ms / 1_000, UTC),
    )
