"""Telling a death by the container's memory limit, from inside: the counters of its control group."""

from __future__ import annotations

from b4run.errors import B4Error
from b4run.sandbox.guest.client import GuestClient
from b4run.sandbox.guest.jobs import GuestExec, OomCheck

_READ = """
for file in /sys/fs/cgroup/memory.events /sys/fs/cgroup/memory/memory.oom_control; do
  [ -r "$file" ] && while read -r name value; do [ "$name" = oom_kill ] && echo "$value"; done < "$file"
done
exit 0
"""
_DEADLINE_MS = 5_000


def oom_check(client: GuestClient) -> OomCheck:
    """Return a check that is true once for every time the limit has killed something since it was last asked."""
    backend = GuestExec(client)
    seen = 0

    async def killed_since() -> bool:
        nonlocal seen
        try:
            words = (await backend.run(_READ, deadline_ms=_DEADLINE_MS)).stdout.split()
        except B4Error:
            return False
        before, seen = seen, int(words[0]) if words else 0
        return seen > before

    return killed_since
