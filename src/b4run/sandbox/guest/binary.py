"""Where the guest program lies on the host."""

from __future__ import annotations

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Final

import b4run
from b4run.errors import GuestMissing

_FOLDER: Final = Path(b4run.__file__).parent / "_guest"
_MACHINES: Final = {"amd64": "x86_64", "arm64": "aarch64"}
_VERSION_DEADLINE_S: Final = 5.0


def guest_binary(architecture: str | None = None) -> Path:
    """Return the guest for `architecture` (default: this host's), such as `x86_64` or `aarch64`.

    Raises:
        GuestMissing: it has not been built.
    """
    name = architecture or platform.machine()
    name = _MACHINES.get(name.lower(), name)
    binary = _FOLDER / f"b4-guest-{name}-linux"
    if not os.access(binary, os.X_OK):
        raise GuestMissing(architecture=name, reason="it has not been built")
    return binary


@cache
def guest_version() -> str:
    """Return what this host's guest calls itself, such as `b4-guest 0.1.0 protocol 1`. Raises: GuestMissing."""
    binary = guest_binary()
    try:
        answer = subprocess.run([binary, "version"], capture_output=True, text=True, check=True, timeout=_VERSION_DEADLINE_S)
    except (OSError, subprocess.SubprocessError) as error:
        raise GuestMissing(architecture=platform.machine(), reason=f"it does not run ({type(error).__name__})") from None
    return answer.stdout.strip()
