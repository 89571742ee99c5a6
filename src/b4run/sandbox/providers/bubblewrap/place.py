"""What a sandbox is made of, as bubblewrap's and the launcher's arguments. Nothing is started here.

Every namespace is unshared and every capability dropped; the root is a small tmpfs that is made read-only at the end; what is writable is
the workspace and four bounded tmpfs. Order matters: bubblewrap works through its arguments from left to right.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from b4run.sandbox.contract import WORKSPACE_ROOT
from b4run.sandbox.environment import GUEST_PATH, PRIVATE_HOME
from b4run.sandbox.policy import SandboxPolicy, User
from b4run.sandbox.providers.bubblewrap.bwrap import Bubblewrap
from b4run.sandbox.providers.bubblewrap.cgroups import Group, Limits
from b4run.sandbox.providers.bubblewrap.hostfiles import HOSTNAME, program_mounts
from b4run.sandbox.providers.bubblewrap.network import needs_own_tun, pasta_command

STAGING = "/tmp"
"""Where the launcher binds what an unprivileged user could not reach; only it and its children see it."""

USER = User(uid=1000, gid=1000)
ROOT = User(uid=0, gid=0)
_GIB = 1_073_741_824
_MIB = 1_048_576

PIDS_OVERHEAD = 1
"""bubblewrap's own process outside, which the control group counts too."""


@dataclass(frozen=True, slots=True)
class Place:
    """The parts of one sandbox on the host."""

    bubblewrap: Bubblewrap
    guest: Path
    workspace: Path
    etc: Path
    bound_etc: Sequence[str]
    """Folders of the host's /etc."""
    read_only_paths: Sequence[str]
    """Further host paths, at the same place inside."""
    host_uid: int
    pasta: str | None = None
    """Connects the network; without it there is none."""
    reader: bool = False
    """Nothing runs there but a guest that reads; the workspace is mounted read-only."""


def inner_user(policy: SandboxPolicy) -> User:
    """Return who commands run as inside. `run_as_non_root: False` is uid 0 of the sandbox's own user namespace, without capabilities."""
    asked = policy.security.run_as_non_root
    if isinstance(asked, User):
        return asked
    return USER if asked else ROOT


def limits_of(policy: SandboxPolicy) -> Limits:
    """Return what the policy asks control groups for."""
    memory = policy.resources.memory_mb
    return Limits(
        memory_bytes=memory * _MIB if memory is not None else None,
        cpus=policy.resources.cpus,
        pids=policy.security.pids_limit + PIDS_OVERHEAD,
    )


def tmpfs_bytes(policy: SandboxPolicy) -> int:
    """Return the bound of each private tmpfs: 1 GiB, or half of the memory limit when that is less."""
    memory = policy.resources.memory_mb
    return _GIB if memory is None else min(_GIB, memory * _MIB // 2)


def sandbox_arguments(place: Place, policy: SandboxPolicy, *, seccomp: int | None, staged: bool) -> list[str]:
    """Return bubblewrap's command line up to the command. `staged`: sources are found in the launcher's staging folder."""
    user = inner_user(policy)
    arguments = [_bubblewrap_path(place.bubblewrap, staged=staged), *_namespaces(place, user)]
    arguments += ["--die-with-parent", "--as-pid-1", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    if seccomp is not None:
        arguments += ["--seccomp", str(seccomp)]
    if not policy.security.read_only_root_filesystem:
        arguments += ["--size", str(tmpfs_bytes(policy)), "--tmpfs", "/"]
    arguments += _file_system(place, str(tmpfs_bytes(policy)), staged=staged)
    if policy.security.read_only_root_filesystem:
        arguments += ["--remount-ro", "/"]
    return [*arguments, "--chdir", WORKSPACE_ROOT, "--"]


def _namespaces(place: Place, user: User) -> list[str]:
    arguments = ["--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup"]
    if place.bubblewrap.disables_user_namespaces:
        arguments.append("--disable-userns")
    if place.pasta is None:
        arguments.append("--unshare-net")
    return [*arguments, "--uid", str(user.uid), "--gid", str(user.gid), "--hostname", HOSTNAME]


def _file_system(place: Place, size: str, *, staged: bool) -> list[str]:
    sources = dict(_sources(place))

    def source(name: str) -> str:
        return f"{STAGING}/{name}" if staged else sources[name]

    arguments = [*program_mounts(), "--ro-bind", source("etc"), "/etc"]
    for name in place.bound_etc:
        arguments += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    arguments += ["--proc", "/proc", "--dev", "/dev", *_tmpfs("1777", size, "/dev/shm"), "--remount-ro", "/dev"]
    arguments += [*_tmpfs("1777", size, "/tmp"), *_tmpfs("0755", size, "/run")]
    arguments += [*_open_parents(GUEST_PATH), "--ro-bind", source("guest"), GUEST_PATH, *_tmpfs("0700", size, PRIVATE_HOME)]
    for index, path in enumerate(place.read_only_paths):
        arguments += [*_open_parents(path), "--ro-bind", source(f"extra/{index}"), path]
    return [*arguments, "--ro-bind" if place.reader else "--bind", source("workspace"), WORKSPACE_ROOT]


def _tmpfs(mode: str, size: str, path: str) -> list[str]:
    return ["--perms", mode, "--size", size, "--tmpfs", path]


def _open_parents(path: str) -> list[str]:
    """Folders that bubblewrap makes on the way are 0700 otherwise."""
    arguments: list[str] = []
    for parent in [parent for parent in reversed(Path(path).parents) if parent != Path("/")]:
        arguments += ["--perms", "0755", "--dir", str(parent)]
    return arguments


def _sources(place: Place) -> Iterable[tuple[str, str]]:
    yield "workspace", str(place.workspace)
    yield "guest", str(place.guest)
    yield "etc", str(place.etc)
    for index, path in enumerate(place.read_only_paths):
        yield f"extra/{index}", path


def _bubblewrap_path(bubblewrap: Bubblewrap, *, staged: bool) -> str:
    if not staged:
        return bubblewrap.path
    if bubblewrap.companions is None:
        return f"{STAGING}/bwrap"
    return f"{STAGING}/wheel/{'/'.join(Path(bubblewrap.path).parts[-3:])}"


def stages(place: Place) -> Iterable[tuple[str, str]]:
    """What the launcher binds below `STAGING`: host path, name there."""
    for name, path in _sources(place):
        yield path, name
    if place.bubblewrap.companions is None:
        yield place.bubblewrap.path, "bwrap"
    else:
        package = Path(place.bubblewrap.path).parent.parent
        yield str(package), f"wheel/{package.name}"
        yield place.bubblewrap.companions, f"wheel/{Path(place.bubblewrap.companions).name}"


def launch_arguments(place: Place, group: Group, *, as_root: bool) -> list[str]:
    """Return the launcher's command line up to `--`."""
    arguments = [str(place.guest), "launch", "--parent", str(os.getpid()), "--rlimit", "core", "0"]
    if as_root:
        arguments += ["--uid", str(place.host_uid), "--gid", str(place.host_uid)]
        for path, name in stages(place):
            arguments += ["--stage", path, name]
    for folder, own, members in zip(group.folders, group.own, group.members, strict=True):
        arguments += ["--cgroup", str(folder / members), str(own / members)]
    if place.pasta is not None:
        arguments += ["--tun"] if needs_own_tun() else []
        for word in pasta_command(place.pasta):
            arguments += ["--pasta", word]
    return [*arguments, "--"]


def guest_arguments(place: Place, limits: Limits, group: Group) -> list[str]:
    """Return the command inside.

    Limits without a control group become resource limits there, where the kernel counts this user namespace alone.
    """
    if place.reader:
        return [GUEST_PATH, "read", "--root", WORKSPACE_ROOT, "--stream", "0"]
    serve = [GUEST_PATH, "serve", "--root", WORKSPACE_ROOT, "--stream", "0"]
    wanted: list[str] = []
    if limits.pids is not None and "pids" not in group.controllers:
        wanted += ["--rlimit", "nproc", str(limits.pids)]
    if limits.memory_bytes is not None and "memory" not in group.controllers:
        wanted += ["--rlimit", "data", str(limits.memory_bytes)]
    return [GUEST_PATH, "launch", *wanted, "--", *serve] if wanted else serve
