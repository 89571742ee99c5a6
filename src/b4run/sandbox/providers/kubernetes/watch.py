"""Learning from the cluster that a Pod has ended: the stream of an exec may stay open beyond the death of its node."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

from b4run.sandbox.providers.following import Following
from b4run.sandbox.providers.kubernetes.cluster import PODS, Cluster
from b4run.sandbox.providers.kubernetes.names import LABEL_THREAD, scope_selector


class PodWatch(Following):
    """One watch of the Pods of a scope. `on_change` gets the resource id of a thread with its Pod, None when that is removed.

    When the watch breaks it is made again, and `on_gap` is called, for what happened meanwhile was not told.
    """

    event = "kubernetes.watch_broken"

    def __init__(
        self, cluster: Cluster, scope: str, on_change: Callable[[str, dict[str, Any] | None], None], on_gap: Callable[[], None]
    ) -> None:
        super().__init__()
        self._cluster = cluster
        self._selector = scope_selector(scope)
        self._on_change, self._on_gap = on_change, on_gap

    async def _subscribe(self) -> None:
        async with contextlib.aclosing(self._cluster.watch(PODS, self._selector, self._on_gap)) as changes:
            async for change in changes:
                pod = change.get("object") or {}
                name = ((pod.get("metadata") or {}).get("labels") or {}).get(LABEL_THREAD)
                if name is not None and change.get("type") in ("ADDED", "MODIFIED", "DELETED"):
                    self._on_change(name, None if change["type"] == "DELETED" else pod)
