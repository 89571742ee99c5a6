"""Which controls of a policy Docker refuses, and which it does not enforce: the one place that acquire and preflight ask."""

from __future__ import annotations

from collections.abc import Iterator

from b4run.sandbox.contract import Capability, Finding, Severity
from b4run.sandbox.policy import Allow, SandboxPolicy

CAPABILITIES = frozenset(
    {
        Capability.EXEC,
        Capability.NETWORK_DENY,
        Capability.NETWORK_ALLOW,
        Capability.MEMORY_LIMIT,
        Capability.CPU_LIMIT,
        Capability.PIDS_LIMIT,
        Capability.PERSISTENT,
    }
)


def refusals(policy: SandboxPolicy) -> Iterator[Finding]:
    """Controls that were asked for and cannot be given: acquire fails, preflight says so."""
    if policy.resources.disk_gb is not None:
        remedy = "Remove `disk_gb` and bound the engine's storage, or use a provider that bounds volumes."
        yield Finding("disk limit", Severity.ERROR, "an engine does not bound the size of a volume", remedy)


def warnings(policy: SandboxPolicy) -> Iterator[Finding]:
    """Controls that are weaker here than their names say."""
    if isinstance(policy.network, Allow):
        if policy.network.denylist:
            yield Finding("network", Severity.WARNING, "the denylist is not enforced: with an open network every address can be reached")
        detail = "open egress: a metadata service of the engine's network can be reached too"
        yield Finding("network", Severity.WARNING, detail, "Set the network to deny.")
    elif policy.network.allowlist:
        yield Finding("network", Severity.WARNING, "the allowlist is not enforced: nothing can be reached, its addresses neither")
