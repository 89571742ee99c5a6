"""Rules of the configuration that need the provider or the app's folder; shared by check and start."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from b4run.config.issues import Issue
from b4run.config.models import Config, Sandbox
from b4run.errors import ConfigurationError
from b4run.sandbox.contract import Capability, Severity

ACCESS_FILE = "thread_access.py"
METADATA_ENDPOINT = "169.254.169.254"


def rule_issues(config: Config, root: Path, file: str) -> list[Issue]:
    """Return what is refused or warned about, most of it nothing."""
    issues = list(_app_issues(config, root, file))
    if config.sandbox is not None:
        issues += _workspace_issues(config.sandbox, file)
        issues += _http_issues(config.sandbox, root, file)
        issues += _network_issues(config.sandbox, file)
    return issues


def _app_issues(config: Config, root: Path, file: str) -> Iterator[Issue]:
    folder = root / config.app_dir
    if folder.is_dir() and not folder.resolve().is_relative_to(root.resolve()):
        yield _refusal("app_dir", f"{config.app_dir!r} leads out of the app's root", file)


def _workspace_issues(sandbox: Sandbox, file: str) -> Iterator[Issue]:
    for key in ("workspace", "thread"):
        if getattr(sandbox, key) is not None and Capability.MANAGED_WORKSPACES not in sandbox.provider.capabilities:
            reason = f"provider {sandbox.provider.name!r} has no managed workspaces, so it would be ignored"
            yield _refusal(f"sandbox.{key}", reason, file, "Remove the key; a thread starts with an empty workspace.")


def _http_issues(sandbox: Sandbox, root: Path, file: str) -> Iterator[Issue]:
    asked = [key for key in ("workspace_read", "staged_workspaces") if getattr(sandbox, key)]
    has_policy = (root / ACCESS_FILE).is_file()
    for key in asked:
        if not has_policy:
            yield _refusal(
                f"sandbox.{key}",
                f"needs an access policy, and there is no {ACCESS_FILE} beside {file}",
                file,
                f"Add {ACCESS_FILE}, which decides who may read or create which thread, or remove the key.",
            )
        needed = Capability.READER if key == "workspace_read" else Capability.MANAGED_WORKSPACES
        if needed not in sandbox.provider.capabilities:
            lack = "cannot read workspaces from outside" if needed is Capability.READER else "has no managed workspaces"
            yield _refusal(
                f"sandbox.{key}", f"provider {sandbox.provider.name!r} {lack}", file, "Use a provider that can, or remove the key."
            )
        elif key == "workspace_read" and not sandbox.manages_workspaces:
            yield _refusal(
                f"sandbox.{key}", "reads managed workspaces, and the app's threads have none", file, "Add `workspace` or `thread`."
            )
        elif key == "staged_workspaces" and not (sandbox.thread is not None or callable(sandbox.workspace)):
            reason = "needs a resolver that decides what becomes of an upload"
            yield _refusal(f"sandbox.{key}", reason, file, "Make `workspace` an `async def` function of the thread, or add `thread`.")
    if "workspace_read_timeout_ms" in sandbox.model_fields_set and not sandbox.workspace_read:
        yield _refusal("sandbox.workspace_read_timeout_ms", "bounds `workspace_read`, which is off", file, "Remove the key, or turn it on.")


def _network_issues(sandbox: Sandbox, file: str) -> Iterator[Issue]:
    if "network" not in sandbox.model_fields_set:
        yield Issue(
            Severity.WARNING,
            ConfigurationError.code,
            "sandbox.network",
            f"is not set, so egress is open, the cloud metadata endpoint {METADATA_ENDPOINT} included",
            "Say `network=Deny()` when the sandbox needs no network, or `network=Allow()` to accept this.",
            file,
        )


def _refusal(key: str, message: str, file: str, hint: str = ConfigurationError.hint) -> Issue:
    return Issue(Severity.ERROR, ConfigurationError.code, key, message, hint, file)
