"""Threads that start from recorded workspaces: a provider for the supervisor, in front of one that makes them.

What a thread starts from is decided once, recorded, and only then made; whatever a crash interrupts is finished or undone from the
record. One process at a time works on a thread, by a lock that dies with it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from b4run.config import ThreadContext
from b4run.errors import B4Error, DeadlinePassed, SandboxHeld, WorkspaceInvalid, WorkspaceMissing, WorkspaceUnusable
from b4run.sandbox.contract import (
    Capability,
    ImageProvider,
    ManagedWorkspaceProvider,
    SandboxHandle,
    WorkspaceReader,
)
from b4run.sandbox.policy import SandboxPolicy, User
from b4run.storage import RecordChanged, RecordState, Storage, WorkspaceRecord
from b4run.threads.record import ThreadRecord, merged_policy, read_record
from b4run.threads.resolving import Resolution, WorkspaceResolver
from b4run.workspace import CapturedWorkspace, CreationState, Environment, ReadyWorkspace, WorkspaceIntent, create_workspace_intent

MetadataOf = Callable[[str], Awaitable[Mapping[str, Any]]]
"""What a thread was created with; asked only when a resolver is."""

StagedOf = Callable[[str], Awaitable[CapturedWorkspace | None]]
"""The upload that a thread was created with."""

_BUSY_SECONDS = 0.05
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 60.0

logger = logging.getLogger("b4run.threads")


class Step(StrEnum):
    """Where a thread's admission or deletion stands; a crash right after any of them is recovered from."""

    RESOLVED = "resolved"
    RECORDED = "recorded"
    CREATED = "created"
    READY = "ready"
    DELETING = "deleting"
    DESTROYED = "destroyed"
    FORGOTTEN = "forgotten"


class ManagedWorkspaces:
    """A `SandboxProvider` whose threads start from recorded workspaces.

    `policy` is the app's; `metadata_of` and `staged_of` give what resolvers are told. `lock_deadline_s`: how long to wait for another
    process that works on the same thread. `on_step` hears of each step, for tests of crashes.
    """

    def __init__(
        self,
        provider: ManagedWorkspaceProvider,
        storage: Storage,
        resolver: WorkspaceResolver,
        *,
        policy: SandboxPolicy,
        metadata_of: MetadataOf | None = None,
        staged_of: StagedOf | None = None,
        lock_deadline_s: float = 100.0,
        on_step: Callable[[Step], None] | None = None,
    ) -> None:
        self.provider = provider
        self._storage = storage
        self._store = storage.workspaces
        self._resolver = resolver
        self._policy = policy
        self._metadata_of = metadata_of or _no_metadata
        self._staged_of = staged_of or _nothing_staged
        self._lock_deadline_s = lock_deadline_s
        self._on_step = on_step or _nothing
        self._installation: str | None = None

    @property
    def name(self) -> str:
        return self.provider.name

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self.provider.capabilities

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> SandboxHandle:
        """Return the thread's sandbox; at the first call ever its workspace is decided, recorded and made.

        Raises:
            ResolverFailed: it was not decided; nothing was recorded.
            WorkspaceUnusable: the record cannot be used; says why.
            SandboxUnavailable: as the provider's own.
            SandboxHeld: another process works on the thread.
        """
        async with self._alone(thread_id):
            record = await self._find(thread_id) or await self._admit(thread_id, policy)
            merged = merged_policy(thread_id, policy, self._settings(record).policy)
            try:
                if record.state is RecordState.CREATING:
                    record = await self._make(record, merged)
                self._check_retention(record)
                return await self.provider.connect_workspace(record.intent, merged)
            except Exception:
                await self._drop(record.intent)
                raise

    async def release(self, thread_id: str) -> None:
        """Drop the thread's compute, keep its files."""
        record = await self._store.find(thread_id)
        if record is not None:
            await self.provider.release_workspace(record.intent)

    async def destroy(self, thread_id: str) -> None:
        """Remove the thread's workspace with everything recorded of it; interrupted, `recover` finishes. Its id is new afterwards.

        Raises:
            SandboxUnavailable: something of it cannot be removed; the thread cannot be used meanwhile.
        """
        async with self._alone(thread_id):
            record = await self._store.find(thread_id)
            if record is None:
                # What it may have from before workspaces were managed.
                await self.provider.destroy(thread_id)
                return
            await self._remove(record)

    async def aclose(self) -> None:
        await self.provider.aclose()

    async def open_workspace_reader(self, thread_id: str, *, run_as_non_root: bool | User = True) -> WorkspaceReader:
        """Open a reader on the thread's workspace beside its sandbox.

        Raises:
            WorkspaceMissing: the thread has none, or it is not ready.
            SandboxUnavailable: the reader cannot be made.
        """
        record = await self._find(thread_id)
        if record is None or record.state is RecordState.CREATING:
            raise WorkspaceMissing(thread_id=thread_id)
        self._check_retention(record)
        return await self.provider.open_managed_reader(record.intent, run_as_non_root=run_as_non_root)

    async def recorded(self, thread_id: str) -> WorkspaceRecord | None:
        """Return what is recorded of the thread's workspace, made or in the making; None when it never ran.

        Raises:
            WorkspaceUnusable: it is being deleted, expired, or another installation's.
        """
        record = await self._find(thread_id)
        if record is not None:
            self._check_retention(record)
        return record

    async def knows(self, thread_id: str) -> bool:
        """Whether anything is recorded of the thread, usable or not."""
        return await self._store.find(thread_id) is not None

    async def settings(self, thread_id: str) -> ThreadRecord:
        """Return the thread's own image, policy and rules, as recorded; the app's where it has none."""
        record = await self._find(thread_id)
        return ThreadRecord() if record is None else self._settings(record)

    async def recover(self) -> int:
        """Finish every creation and deletion that a dead process began; return how many could not be finished now."""
        left = 0
        for record in await self._store.unfinished():
            try:
                await self._finish(record.thread_id)
            except SandboxHeld:
                continue
            except B4Error as error:
                left += 1
                fields = {
                    "event": "workspace.unfinished",
                    "thread_id": record.thread_id,
                    "state": record.state.value,
                    "reason": error.message,
                }
                logger.warning("an interrupted workspace is not finished yet", extra=fields)
        return left

    async def keep_recovering(self) -> None:
        """`recover` until nothing is left, ever less often. Never raises; cancel it at the end."""
        pause = _FIRST_PAUSE_S
        while True:
            try:
                if not await self.recover():
                    return
            except B4Error as error:
                logger.warning("recovery failed", extra={"event": "workspace.recovery_failed", "reason": error.message})
            await asyncio.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    async def _finish(self, thread_id: str) -> None:
        async with self._alone(thread_id, _BUSY_SECONDS):
            record = await self._store.find(thread_id)
            if record is None or record.state is RecordState.READY:
                return
            if record.state is RecordState.DELETING:
                await self._remove(record)
                return
            try:
                await self._make(record, merged_policy(thread_id, self._policy, self._settings(record).policy))
            finally:
                await self._drop(record.intent)

    async def _admit(self, thread_id: str, policy: SandboxPolicy) -> WorkspaceRecord:
        """Everything that can refuse the thread comes before anything is recorded; the record before anything is made."""
        resolution = await self._resolver.resolve(
            ThreadContext(thread_id, await self._metadata_of(thread_id), await self._staged_of(thread_id))
        )
        merged_policy(thread_id, policy, resolution.policy)
        intent = create_workspace_intent(
            operation_id=str(uuid.uuid4()),
            installation_id=await self._installation_id(),
            thread_id=thread_id,
            source_digest=resolution.workspace.source.digest,
            environment=await self._environment(thread_id, resolution),
            environment_links=resolution.workspace.environment_links,
            baseline=resolution.workspace.baseline,
        )
        self._on_step(Step.RESOLVED)
        record = await self._record(intent, resolution)
        self._on_step(Step.RECORDED)
        return record

    async def _record(self, intent: WorkspaceIntent, resolution: Resolution) -> WorkspaceRecord:
        try:
            return await self._store.admit(intent, resolution.workspace.source, resolution.record)
        except RecordChanged:
            pass
        try:
            # The thread is ours alone; what crossed us was the removal of the same source.
            return await self._store.admit(intent, resolution.workspace.source, resolution.record)
        except RecordChanged as error:
            raise SandboxHeld(thread_id=intent.thread_id, reason="another process recorded it") from error

    async def _environment(self, thread_id: str, resolution: Resolution) -> Environment:
        if resolution.image is None:
            return await self.provider.resolve_environment()
        if not isinstance(self.provider, ImageProvider) or Capability.IMAGE_RESOLUTION not in self.capabilities:
            reason = f"it names an image, and provider {self.name!r} has none to choose"
            remedy = "Leave `image` out, or use a provider with the capability `image_resolution`."
            raise WorkspaceUnusable(thread_id=thread_id, lifecycle="unsupported", reason=reason, remedy=remedy)
        return await self.provider.resolve_image_environment(resolution.image)

    async def _make(self, record: WorkspaceRecord, policy: SandboxPolicy) -> WorkspaceRecord:
        ready = await self._created(record, policy)
        self._on_step(Step.CREATED)
        try:
            record = await self._store.mark_ready(record, ready.check(record.intent))
        except WorkspaceInvalid as error:
            raise self._unusable(record, "conflict", error.message, "This is a fault of the provider.") from error
        except RecordChanged as error:
            raise self._unusable(record, "lost", "it was deleted while it was made", "Use another thread.") from error
        self._on_step(Step.READY)
        return record

    async def _created(self, record: WorkspaceRecord, policy: SandboxPolicy) -> ReadyWorkspace:
        creation = await self.provider.inspect_creation(record.intent)
        if creation.state is CreationState.READY and creation.ready is not None:
            return creation.ready
        if creation.state is CreationState.FAILED:
            raise self._unusable(record, creation.code, creation.reason, "Delete the thread, and begin another.")
        if creation.state is CreationState.UNKNOWN:
            reason = f"it cannot be told how far its creation came ({creation.reason})"
            raise self._unusable(record, "uncertain", reason, "Try again when the provider answers.")
        content = await self._store.source(record.intent.source_digest)
        if content is None:
            raise self._unusable(record, "lost", "its source is not recorded any more", "Delete the thread, and begin another.")
        try:
            return await self.provider.create_workspace(record.intent, content, policy)
        except WorkspaceInvalid as error:
            raise self._unusable(record, "lost", error.message, "Delete the thread, and begin another.") from error

    async def _drop(self, intent: WorkspaceIntent) -> None:
        """Whatever compute a failed start left is nobody's."""
        try:
            await self.provider.release_workspace(intent)
        except B4Error as error:
            fields = {"event": "workspace.not_released", "thread_id": intent.thread_id, "reason": error.message}
            logger.warning("compute of a failed start was not released", extra=fields)

    async def _remove(self, record: WorkspaceRecord) -> None:
        try:
            if record.state is not RecordState.DELETING:
                record = await self._store.mark_deleting(record)
            self._on_step(Step.DELETING)
            await self.provider.destroy_workspace(record.intent)
            self._on_step(Step.DESTROYED)
            await self._storage.grants.forget_thread(record.thread_id)
            await self._store.forget(record)
        except RecordChanged as error:
            raise SandboxHeld(thread_id=record.thread_id, reason="another process changed its record") from error
        self._on_step(Step.FORGOTTEN)

    async def _find(self, thread_id: str) -> WorkspaceRecord | None:
        """Return the thread's record if it may be used.

        Raises:
            WorkspaceUnusable: it is being deleted, is another installation's, or has no settings where every thread has its own.
        """
        record = await self._store.find(thread_id)
        if record is None:
            return None
        if record.intent.installation_id != await self._installation_id():
            raise self._unusable(record, "conflict", "another installation made it", "Use the installation that did.")
        if record.state is RecordState.DELETING:
            raise self._unusable(record, "lost", "it is being deleted", "Use another thread.")
        if self._resolver.everything and record.sandbox is None:
            remedy = "Delete the thread, so that it is resolved again."
            raise self._unusable(record, "conflict", "it was made before `sandbox.thread` decided, and has no settings of its own", remedy)
        return record

    def _settings(self, record: WorkspaceRecord) -> ThreadRecord:
        if record.sandbox is None:
            return ThreadRecord()
        try:
            return read_record(record.sandbox)
        except WorkspaceInvalid as error:
            raise self._unusable(record, "conflict", error.message, "Delete the thread, so that it is resolved again.") from error

    def _check_retention(self, record: WorkspaceRecord) -> None:
        expires = record.ready.provenance.retention.expires_at if record.ready else None
        if expires is not None and datetime.fromisoformat(expires) <= datetime.now(UTC):
            raise self._unusable(record, "expired", f"its files were kept until {expires}", "Delete the thread, and begin another.")

    def _unusable(self, record: WorkspaceRecord, lifecycle: str, reason: str, remedy: str) -> WorkspaceUnusable:
        return WorkspaceUnusable(thread_id=record.thread_id, lifecycle=lifecycle, reason=reason, remedy=remedy)

    async def _installation_id(self) -> str:
        if self._installation is None:
            self._installation = await self._store.installation_id()
        return self._installation

    @asynccontextmanager
    async def _alone(self, thread_id: str, deadline_s: float | None = None) -> AsyncIterator[None]:
        try:
            holding = self._storage.locks.hold(
                f"the workspace of thread {thread_id!r}", deadline_s=self._lock_deadline_s if deadline_s is None else deadline_s
            )
            await holding.__aenter__()
        except DeadlinePassed as error:
            raise SandboxHeld(thread_id=thread_id, reason="another process works on its workspace") from error
        try:
            yield
        finally:
            await holding.__aexit__(None, None, None)


async def _no_metadata(_: str) -> Mapping[str, Any]:
    return {}


async def _nothing_staged(_: str) -> CapturedWorkspace | None:
    return None


def _nothing(_: Step) -> None:
    return None
