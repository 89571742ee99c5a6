"""Which provider and policy a command works with: the app's, or bubblewrap by `--scope` where there is no app."""

from __future__ import annotations

import argparse
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from b4run.cli.parser import Parser
from b4run.errors import AppInvalid, ConfigurationError
from b4run.sandbox.contract import SandboxProvider
from b4run.sandbox.policy import Deny, SandboxPolicy


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
    sandbox = load_config(root).config.sandbox
    if sandbox is None:
        raise NoSandbox(root=root)
    return Target(sandbox.provider, sandbox.policy)


@asynccontextmanager
async def open_target(options: argparse.Namespace) -> AsyncIterator[Target]:
    """Give out the provider and close it afterwards: warm compute goes, files stay."""
    target = find_target(options)
    try:
        yield target
    finally:
        await target.provider.aclose()
