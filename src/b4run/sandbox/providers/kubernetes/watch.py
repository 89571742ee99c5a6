"""Learning from the cluster that a Pod has ended: the stream of an exec may stay open beyond the death of its node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from b4run.errors import B4Error
from b4run.sandbox.providers.kubernetes.cluster import PODS, Cluster
from b4run.sandbox.providers.kubernetes.names import LABEL_THREAD, scope_selector

_RETRY_SECONDS = 1.0

_log = logging.getLogger(__name__)


class PodWatch:
    """One watch of the Pods of a scope. `on_change` gets the resource id of a thread with its Pod, None when that is removed.

    When the watch breaks it is made again, and `on_gap` is called, for what happened meanwhile was not told.
    """

    def __init__(
        self, cluster: Cluster, scope: str, on_change: Callable[[str, dict[str, Any] | None], None], on_gap: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._selector = scope_selector(scope)
        self._on_change, self._on_gap = on_change, on_gap
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
                await self._follow()
            except B4Error as error:
                _log.debug("the cluster's changes broke off", extra={"event": "kubernetes.watch_broken", "reason": error.message})
            await asyncio.sleep(_RETRY_SECONDS)

    async def _follow(self) -> None:
        async with contextlib.aclosing(self._cluster.watch(PODS, self._selector, self._on_gap)) as changes:
            async for change in changes:
                pod = change.get("object") or {}
                name = ((pod.get("metadata") or {}).get("labels") or {}).get(LABEL_THREAD)
                if name is not None and change.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                    self._on_change(name, None if change["type"] == "DELETED" else pod)
