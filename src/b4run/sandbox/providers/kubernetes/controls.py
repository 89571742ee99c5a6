"""Which controls of a policy Kubernetes refuses, and which it does not enforce: the one place that acquire and preflight ask."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from b4run.sandbox.contract import Capability, Finding, Severity
from b4run.sandbox.policy import Allow, SandboxPolicy

CAPABILITIES = frozenset(
    {
        Capability.EXEC,
        Capability.NETWORK_DENY,
        Capability.NETWORK_ALLOW,
        Capability.NETWORK_ALLOWLIST,
        Capability.MEMORY_LIMIT,
        Capability.CPU_LIMIT,
        Capability.PERSISTENT,
    }
)


def refusals(policy: SandboxPolicy) -> Iterator[Finding]:
    """Controls that were asked for and cannot be given: acquire fails, preflight says so."""
    network = policy.network
    key = "denylist" if isinstance(network, Allow) else "allowlist"
    for entry in network.denylist if isinstance(network, Allow) else network.allowlist:
        try:
            ipaddress.ip_network(entry)
        except ValueError:
            remedy = "A NetworkPolicy knows addresses alone: write a network such as '10.1.0.0/16' or '192.0.2.7/32'."
            yield Finding("network", Severity.ERROR, f"`{key}` holds {entry!r}, which is no CIDR", remedy)


def warnings(policy: SandboxPolicy) -> Iterator[Finding]:
    """Controls that are weaker here than their names say."""
    if isinstance(policy.network, Allow):
        if policy.network.denylist:
            yield Finding("network", Severity.WARNING, "the denylist is a NetworkPolicy, which nobody has seen enforced here")
        detail = "open egress: a metadata service of the cluster's network, its API server and other Pods can be reached too"
        yield Finding("network", Severity.WARNING, detail, "Set the network to deny.")
    remedy = "Set the kubelet's `podPidsLimit` on the nodes."
    yield Finding("processes", Severity.WARNING, "`pids_limit` is the node's business: Kubernetes has no such setting for a Pod", remedy)
    if policy.resources.disk_gb is not None:
        remedy = "Use a storage class whose volumes are of the size that was asked for."
        yield Finding("disk limit", Severity.WARNING, "the claim asks for the size; its driver may not hold the volume to it", remedy)
