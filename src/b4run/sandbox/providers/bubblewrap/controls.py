"""Which controls of a policy this provider refuses, and which it does not enforce here: the one place that acquire and preflight ask."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator, Mapping

from b4run.sandbox.contract import Capability, Finding, Severity
from b4run.sandbox.policy import Allow, SandboxPolicy
from b4run.sandbox.providers.bubblewrap.cgroups import Home
from b4run.sandbox.providers.bubblewrap.network import obstacle
from b4run.sandbox.providers.findings import network_warnings

_CGROUP_REMEDY = (
    "Start as root, or where control groups are delegated to you: "
    "`systemd-run --user --scope -p Delegate=yes …`, or a service with `Delegate=yes`."
)
_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_VERSION = 1
_LANDLOCK_SIGNAL_SCOPES = 6
"""The first version that keeps signals within a domain."""


def refusals(policy: SandboxPolicy, pasta: str | None) -> Iterator[Finding]:
    """Controls that were asked for and cannot be given: acquire fails, preflight says so."""
    security = policy.security
    if not security.drop_all_capabilities:
        yield _error(
            "capabilities", "bubblewrap never leaves capabilities", "Leave `drop_all_capabilities` true, or use a container provider."
        )
    if not security.no_new_privileges:
        yield _error("no new privileges", "bubblewrap always sets it", "Leave `no_new_privileges` true, or use a container provider.")
    if policy.resources.disk_gb is not None:
        remedy = "Remove `disk_gb` and put the state directory on a file system of that size, or use a provider that bounds storage."
        yield _error("disk limit", "the workspace is a plain folder whose size nothing bounds", remedy)
    if isinstance(policy.network, Allow):
        found = obstacle(pasta)
        if found is not None:
            yield _error("network", *found)


def warnings(policy: SandboxPolicy, homes: Mapping[str, Home]) -> Iterator[Finding]:
    """Controls that are weaker here than their names say."""
    yield from network_warnings(policy.network, "this host")
    if policy.resources.memory_mb is not None and "memory" not in homes:
        yield _warning("memory limit", "it holds for each process, not for the sandbox as a whole", _CGROUP_REMEDY)
    if policy.resources.cpus is not None and "cpu" not in homes:
        yield _warning("cpu limit", "it is not enforced", _CGROUP_REMEDY)
    if "pids" not in homes and not counts_per_namespace():
        yield _warning("pids limit", "it is not enforced on a kernel before 5.14", _CGROUP_REMEDY)


def _error(control: str, detail: str, remedy: str) -> Finding:
    return Finding(control, Severity.ERROR, detail, remedy)


def _warning(control: str, detail: str, remedy: str = "") -> Finding:
    return Finding(control, Severity.WARNING, detail, remedy)


@functools.cache
def counts_per_namespace() -> bool:
    """Since Linux 5.14 the resource limit on processes counts each user namespace by itself; before, it would count the whole host's."""
    major, minor = os.uname().release.split(".")[:2]
    return (int(major), int("".join(filter(str.isdigit, minor)) or 0)) >= (5, 14)


@functools.cache
def protects_guest() -> bool:
    """Whether Landlock here can keep signals of commands away from the guest."""
    libc = ctypes.CDLL(None, use_errno=True)
    version = libc.syscall(_LANDLOCK_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_LANDLOCK_VERSION))
    return int(version) >= _LANDLOCK_SIGNAL_SCOPES


ALWAYS = frozenset(
    {
        Capability.EXEC,
        Capability.NETWORK_DENY,
        Capability.NETWORK_ABSENT,
        Capability.PERSISTENT,
        Capability.READER,
        Capability.MANAGED_WORKSPACES,
    }
)

BY_HOST = {
    Capability.NETWORK_ALLOW: "pasta",
    Capability.MEMORY_LIMIT: "a memory control group",
    Capability.OOM_CAUSE: "a memory control group",
    Capability.MEMORY_SPARES_SANDBOX: "a memory control group",
    Capability.CPU_LIMIT: "a CPU control group",
    Capability.PIDS_LIMIT: "a pids control group or Linux 5.14",
    Capability.GUEST_PROTECTED: "Landlock of Linux 6.12",
}
"""What the host must bring for a capability."""


def capabilities(homes: Mapping[str, Home], pasta: str | None) -> frozenset[Capability]:
    """Return what the provider can do on this host, for this user."""
    memory = "memory" in homes
    there = {
        Capability.NETWORK_ALLOW: obstacle(pasta) is None,
        Capability.MEMORY_LIMIT: memory,
        Capability.OOM_CAUSE: memory,
        Capability.MEMORY_SPARES_SANDBOX: memory,
        Capability.CPU_LIMIT: "cpu" in homes,
        Capability.PIDS_LIMIT: "pids" in homes or counts_per_namespace(),
        Capability.GUEST_PROTECTED: protects_guest(),
    }
    return ALWAYS | {capability for capability in BY_HOST if there[capability]}
