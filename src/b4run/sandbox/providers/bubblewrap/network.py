"""The open network: a namespace of its own that pasta connects, so that the host's loopback and abstract sockets stay out of reach."""

from __future__ import annotations

import os
import shutil

from b4run.sandbox.providers.bubblewrap.hostfiles import NAME_SERVER

TUN = "/dev/net/tun"
PASTA_REMEDY = "Install pasta (`apt install passt`, `dnf install passt`), or set the network to deny."
TUN_REMEDY = "Load the module (`modprobe tun`) and let users open the device (`chmod 666 /dev/net/tun`), or set the network to deny."

_OPTIONS = (
    "--quiet", "--foreground", "--config-net",
    "--no-map-gw",  # the gateway's address would lead to the host's loopback
    "--tcp-ports", "none", "--udp-ports", "none", "--tcp-ns", "none", "--udp-ns", "none",
    "--no-dhcp", "--no-dhcpv6", "--no-ra",
    "--dns-forward", NAME_SERVER,
)  # fmt: skip


def find_pasta() -> str | None:
    """Return the path of pasta."""
    return shutil.which("pasta")


def pasta_command(path: str) -> list[str]:
    """Return the command line, to which the launcher adds the namespaces."""
    return [path, *_OPTIONS]


def needs_own_tun() -> bool:
    """Whether the launcher must give pasta a device node: root can, where the host's is root's alone."""
    return os.geteuid() == 0 and os.stat(TUN).st_mode & 0o006 != 0o006


def obstacle(pasta: str | None) -> tuple[str, str] | None:
    """Return why the network cannot be opened, with the remedy; None when it can."""
    if pasta is None:
        return "an open network needs pasta: the host's own network is never shared with a sandbox", PASTA_REMEDY
    # Root can give pasta a node of its own; the driver must be there all the same.
    usable = os.path.exists(TUN) if os.geteuid() == 0 else os.access(TUN, os.R_OK | os.W_OK)
    if not usable:
        return f"pasta needs {TUN}, which this user cannot open", TUN_REMEDY
    return None
