"""Telling before the first command what holds on this host: by looking, and by a real sandbox that is asked what it sees."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

from b4run.errors import B4Error, GuestMissing, SandboxUnavailable
from b4run.sandbox.contract import ExecResult, Finding, Preflight, SandboxHandle, Severity
from b4run.sandbox.guest.binary import guest_binary
from b4run.sandbox.policy import Allow, SandboxPolicy
from b4run.sandbox.providers.bubblewrap import cgroups, controls, seccomp
from b4run.sandbox.providers.bubblewrap.bwrap import Bubblewrap, BubblewrapMissing, find_bubblewrap
from b4run.sandbox.providers.bubblewrap.place import inner_user

_TRIAL_DEADLINE_MS = 10_000
_NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")

_PROBE = (
    """
while read -r name value; do echo "$name $value"; done < /proc/self/status
for kind in cgroup ipc mnt net pid user uts; do echo "ns.$kind $(readlink /proc/self/ns/$kind)"; done
if true > /b4-probe; then echo "root writable"; else echo "root read-only"; fi
if true > /usr/b4-probe; then echo "usr writable"; else echo "usr read-only"; fi
if true < /etc/shadow; then echo "shadow readable"; else echo "shadow hidden"; fi
while read -r name rest; do case $name in *:) echo "interface.$name" ;; esac; done < /proc/net/dev
"""
    + "exit 0"
)

Read = Callable[[str], str | None]


class _Provider(Protocol):
    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> SandboxHandle: ...

    async def destroy(self, thread_id: str) -> None: ...


async def examine(provider: _Provider, policy: SandboxPolicy, *, bwrap: str | os.PathLike[str] | None, pasta: str | None) -> Preflight:
    """Return what `policy` meets here. A trial is started only when nothing already forbids it."""
    findings = list(_looks(policy, bwrap, pasta))
    if Preflight(tuple(findings)).ok:
        findings += await _trial(provider, policy)
    return Preflight(tuple(findings))


def _looks(policy: SandboxPolicy, bwrap: str | os.PathLike[str] | None, pasta: str | None) -> Iterator[Finding]:
    try:
        yield _bubblewrap_finding(find_bubblewrap(bwrap))
    except BubblewrapMissing as error:
        yield Finding("bubblewrap", Severity.ERROR, error.message, error.remedy)
    try:
        guest_binary()
        yield Finding("guest", Severity.OK, "built")
    except GuestMissing as error:
        yield Finding("guest", Severity.ERROR, error.message, error.remedy)
    yield from controls.refusals(policy, pasta)
    homes = cgroups.discovered()
    yield from controls.warnings(policy, homes)
    if homes:
        kinds = ", ".join(f"{name} (version {homes[name].version})" for name in cgroups.CONTROLLERS if name in homes)
        yield Finding("control groups", Severity.OK, f"they enforce the limits: {kinds}")
    if not seccomp.supported():
        yield Finding("seccomp", Severity.WARNING, f"there is no filter for {os.uname().machine}")


def _bubblewrap_finding(found: Bubblewrap) -> Finding:
    version = ".".join(map(str, found.version))
    return Finding("bubblewrap", Severity.OK, f"{version} at {found.path}")


async def _trial(provider: _Provider, policy: SandboxPolicy) -> list[Finding]:
    thread_id = f"b4-preflight-{secrets.token_hex(8)}"
    try:
        sandbox = await provider.acquire(thread_id, policy)
        result = await sandbox.exec.run(_PROBE, deadline_ms=_TRIAL_DEADLINE_MS)
        return list(judge(_facts(result), policy, {kind: os.readlink(f"/proc/self/ns/{kind}") for kind in _NAMESPACES}))
    except SandboxUnavailable as error:
        return [diagnose(str(error.fields.get("reason", error)), _read)]
    except B4Error as error:
        return [Finding("trial", Severity.ERROR, error.message, error.remedy)]
    finally:
        await provider.destroy(thread_id)


def _facts(result: ExecResult) -> dict[str, str]:
    lines = (line.partition(" ") for line in result.stdout.splitlines())
    return {name: value.strip() for name, _, value in lines}


def judge(facts: Mapping[str, str], policy: SandboxPolicy, host: Mapping[str, str]) -> Iterator[Finding]:
    """Compare what a trial saw with what was asked for. `host` holds the supervisor's own namespaces."""
    user = inner_user(policy)
    shared = [kind for kind in _NAMESPACES if facts.get(f"ns.{kind}", host[kind]) == host[kind]]
    yield _observed("namespaces", not shared, f"shared with the host: {', '.join(shared)}", "none is shared with the host")
    ids = (facts.get("Uid:", "").split()[:1], facts.get("Gid:", "").split()[:1])
    yield _observed("user", ids == ([str(user.uid)], [str(user.gid)]), f"commands run as {ids}", f"commands run as {user.uid}:{user.gid}")
    held = [name for name in ("CapPrm:", "CapEff:", "CapBnd:", "CapAmb:") if int(facts.get(name, "1"), 16) != 0]
    yield _observed("capabilities", not held, f"left over: {' '.join(held)}", "none is left")
    yield _observed("no new privileges", facts.get("NoNewPrivs:") == "1", "not set", "set")
    if seccomp.supported():
        yield _observed("seccomp", facts.get("Seccomp:") == "2", "no filter is active", "the filter is active")
    wanted = "read-only" if policy.security.read_only_root_filesystem else "writable"
    roots = facts.get("root") == wanted and facts.get("usr") == "read-only"
    yield _observed("root file system", roots, f"it is not {wanted}, or /usr can be written", f"{wanted}; programs are read-only")
    yield _observed("host secrets", facts.get("shadow") == "hidden", "/etc/shadow can be read", "/etc/shadow is out of reach")
    interfaces = sorted(name.removeprefix("interface.").rstrip(":") for name in facts if name.startswith("interface."))
    if isinstance(policy.network, Allow):
        yield _observed("network", len(interfaces) > 1, "there is no way out", f"open, in a namespace of its own ({', '.join(interfaces)})")
    else:
        yield _observed(
            "network", interfaces == ["lo"], f"there are interfaces: {', '.join(interfaces)}", "denied: only the loopback is there"
        )


def _observed(control: str, holds: bool, wrong: str, right: str) -> Finding:
    if holds:
        return Finding(control, Severity.OK, right)
    return Finding(control, Severity.ERROR, wrong, "Do not use this host for sandboxes; report what `b4 doctor` shows.")


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return None


def diagnose(reason: str, read: Read) -> Finding:
    """Say which layer refused the trial, and what to do. `read` returns the content of a file, or None."""
    for layer, refuses, remedy in _LAYERS:
        if refuses(reason, read):
            return Finding("user namespaces", Severity.ERROR, f"refused by {layer} ({reason})", remedy)
    return Finding("trial", Severity.ERROR, f"a sandbox does not start here: {reason}")


def _seccomp_filters(read: Read) -> bool:
    return any(line.split() == ["Seccomp:", "2"] for line in (read("/proc/self/status") or "").splitlines())


_NAMESPACE_WORDS = ("namespace", "uid map", "gid map", "Operation not permitted", "No space left", "Permission denied")


def _about_namespaces(reason: str) -> bool:
    return any(word.lower() in reason.lower() for word in _NAMESPACE_WORDS)


_APPARMOR_REMEDY = (
    "As root, give bubblewrap a profile: write `abi <abi/4.0>,\\ninclude <tunables/global>\\nprofile bwrap /usr/bin/bwrap "
    "flags=(unconfined) { userns, }` to /etc/apparmor.d/bwrap and run `apparmor_parser -r /etc/apparmor.d/bwrap`."
)

_LAYERS: tuple[tuple[str, Callable[[str, Read], bool], str], ...] = (
    (
        "the container's masked /proc",
        lambda reason, read: "mount proc" in reason,
        "Start the container with `--security-opt systempaths=unconfined`.",
    ),
    (
        "the sysctl kernel.unprivileged_userns_clone",
        lambda reason, read: _about_namespaces(reason) and read("/proc/sys/kernel/unprivileged_userns_clone") == "0",
        "As root: `sysctl -w kernel.unprivileged_userns_clone=1`, and the same line in /etc/sysctl.d/ to keep it.",
    ),
    (
        "the sysctl user.max_user_namespaces",
        lambda reason, read: _about_namespaces(reason) and read("/proc/sys/user/max_user_namespaces") == "0",
        "As root: `sysctl -w user.max_user_namespaces=15000`, and the same line in /etc/sysctl.d/ to keep it.",
    ),
    (
        "AppArmor (kernel.apparmor_restrict_unprivileged_userns)",
        lambda reason, read: _about_namespaces(reason) and read("/proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1",
        _APPARMOR_REMEDY,
    ),
    (
        "the seccomp filter of the container around it",
        lambda reason, read: _about_namespaces(reason) and _seccomp_filters(read),
        "Start the container with a seccomp profile that allows clone, unshare, mount and pivot_root (`--security-opt seccomp=…`).",
    ),
)
