"""What a sandbox provider implements and what a holder of a sandbox gets.

A provider creates a place, gives out a handle on it and removes it again. A handle has two backends: `exec` runs commands, `files` works
on the workspace. Paths are relative to the workspace, or absolute inside the sandbox; names that are not UTF-8 travel as
surrogate escapes (`os.fsdecode`). All limits are in the units of their names.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, runtime_checkable

from b4run.sandbox.policy import SandboxPolicy

WORKSPACE_ROOT = "/workspace"
"""Where every provider mounts the thread's files."""

DEFAULT_OUTPUT_LIMIT = 1_048_576
"""Bytes of each output stream that a result keeps: half of it the beginning, half the end."""

_CUT_CHARACTER = re.compile(rb"\A[\x80-\xbf]{1,3}")


class Capability(StrEnum):
    """What a provider can do beyond the base contract; conformance groups are chosen by it."""

    EXEC = "exec"
    """Commands really run (the fake answers from a script instead)."""
    NETWORK_DENY = "network_deny"
    NETWORK_ALLOW = "network_allow"
    NETWORK_ALLOWLIST = "network_allowlist"
    MEMORY_LIMIT = "memory_limit"
    CPU_LIMIT = "cpu_limit"
    PIDS_LIMIT = "pids_limit"
    DISK_LIMIT = "disk_limit"
    OOM_CAUSE = "oom_cause"
    """A death by the memory limit is reported as cause `oom`."""
    GUEST_PROTECTED = "guest_protected"
    """Commands cannot signal the guest."""
    PERSISTENT = "persistent"
    """Files outlive the provider object and its process."""
    READER = "reader"
    MANAGED_WORKSPACES = "managed_workspaces"
    IMAGE_RESOLUTION = "image_resolution"


class Cause(StrEnum):
    """Why a command ended, as the guest saw it; never inferred from a number."""

    EXIT = "exit"
    SIGNAL = "signal"
    TIMEOUT = "timeout"
    OOM = "oom"
    CANCELLED = "cancelled"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Output:
    """What is kept of one stream: its beginning, its end, and how many bytes there were."""

    head: bytes = b""
    tail: bytes = b""
    total: int = 0

    @property
    def truncated(self) -> bool:
        return len(self.head) + len(self.tail) < self.total

    @property
    def data(self) -> bytes:
        """The kept bytes, without a mark where some are missing."""
        return self.head + self.tail

    @property
    def text(self) -> str:
        """UTF-8 with U+FFFD for what is not; a line of its own says how much is missing. A character cut in two is left out."""
        if not self.truncated:
            return self.data.decode(errors="replace")
        missing = self.total - len(self.head) - len(self.tail)
        head = codecs.getincrementaldecoder("utf-8")("replace").decode(self.head)
        tail = _CUT_CHARACTER.sub(b"", self.tail).decode(errors="replace")
        return f"{head}\n[... {missing} bytes left out ...]\n{tail}"


@dataclass(frozen=True, slots=True)
class ExecResult:
    """The sealed outcome of one command."""

    exit_code: int
    """The program's; 128 + n for a death by signal n; 124 for a timeout."""
    cause: Cause
    signal: int | None = None
    out: Output = field(default_factory=Output)
    err: Output = field(default_factory=Output)
    duration_ms: float = 0.0
    user_ms: float = 0.0
    system_ms: float = 0.0
    peak_memory_kb: int = 0
    job: int = 0

    @property
    def stdout(self) -> str:
        return self.out.text

    @property
    def stderr(self) -> str:
        return self.err.text

    @property
    def ok(self) -> bool:
        return self.cause is Cause.EXIT and self.exit_code == 0


@dataclass(frozen=True, slots=True)
class JobInfo:
    """One line of the job list."""

    job: int
    pid: int
    running: bool
    """The leader has not ended."""
    alive: bool
    """Some process of the job is left."""
    started_ms: float
    """Since the guest started."""
    cause: Cause | None = None
    exit_code: int | None = None
    command: str = ""


@dataclass(frozen=True, slots=True)
class LogPart:
    """Bytes of a job's log. `gap` counts bytes that were asked for and are no longer kept; `eof`: nothing follows."""

    data: bytes
    offset: int
    total: int
    gap: int
    eof: bool


class Stream(StrEnum):
    STDOUT = "stdout"
    STDERR = "stderr"


class Job(Protocol):
    """A command with an id and a life of its own."""

    @property
    def id(self) -> int: ...

    async def wait(self, *, timeout_ms: int | None = None) -> ExecResult:
        """Return the sealed result. Raises: DeadlinePassed (the wait, not the job), JobUnknown, SandboxLost."""

    async def read(self, stream: Stream = Stream.STDOUT, *, offset: int = 0, limit: int = DEFAULT_OUTPUT_LIMIT) -> LogPart:
        """Return what the log holds from `offset` on. Raises: JobUnknown, SandboxLost."""

    async def signal(self, number: int, *, tree: bool = False) -> int:
        """Signal the leader, or every process of the job; return how many. Raises: JobUnknown, SandboxLost."""

    async def cancel(self, *, grace_ms: int = 2_000) -> None:
        """End the whole tree: TERM, `grace_ms`, KILL; return when it is gone. Of a job that is over, nothing has to be ended.

        Raises:
            JobUnknown: there never was such a job.
            SandboxLost: the compute is gone, and the job with it.
        """


@dataclass(frozen=True, slots=True)
class OutputChunk:
    stream: Stream
    data: bytes


class ExecStream(Protocol):
    """A running command whose output is read as it comes: `async for chunk in stream`, then `await stream.result()`."""

    def __aiter__(self) -> AsyncIterator[OutputChunk]: ...

    async def result(self) -> ExecResult: ...

    async def cancel(self) -> None: ...


Stdin = bytes | AsyncIterator[bytes] | None
Command = str | Sequence[str | bytes]
"""A string runs under `/bin/sh -c`; a sequence is an argument vector."""


class ExecBackend(Protocol):
    """Runs commands in the workspace. Several may run at once."""

    async def run(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        merge_stderr: bool = False,
        deadline_ms: int | None = None,
        grace_ms: int = 2_000,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> ExecResult:
        """Run to the end of the leader and return its result; a non-zero code is a result, not an error.

        Without `stdin` the command reads from `/dev/null`. `deadline_ms` is exact; past it the whole tree gets TERM, after `grace_ms`
        KILL, and the result says `timeout`. Cancelling the awaiting task cancels the command and waits for its end.

        Raises:
            CommandRefused: it could not be started (unknown cwd, missing executable, no process left).
            SandboxLost: the sandbox went away; the next call gets fresh compute on the same files.
        """

    def stream(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Stdin = None,
        merge_stderr: bool = False,
        deadline_ms: int | None = None,
        grace_ms: int = 2_000,
    ) -> ExecStream:
        """Run and read all output as it comes, with back-pressure; starts at the first `async for` or `result()`."""

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        deadline_ms: int | None = None,
        grace_ms: int = 2_000,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> Job:
        """Start a background job and return at once. It lives until it ends, is cancelled, or the sandbox is released."""

    async def jobs(self) -> Sequence[JobInfo]:
        """Return the jobs that the sandbox knows, oldest first."""

    def job(self, job_id: int) -> Job:
        """Return the job with that id; whether it exists shows at the first call."""


class FileKind(StrEnum):
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    FIFO = "fifo"
    SOCKET = "socket"
    BLOCK = "block"
    CHAR = "char"


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file as `stat`, `list` (`path` is the name) and `walk` (`path` is relative to what was asked) give it."""

    path: str
    kind: FileKind
    mode: int
    """Permission bits."""
    size: int
    mtime_ns: int
    target: str | None = None
    version: bytes = b""
    """Opaque; equal as long as nobody wrote the file."""


@dataclass(frozen=True, slots=True)
class FileContent:
    data: bytes
    size: int
    """Of the whole file."""
    version: bytes


@dataclass(frozen=True, slots=True)
class FileLines:
    """Lines `first` to `last` of `total`, joined as they stand in the file."""

    data: bytes
    first: int
    last: int
    total: int
    size: int
    version: bytes


@dataclass(frozen=True, slots=True)
class DirectoryPage:
    names: Sequence[str]
    more: bool


@dataclass(frozen=True, slots=True)
class RealPath:
    path: str
    """Canonical and absolute inside the sandbox."""
    exists: bool
    inside: bool
    """At or below the workspace."""


class FileBackend(Protocol):
    """Works on the workspace. Every method raises `FileRefused` with its `kind`, or `SandboxLost`.

    What leads out of the workspace is refused with kind `outside`, unless `beyond=True`; then the path must be canonical (as
    `real_path` gives it) and no symlink is followed.
    """

    async def stat(self, path: str, *, follow: bool = True, beyond: bool = False) -> FileEntry: ...

    async def real_path(self, path: str) -> RealPath: ...

    async def list(self, path: str = ".", *, after: str | None = None, limit: int = 10_000, beyond: bool = False) -> DirectoryPage:
        """Return names in byte order, from behind `after` on, at most `limit` (1 to 100,000)."""

    async def entries(self, path: str = ".", *, after: str | None = None, limit: int = 10_000) -> Sequence[FileEntry]:
        """As `list`, with kind, mode, size and version of each."""

    async def walk(self, path: str = ".", *, limit: int = 100_000, exclude: Sequence[str] = ()) -> Sequence[FileEntry]:
        """Return everything below in one answer, depth first in byte order, links not followed; `too_many` past `limit`."""

    async def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, max_size: int | None = 67_108_864, beyond: bool = False
    ) -> FileContent:
        """Return bytes; `too_large` when the file is over `max_size`."""

    async def read_lines(
        self, path: str, *, first: int = 1, last: int | None = None, limit: int = 262_144, beyond: bool = False
    ) -> FileLines:
        """Return whole lines of a file of any size; `bad_range` beyond its end, `too_large` when they are over `limit` bytes."""

    def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        """Read a file of any size piece by piece, with back-pressure."""

    async def write(
        self,
        path: str,
        data: bytes | AsyncIterator[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        expect: bytes | None = None,
        create: bool = False,
        beyond: bool = False,
    ) -> FileEntry:
        """Replace the file in one step; `changed` unless it still has version `expect`, `exists` if `create` and it is there."""

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> bool: ...

    async def remove(self, path: str, *, recursive: bool = False) -> int: ...

    async def rename(self, source: str, target: str, *, replace: bool = True) -> None: ...


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
