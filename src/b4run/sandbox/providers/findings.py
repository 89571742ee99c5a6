"""What several providers say of a policy in the same words."""

from __future__ import annotations

from collections.abc import Iterator

from b4run.sandbox.contract import Finding, Severity
from b4run.sandbox.policy import Allow, Network


def network_warnings(network: Network, place: str) -> Iterator[Finding]:
    """Say what an all-or-nothing network does not enforce; `place` names whose network an open one reaches."""
    if isinstance(network, Allow):
        if network.denylist:
            yield Finding("network", Severity.WARNING, "the denylist is not enforced: with an open network every address can be reached")
        detail = f"open egress: a metadata service of {place}'s network can be reached too"
        yield Finding("network", Severity.WARNING, detail, "Set the network to deny.")
    elif network.allowlist:
        yield Finding("network", Severity.WARNING, "the allowlist is not enforced: nothing can be reached, its addresses neither")
