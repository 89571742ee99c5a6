"""A thread's sandbox when several processes serve one app: whoever has it warm and does not use it gives it up to who asks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from b4run.errors import B4Error, SandboxHeld
from b4run.sandbox import SandboxSupervisor
from b4run.sandbox.contract import SandboxHandle
from b4run.storage.slots import SqlSlotStore

HANDOFF_S = 6.0
"""How long to wait for another process to give a sandbox up; it hears of it within a heartbeat."""
_POLL_S = 0.1

T = TypeVar("T")

logger = logging.getLogger("b4run.threads")


class SharedSandboxes:
    """A supervisor's leases for processes that share a database."""

    def __init__(self, supervisor: SandboxSupervisor, slots: SqlSlotStore) -> None:
        self.supervisor = supervisor
        self._slots = slots

    @asynccontextmanager
    async def lease(self, thread_id: str) -> AsyncIterator[SandboxHandle]:
        """As `SandboxSupervisor.lease`."""
        async with AsyncExitStack() as stack:
            yield await self._taking_over(thread_id, lambda: stack.enter_async_context(self.supervisor.lease(thread_id)))

    async def destroy(self, thread_id: str) -> None:
        """As `SandboxSupervisor.destroy`."""
        await self._taking_over(thread_id, lambda: self.supervisor.destroy(thread_id))

    async def hand_off(self, thread_id: str) -> None:
        """Release the thread's sandbox if this process has it and does not use it."""
        if any(status.thread_id == thread_id for status in self.supervisor.status()):
            try:
                await self.supervisor.release(thread_id)
            except B4Error as error:
                fields = {"event": "sandbox.not_handed_off", "thread_id": thread_id, "reason": error.message}
                logger.info("a sandbox that another process asks for is in use", extra=fields)

    async def _taking_over(self, thread_id: str, attempt: Callable[[], Awaitable[T]]) -> T:
        try:
            return await attempt()
        except SandboxHeld:
            if not await self._slots.others():
                raise
        deadline = asyncio.get_running_loop().time() + HANDOFF_S
        await self._slots.ask_handoff(thread_id)
        try:
            while True:
                await asyncio.sleep(_POLL_S)
                try:
                    return await attempt()
                except SandboxHeld:
                    if asyncio.get_running_loop().time() > deadline:
                        raise
        finally:
            await self._slots.end_handoff(thread_id)
