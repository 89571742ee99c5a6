"""What people have allowed while agents ran: kept apart from the configuration, attributed, listed and revoked."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Protocol

from b4run.errors import B4Error
from b4run.permissions.rules import MAX_PATTERN, Key


class GrantScope(StrEnum):
    THREAD = "thread"
    APP = "app"


class GrantNotRecorded(B4Error):
    """The permission could not be kept: {reason}"""

    code = "B4_E3001"
    hint = "It holds for this call only."


@dataclass(frozen=True, slots=True)
class Grant:
    """One permission. `thread_id` is None for the whole app; an `exact` one covers its very text, another what a rule would."""

    key: Key
    pattern: str
    exact: bool = True
    thread_id: str | None = None
    granted_by: str = ""
    id: int = 0
    """Given by the store."""
    granted_at: datetime | None = None
    """Given by the store, in UTC."""
    expires_at: datetime | None = None
    """When it is over, in UTC; None: when it is revoked."""

    @property
    def scope(self) -> GrantScope:
        return GrantScope.APP if self.thread_id is None else GrantScope.THREAD


class GrantStore(Protocol):
    """Keeps grants across processes."""

    async def list(self, thread_id: str | None = None) -> Sequence[Grant]:
        """Return the grants that hold for a thread, the app's included; without one all grants. Oldest first, without expired ones."""

    async def add(self, grant: Grant) -> Grant:
        """Keep a grant and return it with id and time; one that is there already is returned as it is.

        Raises:
            GrantNotRecorded: it is blank, has a NUL, is longer than 4,096 characters, or the store does not work.
        """

    async def revoke(self, grant_id: int) -> bool:
        """Drop a grant; False when there is none of that id."""

    async def forget_thread(self, thread_id: str) -> int:
        """Drop a thread's grants, as part of its deletion; return how many there were."""


class MemoryGrantStore:
    """Grants of one process, for tests and for agents without an app."""

    def __init__(self) -> None:
        self._grants: dict[int, Grant] = {}
        self._ids = itertools.count(1)

    async def list(self, thread_id: str | None = None) -> Sequence[Grant]:
        now = datetime.now(UTC)
        return [
            grant
            for grant in self._grants.values()
            if (thread_id is None or grant.thread_id in (None, thread_id)) and (grant.expires_at is None or grant.expires_at > now)
        ]

    async def add(self, grant: Grant) -> Grant:
        check_grant(grant)
        for known in await self.list():
            if _same(known, grant):
                return known
        kept = replace(grant, id=next(self._ids), granted_at=datetime.now(UTC))
        self._grants[kept.id] = kept
        return kept

    async def revoke(self, grant_id: int) -> bool:
        return self._grants.pop(grant_id, None) is not None

    async def forget_thread(self, thread_id: str) -> int:
        mine = [grant.id for grant in self._grants.values() if grant.thread_id == thread_id]
        for grant_id in mine:
            del self._grants[grant_id]
        return len(mine)


def check_grant(grant: Grant) -> None:
    """Refuse what no store may keep.

    Raises:
        GrantNotRecorded: it is blank, has a NUL, is not text that can be stored, or is longer than 4,096 characters.
    """
    if not grant.pattern.strip():
        raise GrantNotRecorded(reason="it is blank")
    if len(grant.pattern) > MAX_PATTERN:
        raise GrantNotRecorded(reason=f"it is longer than {MAX_PATTERN:,} characters")
    if "\0" in grant.pattern or any("\ud800" <= sign <= "\udfff" for sign in grant.pattern):
        raise GrantNotRecorded(reason="it is not plain text")


def _same(left: Grant, right: Grant) -> bool:
    return (left.key, left.pattern, left.exact, left.thread_id) == (right.key, right.pattern, right.exact, right.thread_id)
