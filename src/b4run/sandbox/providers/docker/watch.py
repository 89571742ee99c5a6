"""Learning from the engine that a container has ended: some runtimes keep an exec's stream open beyond the death of what was in it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable

from b4run.sandbox.providers.docker.engine import Engine
from b4run.sandbox.providers.docker.names import LABEL_SANDBOX, LABEL_SCOPE
from b4run.sandbox.providers.following import Following


class DeathWatch(Following):
    """One subscription to the engine's events, for all sandboxes of a scope. `on_death` gets the resource id of each that ended.

    When the subscription breaks it is made again, and `on_gap` is called, for what ended meanwhile was not told.
    """

    event = "docker.events_broken"

    def __init__(self, engine: Engine, scope: str, on_death: Callable[[str], None], on_gap: Callable[[], None]) -> None:
        super().__init__()
        self._engine = engine
        self._scope = scope
        self._on_death, self._on_gap = on_death, on_gap

    async def _subscribe(self) -> None:
        filters = {"type": ["container"], "event": ["die", "destroy"], "label": [f"{LABEL_SCOPE}={self._scope}"]}
        async with contextlib.aclosing(self._engine.events(filters, self._on_gap)) as events:
            async for line in events:
                died = (json.loads(line).get("Actor") or {}).get("Attributes", {}).get(LABEL_SANDBOX)
                if died is not None:
                    self._on_death(died)
