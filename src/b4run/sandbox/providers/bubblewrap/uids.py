"""Host users for the sandboxes of a supervisor that runs as root: one unprivileged uid for each thread.

The range of a state directory is drawn once and recorded in it, so that two apps on one host are unlikely to share a uid. It lies in
1,879,048,192 to 2,147,418,111, which systemd's table of ids leaves to nobody.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Container
from itertools import islice
from pathlib import Path

from b4run.errors import B4Error
from b4run.sandbox.providers.bubblewrap.files import exclusive, write_atomically

FIRST = 0x7000_0000
RANGE = 65_536
BLOCK = 32
_RANGES = 4_095
_RECORD = "uids.json"


class UidsUnavailable(B4Error):
    """No unprivileged user for the sandbox: {reason}"""

    code = "B4_E2002"
    hint = "Start as an ordinary user, or in a user namespace that maps the ids from 1,879,048,192 on."


class Uids:
    """The uids of one state directory. A process draws them in blocks, so that a new thread costs no write; what it leaves is not used."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._drawn: list[int] = []

    def take(self, taken: Container[int]) -> int:
        """Return a host uid that no thread of the state directory has.

        Raises:
            UidsUnavailable: the range is used up, or this user namespace does not map it.
        """
        while True:
            while self._drawn:
                uid = self._drawn.pop(0)
                if uid not in taken:
                    return uid
            self._drawn = self._draw(taken)

    def _draw(self, taken: Container[int]) -> list[int]:
        with exclusive(self._state / "uids.lock"):
            record = _read(self._state / _RECORD)
            base, following = record["base"], record["next"]
            order = ((following + step) % RANGE for step in range(RANGE))
            block = list(islice((offset for offset in order if base + offset not in taken), BLOCK))
            if not block:
                raise UidsUnavailable(reason=f"all {RANGE} uids from {base} on are in use")
            _check_mapped(base + min(block), base + max(block))
            record["next"] = (block[-1] + 1) % RANGE
            write_atomically(self._state / _RECORD, json.dumps(record).encode())
        return [base + offset for offset in block]


def _read(path: Path) -> dict[str, int]:
    try:
        record = json.loads(path.read_bytes())
        return {"base": int(record["base"]), "next": int(record["next"])}
    except FileNotFoundError:
        return {"base": FIRST + RANGE * secrets.randbelow(_RANGES), "next": 0}


def _check_mapped(first: int, last: int) -> None:
    """A root that is confined to a user namespace can only become the ids mapped there."""
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        start, _, count = map(int, line.split())
        if start <= first and last < start + count:
            return
    raise UidsUnavailable(reason=f"uids {first} to {last} are not mapped in the user namespace of uid {os.getuid()}")
