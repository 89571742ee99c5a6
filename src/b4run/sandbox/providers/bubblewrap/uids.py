"""Host users for the sandboxes of a supervisor that runs as root: one unprivileged uid for each thread.

The range of a state directory is drawn once and recorded in it, so that two apps on one host are unlikely to share a uid. It lies in
1,879,048,192 to 2,147,418,111, which systemd's table of ids leaves to nobody.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Container
from pathlib import Path

from b4run.errors import B4Error
from b4run.sandbox.providers.bubblewrap.files import exclusive, write_atomically

FIRST = 0x7000_0000
RANGE = 65_536
_RANGES = 4_095
_RECORD = "uids.json"


class UidsUnavailable(B4Error):
    """No unprivileged user for the sandbox: {reason}"""

    code = "B4_E2002"
    hint = "Start as an ordinary user, or in a user namespace that maps the ids from 1,879,048,192 on."


def allocate_uid(state: Path, taken: Container[int]) -> int:
    """Return a host uid that no thread of this state directory has and record it as used.

    Raises:
        UidsUnavailable: the range is used up, or this user namespace does not map it.
    """
    with exclusive(state / "uids.lock"):
        record = _read(state / _RECORD)
        base, offset = record["base"], record["next"]
        for step in range(RANGE):
            uid = base + (offset + step) % RANGE
            if uid not in taken:
                break
        else:
            raise UidsUnavailable(reason=f"all {RANGE} uids from {base} on are in use")
        _check_mapped(uid)
        record["next"] = (uid - base + 1) % RANGE
        write_atomically(state / _RECORD, json.dumps(record).encode())
    return uid


def _read(path: Path) -> dict[str, int]:
    try:
        record = json.loads(path.read_bytes())
        return {"base": int(record["base"]), "next": int(record["next"])}
    except FileNotFoundError:
        return {"base": FIRST + RANGE * secrets.randbelow(_RANGES), "next": 0}


def _check_mapped(uid: int) -> None:
    """A root that is confined to a user namespace can only become the ids mapped there."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        start, _, count = map(int, line.split())
        if start <= uid < start + count:
            return
    raise UidsUnavailable(reason=f"uid {uid} is not mapped in the user namespace of uid {os.getuid()}")
