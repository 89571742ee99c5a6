"""Threads that nobody used for long enough are deleted, as their clients would."""

from __future__ import annotations

import asyncio
import logging

from b4run.errors import B4Error, ThreadBusy
from b4run.storage import Storage
from b4run.storage.statements import now_ms
from b4run.threads.deletion import ThreadDeletion

_SHORTEST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0
_AT_ONCE = 100

logger = logging.getLogger("b4run.threads")


async def keep_expiring(storage: Storage, deletion: ThreadDeletion, ttl_ms: int) -> None:
    """Delete threads whose last run or change is longer ago than `ttl_ms`, for as long as the process lives.

    A thread that is in use stays, and so does one that is used before its turn comes; one whose deletion fails is tried again by
    `ThreadDeletion.keep_finishing`. Never raises; cancel it at the end.
    """
    pause = min(max(ttl_ms / 4_000, _SHORTEST_PAUSE_S), _LONGEST_PAUSE_S)
    while True:
        try:
            await _expire(storage, deletion, now_ms() - ttl_ms)
        except B4Error as error:
            logger.warning("idle threads cannot be looked for", extra={"event": "thread.not_expired", "reason": error.message})
        await asyncio.sleep(pause)


async def _expire(storage: Storage, deletion: ThreadDeletion, before_ms: int) -> None:
    removed = _AT_ONCE
    while removed == _AT_ONCE:
        removed = 0
        for thread_id in await storage.threads.untouched_since(before_ms, limit=_AT_ONCE):
            try:
                await deletion.delete(thread_id, untouched_since_ms=before_ms)
                removed += 1
                logger.info("an idle thread was deleted", extra={"event": "thread.expired", "thread_id": thread_id})
            except ThreadBusy:
                continue
            except Exception as error:  # noqa: BLE001 - whatever a provider raises, the others must be tried
                reason = error.message if isinstance(error, B4Error) else type(error).__name__
                fields = {"event": "thread.not_deleted", "thread_id": thread_id, "reason": reason}
                logger.warning("a thread is not deleted yet", extra=fields)
