"""Which provider and policy a command works with: the app's, or bubblewrap by `--scope` where there is no app."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from b4run.cli.parser import Parser, metadata_of
from b4run.errors import AppInvalid, ConfigurationError
from b4run.sandbox.contract import SandboxProvider
from b4run.sandbox.policy import Deny, SandboxPolicy

if TYPE_CHECKING:
    from b4run.config import LoadedConfig
    from b4run.threads import ManagedWorkspaces


class NoSandbox(ConfigurationError):
    """The app in {root} configures no sandbox; its tools work on its workspace/ folder."""

    hint = "Add `sandbox` to b4_config.py, or name a scope of your own with --scope."


class NoApp(AppInvalid):
    """{reason}"""

    hint = "Go into an app, name one with --app, or do without by naming a scope with --scope."


@dataclass(frozen=True, slots=True)
class Target:
    """A provider, and the policy its sandboxes get."""

    provider: SandboxProvider
    policy: SandboxPolicy
    app: LoadedConfig | None = None
    managed: ManagedWorkspaces | None = None

    @property
    def threads(self) -> SandboxProvider:
        """What threads are acquired and removed through: the provider itself, or the records of managed workspaces before it."""
        return self.managed or self.provider


def add_target(parser: Parser) -> None:
    """Add the options that stand in for an app."""
    parser.add_argument("--scope", metavar="NAME", help="work without an app, in bubblewrap sandboxes of this scope, with no network")
    parser.add_argument("--state-dir", metavar="DIR", type=Path, help="where the sandboxes of --scope keep their files")


def find_target(options: argparse.Namespace) -> Target:
    """Return what the command line names.

    Raises:
        NoApp, NoSandbox: there is no app, or it has no sandbox.
    """
    if options.scope is not None or options.state_dir is not None:
        from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox

        return Target(bubblewrap_sandbox(scope=options.scope or "b4", state_dir=options.state_dir), SandboxPolicy(network=Deny()))
    from b4run.config import find_root, load_config

    try:
        root = find_root(options.app)
    except AppInvalid as error:
        raise NoApp(reason=error.message) from error
    loaded = load_config(root)
    sandbox = loaded.config.sandbox
    if sandbox is None:
        raise NoSandbox(root=root)
    return Target(sandbox.provider, sandbox.policy, loaded)


@asynccontextmanager
async def open_target(options: argparse.Namespace) -> AsyncIterator[Target]:
    """Give out the provider and close it afterwards: warm compute goes, files stay."""
    target = find_target(options)
    async with AsyncExitStack() as stack:
        stack.push_async_callback(target.provider.aclose)
        sandbox = target.app.config.sandbox if target.app else None
        if target.app is not None and sandbox is not None and sandbox.manages_workspaces:
            from b4run.app.opening import manage
            from b4run.storage import app_storage_url, open_storage

            storage = await stack.enter_async_context(open_storage(app_storage_url(target.app.root)))
            told = metadata_of(options) if "metadata" in options else None
            target = replace(target, managed=manage(target.app, storage, metadata_of=told))
        yield target
