"""Deleting a thread: recorded first, then done step by step; what an interruption left is finished in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from b4run.errors import B4Error, ThreadBusy
from b4run.storage import Storage
from b4run.storage.slots import SlotKind
from b4run.threads.sandboxes import SharedSandboxes
from b4run.threads.slots import Slots

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0

logger = logging.getLogger("b4run.threads")


class ThreadDeletion:
    """Removes threads with all that is theirs."""

    def __init__(self, storage: Storage, slots: Slots, sandboxes: SharedSandboxes, checkpoints: BaseCheckpointSaver[Any]) -> None:
        self._storage = storage
        self._slots = slots
        self._sandboxes = sandboxes
        self._checkpoints = checkpoints
        self._under_way: set[asyncio.Task[None]] = set()
        self.failing: dict[str, str] = {}
        """Threads whose removal could not be finished yet, with the reason."""

    async def delete(self, thread_id: str, *, untouched_since_ms: int | None = None) -> None:
        """Remove a thread; one that never was is fine, and with `untouched_since_ms` one that changed after that time stays.

        Once begun it goes on, whatever becomes of the caller.

        Raises:
            ThreadBusy: it has a run, a read or another deletion under way. Nothing has changed then.
            B4Error: something could not be removed. It is recorded, and tried again in the background.
        """
        task = asyncio.create_task(self._delete(thread_id, untouched_since_ms))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        await asyncio.shield(task)

    async def finish_interrupted(self) -> Sequence[str]:
        """Go on with every deletion that was begun and not finished; return the threads that are left."""
        left = []
        for thread_id in await self._storage.threads.deleting():
            try:
                await self.delete(thread_id)
            except ThreadBusy:
                continue
            except Exception as error:  # noqa: BLE001 - whatever a provider raises, the others must be tried
                left.append(thread_id)
                reason = error.message if isinstance(error, B4Error) else type(error).__name__
                fields = {"event": "thread.not_deleted", "thread_id": thread_id, "reason": reason}
                logger.warning("a thread is not deleted yet", extra=fields)
        return left

    async def keep_finishing(self) -> None:
        """`finish_interrupted` for as long as the process lives, less often while it does not help. Never raises; cancel it at the end."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                left = await self.finish_interrupted()
                pause = min(2 * pause, _LONGEST_PAUSE_S) if left else _LONGEST_PAUSE_S / 4
            except B4Error as error:
                logger.warning("deletions cannot be looked at", extra={"event": "thread.not_deleted", "reason": error.message})
            await asyncio.sleep(pause)

    async def aclose(self) -> None:
        """Let what is under way finish, for a while."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=10)

    async def _delete(self, thread_id: str, untouched_since_ms: int | None) -> None:
        slot = await self._slots.claim(thread_id, SlotKind.DELETE)
        if slot is None:
            raise await self._slots.busy(thread_id)
        try:
            if untouched_since_ms is not None and not await self._untouched(thread_id, untouched_since_ms):
                return
            await self._storage.threads.mark_deleting(thread_id)
            await self._storage.uploads.detach(thread_id)
            await self._checkpoints.adelete_thread(thread_id)
            await self._sandboxes.destroy(thread_id)
            await self._storage.grants.forget_thread(thread_id)
            await self._storage.threads.delete(thread_id)
            self.failing.pop(thread_id, None)
        except Exception as error:
            self.failing[thread_id] = error.message if isinstance(error, B4Error) else type(error).__name__
            raise
        finally:
            await slot.release()

    async def _untouched(self, thread_id: str, since_ms: int) -> bool:
        row = await self._storage.threads.find(thread_id)
        return row is not None and row.updated_ms < since_ms
