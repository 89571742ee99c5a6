"""Control groups of one sandbox: version 1 with a hierarchy per controller, or version 2 where this process may use it.

They are made below the supervisor's own group (version 1), or in the nearest group above it that it may write and whose controllers can be
used (version 2 allows no processes in a group that hands controllers down), so that limits on the supervisor hold for its sandboxes.
"""

from __future__ import annotations

import errno
import functools
import os
import secrets
import signal
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "cpu", "pids")

_CPU_PERIOD_US = 100_000
_CPU_LEAST_US = 1_000
_REMOVAL_SECONDS = 5.0
_REMOVAL_STEP_SECONDS = 0.002


@dataclass(frozen=True, slots=True)
class Limits:
    """What a sandbox may use; None is no limit."""

    memory_bytes: int | None = None
    cpus: float | None = None
    pids: int | None = None

    @property
    def controllers(self) -> tuple[str, ...]:
        """The controllers that these limits need."""
        asked = {"memory": self.memory_bytes, "cpu": self.cpus, "pids": self.pids}
        return tuple(name for name in CONTROLLERS if asked[name] is not None)


@dataclass(frozen=True, slots=True)
class Home:
    """Where groups with one controller can be made."""

    version: int
    parent: Path
    own: Path
    """The supervisor's own group, to which its launcher returns."""

    @property
    def members(self) -> str:
        """The file that takes a single-threaded process. Version 1's `tasks` spares the kernel a wait of milliseconds."""
        return "tasks" if self.version == 1 else "cgroup.procs"


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of `mountinfo` that is a control group hierarchy."""

    version: int
    root: str
    point: Path
    options: frozenset[str]


class CgroupFailed(Exception):
    """A group could not be made although the controller is there; says which and why."""


def discover(mountinfo: str | None = None, membership: str | None = None) -> dict[str, Home]:
    """Return, for each controller this process can limit by, where. The arguments replace what /proc/self says."""
    mounts = list(_mounts(mountinfo if mountinfo is not None else Path("/proc/self/mountinfo").read_text()))
    own = dict(_membership(membership if membership is not None else _read(Path("/proc/self/cgroup"))))
    homes: dict[str, Home] = {}
    for mount in mounts:
        if mount.version == 1:
            for controller in mount.options.intersection(CONTROLLERS):
                home = _home_v1(mount, own.get(controller))
                if home is not None:
                    homes.setdefault(controller, home)
        else:
            for controller, home in _homes_v2(mount, own.get("")).items():
                homes.setdefault(controller, home)
    return homes


@functools.cache
def discovered() -> Mapping[str, Home]:
    """As `discover`, once per process: groups and mounts of a running supervisor stay."""
    return discover()


def _mounts(mountinfo: str) -> Iterable[Mount]:
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind in ("cgroup", "cgroup2"):
            fields = before.split(" ")
            yield Mount(2 if kind == "cgroup2" else 1, fields[3], Path(fields[4]), frozenset(options.split(",")))


def _membership(text: str) -> Iterable[tuple[str, str]]:
    for line in text.splitlines():
        _, controllers, path = line.split(":", 2)
        for controller in controllers.split(","):
            yield controller, path


def _below(mount: Mount, path: str | None) -> Path:
    """The supervisor's own group; the mount's root where the path is of another namespace."""
    if path is not None and (path + "/").startswith(mount.root.rstrip("/") + "/"):
        found = mount.point / path[len(mount.root.rstrip("/")) :].lstrip("/")
        if found.is_dir():
            return found
    return mount.point


def _home_v1(mount: Mount, path: str | None) -> Home | None:
    own = _below(mount, path)
    return Home(1, own, own) if os.access(own, os.W_OK) else None


def _homes_v2(mount: Mount, path: str | None) -> dict[str, Home]:
    own = _below(mount, path)
    above = [folder for folder in (own, *own.parents) if folder.is_relative_to(mount.point)]
    homes: dict[str, Home] = {}
    for folder in above:
        if not (os.access(folder, os.W_OK) and os.access(folder / "cgroup.procs", os.W_OK)):
            break
        for controller in _read(folder / "cgroup.controllers").split():
            if controller in CONTROLLERS and controller not in homes and not _elsewhere(homes, folder) and _hands_down(folder, controller):
                homes[controller] = Home(2, folder, own)
    return homes


def _elsewhere(homes: Mapping[str, Home], folder: Path) -> bool:
    """A process is in one group of version 2, so all controllers must come from one place."""
    return any(home.parent != folder for home in homes.values())


def _hands_down(folder: Path, controller: str) -> bool:
    if controller in _read(folder / "cgroup.subtree_control").split():
        return True
    try:
        (folder / "cgroup.subtree_control").write_text(f"+{controller}")
    except OSError:
        return False
    return True


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


@dataclass(frozen=True, slots=True)
class Group:
    """The groups of one sandbox, at most one for each hierarchy."""

    folders: tuple[Path, ...] = ()
    own: tuple[Path, ...] = ()
    members: tuple[str, ...] = ()
    controllers: frozenset[str] = frozenset()
    memory: Path | None = None

    @classmethod
    def create(cls, resource_id: str, limits: Limits, homes: Mapping[str, Home]) -> Group:
        """Make the groups that `limits` need; controllers without a home are left out.

        Raises:
            CgroupFailed: a group or its limit was refused; nothing is left behind.
        """
        name = f"b4-{resource_id}-{secrets.token_hex(4)}"
        wanted = [(controller, homes[controller]) for controller in limits.controllers if controller in homes]
        folders: dict[Path, Home] = {}
        try:
            for controller, home in wanted:
                folder = home.parent / name
                if folder not in folders:
                    folder.mkdir()
                    folders[folder] = home
                _set_limit(folder, home.version, controller, limits)
        except OSError as error:
            remove(folders)
            raise CgroupFailed(f"control group {controller}: {error.strerror}") from error
        memory = homes["memory"].parent / name if "memory" in dict(wanted) else None
        used = folders.values()
        controllers = frozenset(controller for controller, _ in wanted)
        return cls(tuple(folders), tuple(home.own for home in used), tuple(home.members for home in used), controllers, memory)

    def oom_kills(self) -> int:
        """Return how many processes the memory limit has killed so far."""
        if self.memory is None:
            return 0
        text = _read(self.memory / "memory.events") or _read(self.memory / "memory.oom_control")
        counts = dict(line.split() for line in text.splitlines())
        return int(counts.get("oom_kill", 0))

    def remove(self) -> None:
        """Kill what is left inside and remove the groups; can be repeated, takes 5 s at most. Blocks."""
        remove(self.folders)


def _set_limit(folder: Path, version: int, controller: str, limits: Limits) -> None:
    if controller == "pids":
        (folder / "pids.max").write_text(str(limits.pids))
    elif controller == "cpu":
        quota = max(_CPU_LEAST_US, round((limits.cpus or 0) * _CPU_PERIOD_US))
        if version == 2:
            (folder / "cpu.max").write_text(f"{quota} {_CPU_PERIOD_US}")
        else:
            (folder / "cpu.cfs_period_us").write_text(str(_CPU_PERIOD_US))
            (folder / "cpu.cfs_quota_us").write_text(str(quota))
    else:
        limit, with_swap = ("memory.max", "memory.swap.max") if version == 2 else ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
        (folder / limit).write_text(str(limits.memory_bytes))
        if (folder / with_swap).exists():
            (folder / with_swap).write_text("0" if version == 2 else str(limits.memory_bytes))


def remove(folders: Iterable[Path]) -> None:
    """Kill what is left in the groups and remove them; those already gone are fine. Blocks, 5 s at most.

    Raises:
        CgroupFailed: one is still in use.
    """
    until = time.monotonic() + _REMOVAL_SECONDS
    for folder in folders:
        while not _removed(folder):
            if time.monotonic() > until:
                raise CgroupFailed(f"control group {folder.name} is still in use")
            _kill_members(folder)
            time.sleep(_REMOVAL_STEP_SECONDS)


def _removed(folder: Path) -> bool:
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno == errno.EBUSY:
            return False
        raise
    return True


def _kill_members(folder: Path) -> None:
    for line in _read(folder / "cgroup.procs").split():
        with suppress(ProcessLookupError, PermissionError):
            os.kill(int(line), signal.SIGKILL)
