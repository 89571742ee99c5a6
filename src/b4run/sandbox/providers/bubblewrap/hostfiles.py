"""What of the host's file system a sandbox sees, read-only: programs and libraries, and the few files of /etc that programs need.

/etc is a folder of our own, made once per content below the state directory: copies of small world-readable files, and what we say about
users, host name and resolver. It never holds the host's users, keys or service configuration. Larger folders that change with the
host's packages are bound into it.
"""

from __future__ import annotations

import functools
import hashlib
import os
import secrets
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from b4run.sandbox.providers.bubblewrap.files import remove_older, remove_tree

_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")

_COPIED = (
    "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "timezone", "os-release", "debian_version", "services", "protocols", "rpc",
    "mime.types", "magic", "locale.alias", "ssl/openssl.cnf", "ca-certificates.conf", "fonts", "perl", "python3*", "java-*",
)  # fmt: skip
_BOUND = ("alternatives", "ssl/certs", "pki/tls/certs", "pki/ca-trust/extracted", "ca-certificates/extracted", "crypto-policies")

_COPY_LIMIT = 1_048_576
"""Bytes of one copied file; larger ones are left out."""
_COPIES = 2_000
_UNUSED_SECONDS = 30 * 86_400.0
"""After which no sandbox that started with a folder is expected to run still."""

HOSTNAME = "sandbox"
NAME_SERVER = "169.254.53.53"
"""Where the sandbox asks names when its network is open; pasta hands the questions to the host's resolver."""

_NSSWITCH = "passwd: files\ngroup: files\nhosts: files dns\nservices: files\nprotocols: files\nnetworks: files\n"


@dataclass(frozen=True, slots=True)
class Link:
    target: str


@dataclass(frozen=True)
class Etc:
    """The content of /etc: paths below it to bytes or symlinks, and the host's folders to bind into it."""

    entries: Mapping[str, bytes | Link]
    bound: tuple[str, ...]

    @functools.cached_property
    def digest(self) -> str:
        digest = hashlib.sha256()
        for path, entry in sorted(self.entries.items()):
            kind, data = ("l", entry.target.encode()) if isinstance(entry, Link) else ("f", entry)
            digest.update(f"{kind} {path} {len(data)}\n".encode(errors="surrogateescape"))
            digest.update(data)
        digest.update("\n".join(self.bound).encode())
        return digest.hexdigest()[:32]


def program_mounts() -> list[str]:
    """Return bubblewrap's arguments for /usr and the folders beside it: as on the host, bound or the same symlink."""
    return list(_program_mounts())


@functools.cache
def _program_mounts() -> tuple[str, ...]:
    arguments: list[str] = []
    for name in _PROGRAMS:
        path = Path("/", name)
        if path.is_symlink():
            arguments += ["--symlink", os.readlink(path), str(path)]
        elif path.is_dir():
            arguments += ["--ro-bind", str(path), str(path)]
    return tuple(arguments)


@functools.cache
def etc(uid: int, gid: int, *, network: bool) -> Etc:
    """Return what /etc holds for a sandbox whose commands run as `uid` and `gid`. The host's part is read once per process."""
    copied, bound = _host_part()
    user, group = ("root", "root") if uid == 0 else ("agent", "agent")
    users = {uid: f"{user}:x:{uid}:{gid}:{user}:/workspace:/bin/sh", 65534: "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin"}
    groups = {gid: f"{group}:x:{gid}:", 65534: "nogroup:x:65534:"}
    entries: dict[str, bytes | Link] = dict(copied)
    own = {
        "passwd": "".join(f"{line}\n" for line in users.values()),
        "group": "".join(f"{line}\n" for line in groups.values()),
        "hostname": f"{HOSTNAME}\n",
        "hosts": f"127.0.0.1 localhost {HOSTNAME}\n::1 localhost {HOSTNAME}\n",
        "nsswitch.conf": _NSSWITCH,
    }
    if network:
        own["resolv.conf"] = f"nameserver {NAME_SERVER}\n"
    return Etc(entries | {name: text.encode() for name, text in own.items()}, bound)


@functools.cache
def _host_part() -> tuple[dict[str, bytes | Link], tuple[str, ...]]:
    copied: dict[str, bytes | Link] = {}
    for pattern in _COPIED:
        for path in sorted(Path("/etc").glob(pattern)):
            for name, entry in _public(path):
                if len(copied) < _COPIES:
                    copied[name] = entry
    return copied, tuple(name for name in _BOUND if Path("/etc", name).is_dir())


def _public(path: Path) -> Iterator[tuple[str, bytes | Link]]:
    """Everything at `path` that any user of the host may read."""
    try:
        status = path.lstat()
        name = str(path.relative_to("/etc"))
        if stat.S_ISLNK(status.st_mode):
            yield name, Link(os.readlink(path))
        elif stat.S_ISREG(status.st_mode) and status.st_mode & stat.S_IROTH and status.st_size <= _COPY_LIMIT:
            yield name, path.read_bytes()
        elif stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_IROTH and status.st_mode & stat.S_IXOTH:
            for child in sorted(path.iterdir()):
                yield from _public(child)
    except OSError:
        return


def materialise(content: Etc, folder: Path) -> Path:
    """Return a folder below `folder` that holds `content`; made when it is not there yet, removed when unused for long."""
    target = folder / f"etc-{content.digest}"
    try:
        os.utime(target)
    except FileNotFoundError:
        remove_older(folder, "etc-*", _UNUSED_SECONDS)
        remove_older(folder, ".etc-*", _UNUSED_SECONDS)
        _make(content, target)
    return target


def _make(content: Etc, target: Path) -> None:
    folder = target.parent
    draft = folder / f".etc-{secrets.token_hex(4)}"
    draft.mkdir(mode=0o755)
    for name, entry in content.entries.items():
        path = draft / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(entry, Link):
            path.symlink_to(entry.target)
        else:
            path.write_bytes(entry)
    for name in content.bound:
        (draft / name).mkdir(parents=True, exist_ok=True)
    _open_to_read(draft)
    try:
        draft.rename(target)
    except OSError:
        # Another process was faster.
        remove_tree(draft)


def _open_to_read(root: Path) -> None:
    """Whatever the umask was: the sandbox's user must read it."""
    for folder, _, files in os.walk(root):
        os.chmod(folder, 0o755)
        for name in files:
            path = os.path.join(folder, name)
            if not os.path.islink(path):
                os.chmod(path, 0o644)
