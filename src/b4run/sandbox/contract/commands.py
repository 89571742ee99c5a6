"""Running commands: results, jobs, streams, and the backend that a handle gives out."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

DEFAULT_OUTPUT_LIMIT = 1_048_576
"""Bytes of each output stream that a result keeps: half of it the beginning, half the end."""

_CUT_CHARACTER = re.compile(rb"\A[\x80-\xbf]{1,3}")


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
