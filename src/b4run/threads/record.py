"""What a thread's own resolver decided, as it is recorded once and read ever after; and how it meets the app's settings.

Format: the specification's `formats.md`, section "Thread sandbox record"; numbers are written as JavaScript writes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from b4run.config import Deny, Rules, ThreadPermissions, ThreadPolicy, ThreadSandbox
from b4run.errors import WorkspaceInvalid, WorkspaceUnusable
from b4run.permissions import ThreadRules
from b4run.sandbox.policy import Allow, SandboxPolicy
from b4run.workspace.bundle import parse_json
from b4run.workspace.captured import check_keys, compact

MAX_RECORD_BYTES = 262_144
_CPUS = "\0"
"""Stands for a number that Python would spell in its own way; no text of a policy holds it."""

_RESOURCES = {"memoryMb": "memory_mb", "cpus": "cpus", "timeoutMs": "timeout_ms"}


@dataclass(frozen=True, slots=True)
class ThreadRecord:
    """A thread's own image, policy and rules; None is the app's."""

    image: str | None = None
    policy: ThreadPolicy | None = None
    rules: ThreadRules | None = None


def write_record(sandbox: ThreadSandbox) -> str:
    """Return the canonical JSON of what a resolver answered, its workspace apart. Raises: WorkspaceInvalid: it is too large."""
    text = _canonical(sandbox.image, sandbox.policy, sandbox.permissions)
    if len(text.encode(errors="surrogatepass")) > MAX_RECORD_BYTES:
        raise WorkspaceInvalid(reason=f"the thread's settings have more than {MAX_RECORD_BYTES:,} bytes of JSON")
    return text


def read_record(text: str) -> ThreadRecord:
    """Return what was recorded. Raises: WorkspaceInvalid: it is not as it was written."""
    what = "the thread's record"
    body = check_keys(parse_json(text, what), ("version",), ("image", "policy", "permissions"), what)
    try:
        policy = _read_policy(body["policy"]) if "policy" in body else None
        permissions = ThreadPermissions(**{k: Rules(**v) for k, v in body["permissions"].items()}) if "permissions" in body else None
    except (ValidationError, TypeError, AttributeError) as error:
        raise WorkspaceInvalid(reason=f"{what} is damaged ({type(error).__name__})") from None
    if _canonical(body.get("image"), policy, permissions) != text:
        raise WorkspaceInvalid(reason=f"{what} is not as it was written")
    rules = ThreadRules(permissions.allow.lists, permissions.deny.lists) if permissions else None
    return ThreadRecord(body.get("image"), policy, rules)


def merged_policy(thread_id: str, app: SandboxPolicy, thread: ThreadPolicy | None) -> SandboxPolicy:
    """Return the app's policy with the thread's over it; `security` stays the app's.

    Raises:
        WorkspaceUnusable: lifecycle `unsupported`: the thread opens a network that the app denies.
    """
    if thread is None:
        return app
    changes: dict[str, Any] = {}
    if isinstance(thread.network, Deny) and isinstance(app.network, Allow):
        changes["network"] = Deny()
    elif isinstance(thread.network, Allow) and isinstance(app.network, Deny):
        raise WorkspaceUnusable(
            thread_id=thread_id,
            lifecycle="unsupported",
            reason="it asks for an open network, which the app denies",
            remedy="Let the resolver keep or narrow the app's network.",
        )
    if thread.env is not None:
        changes["env"] = thread.env
    if thread.resources is not None:
        own = {name: value for name in _RESOURCES.values() if (value := getattr(thread.resources, name)) is not None}
        changes["resources"] = app.resources.model_copy(update=own)
    return app.model_copy(update=changes)


def _canonical(image: str | None, policy: ThreadPolicy | None, permissions: ThreadPermissions | None) -> str:
    record: dict[str, Any] = {"version": 1}
    if image is not None:
        record["image"] = image
    if policy is not None and (written := _policy_dict(policy)):
        record["policy"] = written
    if permissions is not None:
        record["permissions"] = {name: _lists(getattr(permissions, name)) for name in ("allow", "deny")}
    text = compact(record)
    cpus = policy.resources.cpus if policy and policy.resources else None
    return text if cpus is None else text.replace(compact(_CPUS), _javascript(cpus))


def _policy_dict(policy: ThreadPolicy) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if policy.network is not None:
        found["network"] = {"mode": policy.network.mode}
    if policy.env is not None:
        found["env"] = dict(sorted(policy.env.items()))
    if policy.resources is not None:
        values = {key: getattr(policy.resources, name) for key, name in _RESOURCES.items()}
        found["resources"] = {key: _CPUS if key == "cpus" else value for key, value in values.items() if value is not None}
    return found


def _read_policy(body: Any) -> ThreadPolicy:
    check_keys(body, (), ("network", "env", "resources"), "the thread's policy")
    given: dict[str, Any] = dict(body)
    if "network" in given:
        check_keys(given["network"], ("mode",), (), "the thread's network")
    if "resources" in given:
        resources = check_keys(given["resources"], (), tuple(_RESOURCES), "the thread's resources")
        given["resources"] = {_RESOURCES[key]: float(value) if key == "cpus" else value for key, value in resources.items()}
    return ThreadPolicy(**given)


def _lists(rules: Rules) -> Mapping[str, list[str]]:
    return {key: list(patterns) for key, patterns in sorted(rules) if patterns}


def _javascript(number: float) -> str:
    """Return a positive number as JavaScript spells it: no `.0`, an exponent only below 1e-6 and from 1e21 on."""
    exact = Decimal(repr(number))
    if exact == exact.to_integral_value() and exact < 10**21:
        return str(int(exact))
    if Decimal("1e-6") <= exact < 10**21:
        return format(exact, "f")
    mantissa, _, exponent = repr(number).partition("e")
    return f"{mantissa}e{int(exponent):+d}" if exponent else format(exact, "f")
