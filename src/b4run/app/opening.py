"""`open_app`: an app with everything it needs, from its folder to a runtime that takes turns, without a server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver

from b4run.agents import AgentRuntime, Route, local_workspace, open_checkpoints
from b4run.agents.runtime import RulesOf
from b4run.app.check import LOCAL_WORKSPACE
from b4run.app.entries import load_routes
from b4run.config import Config, Issue, LoadedConfig, find_root, load_config
from b4run.errors import ConfigurationError
from b4run.permissions import PermissionGate, ThreadRules, mode_in_force
from b4run.sandbox import SandboxProvider, SandboxSupervisor
from b4run.sandbox.contract import ManagedWorkspaceProvider
from b4run.storage import Storage, app_storage_url, open_storage, state_folder
from b4run.threads import ManagedWorkspaces, SharedSandboxes, StagedWorkspaces, WorkspaceResolver
from b4run.threads.workspaces import MetadataOf
from b4run.workspace import WorkspaceDefinition

CHECKPOINTS_FILE = "checkpoints.sqlite"


@dataclass(frozen=True, slots=True)
class App:
    """An open app. `runtime` takes turns on `routes`; `sandboxes` gives out the sandboxes that they work in."""

    root: Path
    config: Config
    warnings: tuple[Issue, ...]
    routes: Mapping[str, Route]
    runtime: AgentRuntime
    sandboxes: SandboxSupervisor
    shared: SharedSandboxes
    """The same, for processes that share the app's database."""
    permissions: PermissionGate
    storage: Storage
    checkpoints: BaseCheckpointSaver[Any]
    managed: ManagedWorkspaces | None


@asynccontextmanager
async def open_app(
    start: str | os.PathLike[str] | None = None,
    *,
    model: Any = None,
    provider: SandboxProvider | None = None,
    can_ask: bool = True,
    metadata_of: MetadataOf | None = None,
) -> AsyncIterator[App]:
    """Open the app at or above `start` (default: the current folder) for the length of the block.

    `model`, a chat model, stands in for every agent's; `provider` for the configured one. With `can_ask` False a call that needs an
    approval is refused. `metadata_of` gives what a thread was created with, which resolvers are told (default: what its row says).
    Nothing is created before configuration and routes are known to be usable. Workspaces that a crash left half made or half removed
    are finished in the background. At the end warm compute is released; conversations and workspaces stay in `.b4/`.

    Raises:
        AppInvalid, AppFileBroken, ConfigInvalid: the app cannot be used; says every reason.
        StorageUnusable: its database cannot be opened.
    """
    loaded = load_config(find_root(start))
    routes = load_routes(loaded)
    config, permissions = loaded.config, loaded.config.permissions
    mode = mode_in_force(permissions.mode)
    async with AsyncExitStack() as stack:
        storage = await stack.enter_async_context(open_storage(app_storage_url(loaded.root)))
        checkpoints = await stack.enter_async_context(open_checkpoints(_checkpoints(loaded.root, storage)))
        managed = manage(loaded, storage, provider, metadata_of)
        sandboxes = await stack.enter_async_context(_sandboxes(loaded.root, config, managed or provider))
        shared = SharedSandboxes(sandboxes, storage.slots)
        if managed is not None:
            stack.push_async_callback(end_task, asyncio.create_task(managed.keep_recovering()))
        gate = PermissionGate(mode, allow=permissions.allow.lists, deny=permissions.deny.lists, grants=storage.grants)
        runtime = AgentRuntime(
            routes,
            sandboxes=shared,
            permissions=gate,
            checkpointer=checkpoints,
            model=model,
            command_timeout_ms=config.sandbox.resources.timeout_ms if config.sandbox else None,
            can_ask=can_ask,
            rules_of=None if managed is None else _rules_of(managed),
        )
        yield App(loaded.root, config, loaded.warnings, routes, runtime, sandboxes, shared, gate, storage, checkpoints, managed)


def manage(
    loaded: LoadedConfig, storage: Storage, provider: SandboxProvider | None = None, metadata_of: MetadataOf | None = None
) -> ManagedWorkspaces | None:
    """Return what decides and records the threads' workspaces; None when the app does not say what they start from."""
    sandbox = loaded.config.sandbox
    if sandbox is None or not sandbox.manages_workspaces:
        return None
    if isinstance(sandbox.workspace, WorkspaceDefinition):
        resolver = WorkspaceResolver(loaded.root, sandbox.workspace)
    else:
        resolver = WorkspaceResolver(loaded.root, decide=sandbox.thread or sandbox.workspace, everything=sandbox.thread is not None)
    used = provider or sandbox.provider
    if not isinstance(used, ManagedWorkspaceProvider):
        raise ConfigurationError(reason=f"provider {used.name!r} has no managed workspaces, and the app's threads start from one")
    staged = StagedWorkspaces(storage.uploads, storage.workspaces) if sandbox.staging is not None else None
    return ManagedWorkspaces(
        used,
        storage,
        resolver,
        policy=sandbox.policy,
        metadata_of=metadata_of or _metadata_of(storage),
        staged_of=None if staged is None else staged.of,
    )


def _metadata_of(storage: Storage) -> MetadataOf:
    async def of(thread_id: str) -> Mapping[str, Any]:
        row = await storage.threads.find(thread_id)
        return {} if row is None else row.metadata

    return of


def _checkpoints(root: Path, storage: Storage) -> Path | str:
    """Conversations lie beside the records: in a file of the app's, or in the same PostgreSQL."""
    if storage.engines.durable.dialect.name == "postgresql":
        return storage.engines.durable.url.set(drivername="postgresql").render_as_string(hide_password=False)
    return state_folder(root) / CHECKPOINTS_FILE


def _rules_of(managed: ManagedWorkspaces) -> RulesOf:
    async def rules_of(thread_id: str) -> ThreadRules | None:
        return (await managed.settings(thread_id)).rules

    return rules_of


async def end_task(task: asyncio.Task[None]) -> None:
    """Cancel a background task, and wait until it is over."""
    task.cancel()
    await asyncio.wait({task})


def _sandboxes(root: Path, config: Config, provider: SandboxProvider | None) -> SandboxSupervisor:
    sandbox = config.sandbox
    if sandbox is not None:
        return SandboxSupervisor(provider or sandbox.provider, sandbox.policy, idle_timeout_ms=sandbox.idle_timeout_ms)
    return SandboxSupervisor(provider) if provider is not None else local_workspace(root / LOCAL_WORKSPACE)
