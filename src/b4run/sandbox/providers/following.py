"""Following what an engine tells of its sandboxes, for as long as a provider lives."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod

from b4run.errors import B4Error

_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class Following(ABC):
    """A subscription that is made again when it breaks. `event` names the line of the log that tells of a break."""

    event: str

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow, unless that was begun before."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow())

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _follow(self) -> None:
        while True:
            try:
                await self._subscribe()
            except B4Error as error:
                _log.debug("what the engine tells broke off", extra={"event": self.event, "reason": error.message})
            await asyncio.sleep(_RETRY_SECONDS)

    @abstractmethod
    async def _subscribe(self) -> None:
        """Subscribe once, and take what is told until it ends. Raises: B4Error."""
