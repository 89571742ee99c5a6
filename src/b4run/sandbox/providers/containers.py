"""What a policy means for any engine's container."""

from __future__ import annotations

from typing import Final

from b4run.sandbox.policy import SandboxPolicy, User

AGENT: Final = User(uid=1000, gid=1000)
MIB: Final = 1024 * 1024
_DEFAULT_SCRATCH: Final = 1024 * MIB


def runtime_user(policy: SandboxPolicy) -> User | None:
    """Return the user of the container; None means the image's own."""
    chosen = policy.security.run_as_non_root
    if chosen is True:
        return AGENT
    return chosen or None


def scratch_bytes(policy: SandboxPolicy) -> int:
    """Bytes of each tmpfs: 1 GiB, or half of the memory limit if that is less."""
    memory = policy.resources.memory_mb
    return _DEFAULT_SCRATCH if memory is None else min(_DEFAULT_SCRATCH, memory * MIB // 2)
