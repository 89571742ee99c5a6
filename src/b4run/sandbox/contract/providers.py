"""Handles and providers: what a sandbox is to its holder, and what makes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from b4run.sandbox.contract.commands import ExecBackend
from b4run.sandbox.contract.files import FileBackend, FileReader, FileTree
from b4run.sandbox.policy import SandboxPolicy, User

WORKSPACE_ROOT = "/workspace"
"""Where every provider mounts the thread's files."""


class Capability(StrEnum):
    """What a provider can do beyond the base contract; conformance groups are chosen by it."""

    EXEC = "exec"
    """Commands really run (the fake answers from a script instead)."""
    NETWORK_DENY = "network_deny"
    """Commands reach nothing outside their sandbox."""
    NETWORK_ABSENT = "network_absent"
    """A closed network has no interface but the loopback; elsewhere there is one, and what it sends is dropped."""
    NETWORK_ALLOW = "network_allow"
    """Commands may reach the network."""
    NETWORK_ALLOWLIST = "network_allowlist"
    """Commands reach the named hosts alone."""
    MEMORY_LIMIT = "memory_limit"
    """`resources.memory_mb` is enforced."""
    CPU_LIMIT = "cpu_limit"
    """`resources.cpu` is enforced."""
    PIDS_LIMIT = "pids_limit"
    """`resources.pids` is enforced."""
    DISK_LIMIT = "disk_limit"
    """`resources.disk_gb` is enforced."""
    OOM_CAUSE = "oom_cause"
    """A death by the memory limit is reported as cause `oom`."""
    MEMORY_SPARES_SANDBOX = "memory_spares_sandbox"
    """The memory limit ends a process that passes it; elsewhere it ends the sandbox, whose loss tells it as its cause."""
    GUEST_PROTECTED = "guest_protected"
    """Commands cannot signal the guest."""
    PERSISTENT = "persistent"
    """Files outlive the provider object and its process."""
    READER = "reader"
    """A thread's files can be read beside its sandbox, also while it has none."""
    MANAGED_WORKSPACES = "managed_workspaces"
    """A thread can start from a recorded workspace."""
    IMAGE_RESOLUTION = "image_resolution"
    """A thread can name its image, which is pinned to its immutable identity."""


class SandboxHandle(Protocol):
    """One thread's live sandbox."""

    @property
    def thread_id(self) -> str: ...

    @property
    def workspace_root(self) -> str: ...

    @property
    def instance(self) -> str:
        """Names this compute: it changes when the sandbox was lost and made anew."""

    @property
    def exec(self) -> ExecBackend: ...

    @property
    def files(self) -> FileBackend: ...

    @property
    def lost(self) -> bool:
        """True once the sandbox is known to be gone; every call then raises `SandboxLost`."""

    async def idle(self) -> bool:
        """Return whether nothing runs in it and nobody else is connected to it; a lost sandbox is idle."""


@runtime_checkable
class SandboxProvider(Protocol):
    """Creates, finds and removes sandboxes. `acquire` and `release` may be called from several tasks; each is idempotent."""

    @property
    def name(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> SandboxHandle:
        """Create or re-attach the thread's compute on its workspace.

        Raises:
            SandboxUnavailable: it cannot be made; `SandboxHeld`, `PolicyConflict` say that it is in use.
        """

    async def release(self, thread_id: str) -> None:
        """Drop warm compute, keep the files. A thread without compute is fine."""

    async def destroy(self, thread_id: str) -> None:
        """Drop compute and files; return when both are gone. A thread that never was is fine."""

    async def aclose(self) -> None:
        """Release all that this object holds."""


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class Finding:
    """One control and whether this host enforces it."""

    control: str
    severity: Severity
    detail: str
    remedy: str = ""

    @property
    def sentence(self) -> str:
        """What was found, for where the control is not shown beside it."""
        return f"{self.control}: {self.detail}"


@dataclass(frozen=True, slots=True)
class Preflight:
    findings: tuple[Finding, ...] = ()

    @property
    def ok(self) -> bool:
        return all(finding.severity is not Severity.ERROR for finding in self.findings)

    @property
    def warnings(self) -> tuple[str, ...]:
        return tuple(f.sentence for f in self.findings if f.severity is Severity.WARNING)

    @property
    def detail(self) -> str:
        return "; ".join(f.sentence for f in self.findings if f.severity is Severity.ERROR)


@runtime_checkable
class PreflightProvider(Protocol):
    """A provider that can tell before the first command what it will and will not enforce."""

    async def preflight(self, policy: SandboxPolicy) -> Preflight: ...


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One line of `b4 sandbox ls`."""

    resource_id: str
    thread_id: str | None
    running: bool
    workspace_bytes: int | None = None


@runtime_checkable
class ListingProvider(Protocol):
    """A provider that can find the sandboxes of its scope again."""

    async def list_sandboxes(self) -> Sequence[SandboxRecord]: ...


class WorkspaceReader(FileReader, Protocol):
    """Looks at one thread's workspace without its sandbox; nothing on it can change anything. Calls after `aclose` raise `ReaderClosed`."""

    @property
    def thread_id(self) -> str: ...

    @property
    def workspace_root(self) -> str: ...

    async def read_tree(
        self,
        path: str = ".",
        *,
        skip: Sequence[str] = (),
        max_entries: int = 10_000,
        max_file_bytes: int = 2_097_152,
        max_total_bytes: int = 16_777_216,
    ) -> FileTree:
        """Return everything below a folder with what its files hold, in one exchange; links are not followed.

        Folders in it that `skip` names are listed and not gone into. Refused with the file as `path`: `too_large` over its limit or over
        what is left of the total, `changed` for what did not hold still. `too_many` past `max_entries` (up to 1,000,000).
        """

    async def aclose(self) -> None:
        """Remove what the reader is made of. Raises: SandboxUnavailable: something is left; call again."""


@runtime_checkable
class ReaderProvider(Protocol):
    """A provider that can attach a thread's workspace a second time, for reading only (capability `reader`)."""

    async def open_workspace_reader(self, thread_id: str, *, run_as_non_root: bool | User = True) -> WorkspaceReader:
        """Open a reader beside whatever the thread's sandbox does; that is neither made, replaced, started nor stopped.

        `run_as_non_root` is who reads, as in the policy that the files were made under: True is 1000:1000, False is root.
        A caller who holds the provider is trusted; nothing is asked about who owns the thread.

        Raises:
            WorkspaceMissing: the thread has no files here.
            SandboxUnavailable: the reader cannot be made.
        """


@dataclass(frozen=True, slots=True)
class Leftover:
    """Something that `prune` removed: its kind, such as `reader`, and its name."""

    kind: str
    name: str


@runtime_checkable
class PruningProvider(Protocol):
    """A provider that can remove what crashes and upgrades left behind."""

    async def prune(self) -> Sequence[Leftover]:
        """Remove what no thread owns and nobody uses; return what that was. Threads' files and running sandboxes stay.

        Raises:
            SandboxUnavailable: something was not removed; the rest was.
        """
