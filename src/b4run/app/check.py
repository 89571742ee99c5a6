"""`check_app`: everything that is wrong with an app, in one report, before anything runs."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from b4run.agents import Agent, Route
from b4run.agents.scope import children, route_warnings
from b4run.app.access import load_access
from b4run.app.entries import load_entries
from b4run.app.layout import find_layout
from b4run.config import Config, ConfigInvalid, Issue, LoadedConfig, load_config
from b4run.config.issues import issue_of
from b4run.errors import B4Error, ModelProviderMissing, ModelUnknown, PreflightFailed, ToolScopeInvalid
from b4run.permissions import mode_in_force
from b4run.sandbox.contract import Finding, PreflightProvider, SandboxProvider, Severity
from b4run.sandbox.policy import SandboxPolicy
from b4run.workspace import WorkspaceDefinition, capture_workspace_definition

PREFLIGHT_SECONDS = 120
STATE_FOLDER = ".b4"
LOCAL_WORKSPACE = "workspace"
"""The folder that the tools work on when no sandbox is configured."""


@dataclass(frozen=True, slots=True)
class Report:
    """What `check_app` found. `workspace` says in one line where the tools work; empty when the configuration cannot be used."""

    root: Path
    issues: tuple[Issue, ...]
    routes: tuple[Route, ...]
    workspace: str

    @property
    def ok(self) -> bool:
        return all(issue.severity is not Severity.ERROR for issue in self.issues)

    def count(self, severity: Severity) -> int:
        return sum(issue.severity is severity for issue in self.issues)

    def as_dict(self) -> dict[str, object]:
        return {
            "status": "passed" if self.ok else "failed",
            "app": str(self.root),
            "routes": [{"id": route.id, "kind": route.kind, "file": route.file} for route in self.routes],
            "workspace": self.workspace,
            "findings": [issue.as_dict() for issue in self.issues],
            "counts": {"errors": self.count(Severity.ERROR), "warnings": self.count(Severity.WARNING)},
        }


async def check_app(folder: str | os.PathLike[str], *, preflight: bool = True) -> Report:
    """Load, validate and probe the app whose root is `folder`. Resolvers are not called, no sandbox and no database is made.

    Findings never raise: the report carries them all. `preflight` asks the provider what this host enforces.
    """
    root = _resolved(folder)
    loaded, issues = _config(root)
    config = loaded.config if loaded else Config()
    entries = load_entries(root, find_layout(root, config.app_dir))
    issues += entries.defects
    issues += [_scope_warning(route, text) for route in entries.routes.values() for text in route_warnings(route)]
    issues += [issue for route in entries.routes.values() for issue in _model_warnings(route)]
    if loaded is not None and config.sandbox is not None and preflight:
        issues += await preflight_issues(config.sandbox.provider, config.sandbox.policy)
    if loaded is not None:
        issues += await workspace_issues(loaded)
    issues += access_issues(root)
    return Report(root, tuple(issues), tuple(entries.routes.values()), _workspace(config, root) if loaded else "")


def _resolved(folder: str | os.PathLike[str]) -> Path:
    return Path(folder).resolve()


def _config(root: Path) -> tuple[LoadedConfig | None, list[Issue]]:
    try:
        loaded = load_config(root)
    except ConfigInvalid as invalid:
        return None, list(invalid.issues)
    except B4Error as error:
        return None, [issue_of(error)]
    issues = list(loaded.warnings)
    try:
        mode_in_force(loaded.config.permissions.mode)
    except B4Error as error:
        issues.append(issue_of(error, key="permissions.mode"))
    return loaded, issues


def access_issues(root: Path) -> list[Issue]:
    """Return why the app's access policy or authentication cannot be used."""
    try:
        load_access(root)
    except B4Error as error:
        return [issue_of(error)]
    return []


async def workspace_issues(loaded: LoadedConfig) -> list[Issue]:
    """Return why the files that every thread is to start from cannot be captured now; a resolver is not asked."""
    definition = loaded.config.sandbox.workspace if loaded.config.sandbox else None
    if not isinstance(definition, WorkspaceDefinition):
        return []
    excluded = definition.source.exclude_directories
    if definition.source.directory == "." and not (loaded.root / STATE_FOLDER).exists():
        # It is there as soon as the app is opened.
        excluded = tuple(name for name in excluded if name != STATE_FOLDER)
    source = definition.source.model_copy(update={"exclude_directories": excluded})
    try:
        await capture_workspace_definition(loaded.root, definition.model_copy(update={"source": source}))
    except B4Error as error:
        return [issue_of(error, key="sandbox.workspace")]
    return []


async def preflight_issues(provider: SandboxProvider, policy: SandboxPolicy) -> list[Issue]:
    """Return what the provider says it cannot enforce here; a preflight that raises or hangs is a finding, too."""
    if not isinstance(provider, PreflightProvider):
        return []
    key = f"sandbox.provider ({provider.name})"
    try:
        async with asyncio.timeout(PREFLIGHT_SECONDS):
            found = await provider.preflight(policy)
    except B4Error as error:
        return [issue_of(error, key=key)]
    except TimeoutError:
        return [_failed(key, f"preflight did not answer within {PREFLIGHT_SECONDS} s", "See whether its daemon answers.")]
    except Exception as error:  # noqa: BLE001 - a custom provider may raise anything, and the report must still be made
        return [_failed(key, f"preflight raised {type(error).__name__}: {error}", "This is a fault of the provider.")]
    return list(_findings(key, found.findings))


def _findings(key: str, findings: tuple[Finding, ...]) -> Iterator[Issue]:
    for finding in findings:
        if finding.severity is not Severity.OK:
            yield Issue(finding.severity, PreflightFailed.code, f"{key}: {finding.control}", finding.detail, finding.remedy)


def _scope_warning(route: Route, text: str) -> Issue:
    return Issue(Severity.WARNING, ToolScopeInvalid.code, "", text, "Remove the name from that list.", route.file)


def _model_warnings(route: Route) -> Iterator[Issue]:
    """A model that cannot be had here may be there where the app runs: its package, its key."""
    if not isinstance(route.entry, Agent):
        return
    if isinstance(route.entry.model, str):
        from b4run.agents.models import resolve_model

        try:
            resolve_model(route.entry.model)
        except (ModelProviderMissing, ModelUnknown) as error:
            yield replace(issue_of(error, key="model", file=route.file), severity=Severity.WARNING)
    for subagent in children(route).values():
        yield from _model_warnings(subagent)


def _failed(key: str, message: str, hint: str) -> Issue:
    return Issue(Severity.ERROR, PreflightFailed.code, key, message, hint)


def _workspace(config: Config, root: Path) -> str:
    if config.sandbox is None:
        return f"tools work on {root / LOCAL_WORKSPACE} of this host, without a sandbox"
    if config.sandbox.thread is not None:
        return "workspace, image and policy are resolved per thread"
    if callable(config.sandbox.workspace):
        return "managed workspace is resolved per thread"
    if config.sandbox.workspace is not None:
        source = config.sandbox.workspace.source
        files = f"{len(source.include) + len(source.files)} files of {source.directory!r}"
        return f"each thread starts from {files} in a {config.sandbox.provider.name} sandbox"
    return f"each thread has an empty workspace of its own in a {config.sandbox.provider.name} sandbox"
