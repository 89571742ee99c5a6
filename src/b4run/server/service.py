"""What all endpoints work with: an open app, its slots, runs, deletions, uploads and access, from boot to drain."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from b4run.app.access import AppAccess, load_access
from b4run.app.opening import App, end_task
from b4run.config import ConfigInvalid, Issue, Staging
from b4run.errors import ConfigurationError
from b4run.sandbox.contract import Severity
from b4run.server.gate import Gate
from b4run.threads import Runs, Slots, ThreadDeletion, keep_expiring

DRAIN_SECONDS = 30.0
"""From the first signal to the last run."""
_END_SHARE = 1 / 3
"""Of those, what is kept for runs that were ended to unwind."""
PING_SECONDS = 15.0
UPLOADS_AT_ONCE = 1
STAGED_CREATES_AT_ONCE = 4
"""Creates that name an upload, in one process."""

logger = logging.getLogger("b4run.server")


@dataclass
class Service:
    """One server process's share of an app."""

    app: App
    gate: Gate
    slots: Slots
    runs: Runs
    deletion: ThreadDeletion
    ping_s: float = PING_SECONDS
    drain_s: float = DRAIN_SECONDS
    closing: bool = False
    uploading: int = 0
    creating: int = 0
    abandoned: set[asyncio.Task[Any]] = field(default_factory=set)
    """Readers that did not close in time; kept until they have."""

    @property
    def staging(self) -> Staging | None:
        return self.app.config.sandbox.staging if self.app.config.sandbox else None

    @property
    def reads_workspaces(self) -> bool:
        return self.app.config.sandbox is not None and self.app.config.sandbox.workspace_read == "http"

    async def drain(self) -> None:
        """Take nothing new, let runs finish, end what does not; called once, before the process goes."""
        self.closing = True
        left = await self.runs.drain(finish_s=self.drain_s * (1 - _END_SHARE), end_s=self.drain_s * _END_SHARE)
        if left:
            fields = {"event": "server.not_drained", "runs": [run.run_id for run in left]}
            logger.warning("%d runs did not end in time", len(left), extra=fields)


@asynccontextmanager
async def open_service(
    app: App, access: AppAccess | None = None, *, drain_s: float = DRAIN_SECONDS, ping_s: float = PING_SECONDS
) -> AsyncIterator[Service]:
    """Bring an open app to the point where it can serve.

    Raises:
        ConfigInvalid: it would show or take workspaces without an access policy.
    """
    access = load_access(app.root) if access is None else access
    _check(app, access)
    storage = app.storage
    async with AsyncExitStack() as stack:
        slots = await stack.enter_async_context(Slots(storage.slots, on_handoff=app.shared.hand_off))
        runs = Runs(slots=slots, runs=storage.runs, abandon=app.sandboxes.abandon)
        stack.push_async_callback(runs.aclose)
        deletion = ThreadDeletion(storage, slots, app.shared, app.checkpoints)
        stack.push_async_callback(deletion.aclose)
        await storage.uploads.detach_orphans()
        service = Service(app, Gate(access), slots, runs, deletion, ping_s, drain_s)
        if service.staging is not None:
            await storage.uploads.reclaim(service.staging.retention_ms)
        background = asyncio.create_task(deletion.keep_finishing())
        stack.push_async_callback(end_task, background)
        if (ttl_ms := app.config.server.idle_thread_ttl_ms) is not None:
            stack.push_async_callback(end_task, asyncio.create_task(keep_expiring(storage, deletion, ttl_ms)))
        logger.info(
            "threads are %s",
            "gated by thread_access.py" if service.gate.has_policy else "open to everybody",
            extra={"event": "server.open"},
        )
        yield service


def _check(app: App, access: AppAccess) -> None:
    sandbox = app.config.sandbox
    if sandbox is None or access.policy is not None:
        return
    asked = [key for key in ("workspace_read", "staged_workspaces") if getattr(sandbox, key)]
    if asked:
        hint = "Add thread_access.py, or remove the key."
        raise ConfigInvalid(
            [Issue(Severity.ERROR, ConfigurationError.code, f"sandbox.{key}", "needs an access policy", hint) for key in asked]
        )
