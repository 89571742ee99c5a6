"""What outlives a process: one folder per thread below the state directory, and the locks that say who holds which.

`<resource id>/meta.json` and `<resource id>/workspace/` appear together, by one rename; destroying renames the folder to a tombstone
first, so that a crash leaves either a thread or something to sweep. The holder of a thread keeps an exclusive lock on
`locks/<resource id>`, which also records its pid and the control groups that it made.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from b4run.errors import B4Error, SandboxHeld, SandboxUnavailable
from b4run.sandbox.providers.bubblewrap.files import remove_tree, tree_bytes
from b4run.sandbox.providers.bubblewrap.uids import FIRST, Uids

VERSION = 1
_META = "meta.json"
_WORKSPACE = "workspace"
_ID_LENGTH = 40
_TOMBSTONE = ".gone-"
_DRAFT = ".new-"
_HEX = frozenset("0123456789abcdef")


class StateUnusable(B4Error):
    """The state directory cannot be used: {reason}"""

    code = "B4_E2002"
    hint = "It is {path}. Name another with `state_dir`, or start as the user who owns it."


@dataclass(frozen=True, slots=True)
class Meta:
    """What is recorded of one thread."""

    scope: str
    thread_id: str
    uid: int
    """The host user that owns the files and runs the commands."""
    version: int = VERSION


@dataclass(frozen=True, slots=True)
class ThreadFolder:
    """The recorded folder of one thread."""

    resource_id: str
    path: Path
    meta: Meta

    @property
    def workspace(self) -> Path:
        return self.path / _WORKSPACE


@dataclass(slots=True)
class Hold:
    """An exclusive lock on one thread; `close` gives it up."""

    path: Path
    descriptor: int
    leftovers: list[Path] = field(default_factory=list)
    """Control groups that the last holder recorded and may not have removed."""

    def record(self, cgroups: Sequence[Path]) -> None:
        """Say who holds the thread and which control groups it made."""
        data = json.dumps({"pid": os.getpid(), "cgroups": [str(path) for path in cgroups]}).encode()
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, data, 0)

    def close(self, *, forget: bool = False) -> None:
        """Give the lock up; `forget` also removes its file, for a thread that is gone. Safe to repeat."""
        if self.descriptor < 0:
            return
        if forget:
            self.path.unlink(missing_ok=True)
        else:
            os.ftruncate(self.descriptor, 0)
        os.close(self.descriptor)
        self.descriptor = -1


class State:
    """The state directory of one app, for one scope."""

    def __init__(self, path: Path, scope: str) -> None:
        self.path = path
        self.scope = scope
        self._uids = Uids(path)

    def prepare(self) -> None:
        """Make the directory, for its owner alone.

        Raises:
            StateUnusable: it belongs to somebody else or cannot be written.
        """
        try:
            (self.path / "locks").mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self.path.stat()
            if status.st_uid != os.geteuid():
                raise StateUnusable(path=str(self.path), reason=f"it belongs to uid {status.st_uid}, this process runs as {os.geteuid()}")
            self.path.chmod(0o700)
            ignore = self.path / ".gitignore"
            if not ignore.exists():
                ignore.write_text("*\n")
        except OSError as error:
            raise StateUnusable(path=str(self.path), reason=error.strerror or type(error).__name__) from error

    def hold(self, resource_id: str, thread_id: str) -> Hold:
        """Take the thread's lock without waiting.

        Raises:
            SandboxHeld: another process, or another provider of this one, has it.
        """
        path = self.path / "locks" / resource_id
        while True:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                holder = _lock_record(descriptor).get("pid")
                os.close(descriptor)
                raise SandboxHeld(thread_id=thread_id, reason=_held_by(holder)) from None
            if _same_file(descriptor, path):
                cgroups = _lock_record(descriptor).get("cgroups")
                return Hold(path, descriptor, [Path(str(name)) for name in cgroups] if isinstance(cgroups, list) else [])
            # It was removed with its thread between opening and locking.
            os.close(descriptor)

    def find(self, resource_id: str) -> ThreadFolder | None:
        """Return what is recorded of the thread.

        Raises:
            StateUnusable: the record cannot be read or is of a newer version.
        """
        folder = self.path / resource_id
        try:
            data = json.loads((folder / _META).read_bytes())
            meta = Meta(str(data["scope"]), str(data["thread_id"]), int(data["uid"]), int(data["version"]))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StateUnusable(path=str(folder), reason=f"its record is damaged ({type(error).__name__})") from error
        if meta.version != VERSION:
            raise StateUnusable(path=str(folder), reason=f"it was written by a newer version (record {meta.version}, this is {VERSION})")
        return ThreadFolder(resource_id, folder, meta)

    def open(self, resource_id: str, thread_id: str) -> ThreadFolder:
        """Return the thread's folder, made when it is new. The caller holds the thread.

        Raises:
            StateUnusable, UidsUnavailable: it cannot be made.
            SandboxUnavailable: its files belong to a user this process cannot be.
        """
        found = self.find(resource_id)
        if found is None:
            # Whoever left a draft is dead: the thread is ours.
            self._remove(_DRAFT, resource_id)
            found = self._create(resource_id, thread_id)
        self.check_owner(found)
        return found

    def check_owner(self, folder: ThreadFolder) -> None:
        """Raise SandboxUnavailable when the files belong to a user this process cannot be."""
        owner = folder.meta.uid
        if owner < FIRST if os.geteuid() == 0 else owner != os.geteuid():
            reason = f"its files were made by a supervisor of another user (uid {owner})"
            raise SandboxUnavailable(thread_id=folder.meta.thread_id, reason=reason)

    def _create(self, resource_id: str, thread_id: str) -> ThreadFolder:
        as_root = os.geteuid() == 0
        uid = self._uids.take(self._owners()) if as_root else os.geteuid()
        meta = Meta(self.scope, thread_id, uid)
        draft = self.path / f"{_DRAFT}{resource_id}-{secrets.token_hex(4)}"
        draft.mkdir(mode=0o700)
        (draft / _WORKSPACE).mkdir(mode=0o755)
        (draft / _WORKSPACE).chmod(0o755)
        if as_root:
            os.chown(draft / _WORKSPACE, uid, uid)
        # The folder itself comes into view in one step.
        (draft / _META).write_bytes(json.dumps(asdict(meta)).encode())
        target = self.path / resource_id
        draft.rename(target)
        return ThreadFolder(resource_id, target, meta)

    def bury(self, resource_id: str) -> None:
        """Make the thread's folder a tombstone: from now on it is gone, whenever its files are. The caller holds the thread."""
        with suppress(FileNotFoundError):
            (self.path / resource_id).rename(self.path / f"{_TOMBSTONE}{resource_id}-{secrets.token_hex(4)}")

    def sweep(self, resource_id: str) -> None:
        """Remove what an interrupted making or removal of the thread left, and its tombstones. The caller holds the thread. Blocks."""
        for prefix in (_TOMBSTONE, _DRAFT):
            self._remove(prefix, resource_id)

    def _remove(self, prefix: str, resource_id: str) -> None:
        for path in self.path.glob(f"{prefix}{resource_id}-*"):
            remove_tree(path)

    def tidy(self) -> list[str]:
        """Finish what processes that died were making or removing; return the folders' names. Blocks."""
        removed = []
        for path in [*self.path.glob(f"{_TOMBSTONE}*"), *self.path.glob(f"{_DRAFT}*")]:
            resource_id = path.name.removeprefix(_TOMBSTONE).removeprefix(_DRAFT)[:_ID_LENGTH]
            with suppress(SandboxHeld):
                hold = self.hold(resource_id, resource_id)
                try:
                    self.sweep(resource_id)
                    removed.append(path.name)
                finally:
                    hold.close(forget=not self.has(resource_id))
        return removed

    def abandoned(self) -> Iterator[Hold]:
        """Give out, one after the other, the locks whose holder died or whose thread is gone; each is given up at the next."""
        for path in sorted((self.path / "locks").iterdir()):
            with suppress(SandboxHeld, FileNotFoundError):
                if not path.stat().st_size and self.has(path.name):
                    continue
                hold = self.hold(path.name, path.name)
                try:
                    yield hold
                finally:
                    hold.close(forget=not self.has(path.name))

    def has(self, resource_id: str) -> bool:
        """Whether a thread is recorded, be its record readable or not."""
        return (self.path / resource_id).exists()

    def resource_ids(self) -> list[str]:
        """Every recorded thread, of every scope."""
        with suppress(FileNotFoundError):
            return sorted(name for name in os.listdir(self.path) if len(name) == _ID_LENGTH and _HEX.issuperset(name))
        return []

    def _owners(self) -> set[int]:
        owners = set()
        for name in self.resource_ids():
            with suppress(FileNotFoundError):
                owners.add((self.path / name / _WORKSPACE).stat().st_uid)
        return owners

    def is_held(self, resource_id: str) -> bool:
        """Whether some process has the thread's compute."""
        with suppress(FileNotFoundError), _opened(self.path / "locks" / resource_id) as descriptor:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    def workspace_bytes(self, folder: ThreadFolder) -> int:
        return tree_bytes(folder.workspace)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _held_by(pid: object) -> str:
    if pid is None:
        return "a process is just taking it"
    return "another provider of this process holds it" if pid == os.getpid() else f"process {pid} holds it"


def _same_file(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock_record(descriptor: int) -> dict[str, object]:
    try:
        record = json.loads(os.pread(descriptor, 4_096, 0))
    except ValueError:
        return {}
    return record if isinstance(record, dict) else {}
