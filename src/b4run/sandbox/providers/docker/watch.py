"""Learning from the engine that a container has ended: some runtimes keep an exec's stream open beyond the death of what was in it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable

from b4run.errors import B4Error
from b4run.sandbox.providers.docker.engine import Engine
from b4run.sandbox.providers.docker.names import LABEL_SANDBOX, LABEL_SCOPE

_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class DeathWatch:
    """One subscription to the engine's events, for all sandboxes of a scope. `on_death` gets the resource id of each that ended.

    When the subscription breaks it is made again, and `on_gap` is called, for what ended meanwhile was not told.
    """

    def __init__(self, engine: Engine, scope: str, on_death: Callable[[str], None], on_gap: Callable[[], None]) -> None:
        self._engine = engine
        self._scope = scope
        self._on_death, self._on_gap = on_death, on_gap
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to watch, unless that was begun before."""
        if self._task is None:
            self._task = asyncio.create_task(self._watch())

    async def aclose(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _watch(self) -> None:
        while True:
            try:
                await self._subscribe()
            except B4Error as error:
                _log.debug("the engine's events broke off", extra={"event": "docker.events_broken", "reason": error.message})
            await asyncio.sleep(_RETRY_SECONDS)

    async def _subscribe(self) -> None:
        filters = {"type": ["container"], "event": ["die", "destroy"], "label": [f"{LABEL_SCOPE}={self._scope}"]}
        async with contextlib.aclosing(self._engine.events(filters, self._on_gap)) as events:
            async for line in events:
                died = (json.loads(line).get("Actor") or {}).get("Attributes", {}).get(LABEL_SANDBOX)
                if died is not None:
                    self._on_death(died)
