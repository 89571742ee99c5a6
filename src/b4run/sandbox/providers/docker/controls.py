"""Which controls of a policy Docker refuses, and which it does not enforce: the one place that acquire and preflight ask."""

from __future__ import annotations

from collections.abc import Iterator

from b4run.sandbox.contract import Capability, Finding, Severity
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.providers.findings import network_warnings

CAPABILITIES = frozenset(
    {
        Capability.EXEC,
        Capability.NETWORK_DENY,
        Capability.NETWORK_ABSENT,
        Capability.NETWORK_ALLOW,
        Capability.MEMORY_LIMIT,
        Capability.CPU_LIMIT,
        Capability.PIDS_LIMIT,
        Capability.PERSISTENT,
        Capability.READER,
        Capability.MANAGED_WORKSPACES,
        Capability.IMAGE_RESOLUTION,
    }
)

HOST_KERNEL = frozenset({Capability.OOM_CAUSE, Capability.MEMORY_SPARES_SANDBOX})
"""What a runtime adds whose processes are the host kernel's."""


def refusals(policy: SandboxPolicy) -> Iterator[Finding]:
    """Controls that were asked for and cannot be given: acquire fails, preflight says so."""
    if policy.resources.disk_gb is not None:
        remedy = "Remove `disk_gb` and bound the engine's storage, or use a provider that bounds volumes."
        yield Finding("disk limit", Severity.ERROR, "an engine does not bound the size of a volume", remedy)


def warnings(policy: SandboxPolicy) -> Iterator[Finding]:
    """Controls that are weaker here than their names say."""
    yield from network_warnings(policy.network, "the engine")
