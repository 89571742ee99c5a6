"""`ExecBackend` of the fake sandbox: every command is answered by a function of the test's."""

from __future__ import annotations

import asyncio
import inspect
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from b4run.errors import CommandRefused, DeadlinePassed, FileRefused, JobUnknown, SandboxLost
from b4run.sandbox.contract import (
    DEFAULT_OUTPUT_LIMIT,
    Cause,
    Command,
    ExecResult,
    FileKind,
    JobInfo,
    LogPart,
    Output,
    OutputChunk,
    Stdin,
    Stream,
)
from b4run.sandbox.testing.memory import MemoryTree

TIMEOUT_CODE = 124
_SIGNALLED = 128


@dataclass(frozen=True, slots=True)
class FakeCommand:
    """What a test's function is asked: the command as it was given, and the file system that it may change."""

    command: Command
    cwd: str
    env: Mapping[str, str]
    stdin: bytes
    files: MemoryTree

    @property
    def argv(self) -> list[str]:
        """The argument vector; a string is `/bin/sh -c` and itself."""
        if isinstance(self.command, str):
            return ["/bin/sh", "-c", self.command]
        return [part if isinstance(part, str) else part.decode(errors="surrogateescape") for part in self.command]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command prints and how it ends; `signal` instead of `exit_code` for a death by it."""

    stdout: bytes | str = b""
    stderr: bytes | str = b""
    exit_code: int = 0
    signal: int | None = None


AnswerCommand = Callable[[FakeCommand], Answer | str | Awaitable[Answer | str]]


def answer_nothing(_: FakeCommand) -> Answer:
    return Answer()


class FakeCompute(Protocol):
    """What the backend needs of its handle."""

    gone: asyncio.Future[None]

    def check(self) -> None: ...

    def loss(self) -> SandboxLost: ...


@dataclass(slots=True, eq=False)
class FakeRun:
    """One command under way or ended."""

    number: int
    command: Command
    task: asyncio.Task[ExecResult]
    started_ms: float
    limit: int
    ended_by: tuple[Cause, int] | None = None
    streams: dict[Stream, bytes] = field(default_factory=dict)

    async def end(self, cause: Cause, signal: int) -> None:
        if not self.task.done():
            self.ended_by = (cause, signal)
            self.task.cancel()
            await asyncio.wait({self.task})

    def result(self) -> ExecResult:
        """Return the result once the task is done; raise what the answer raised."""
        if self.ended_by is not None and self.task.cancelled():
            cause, signal = self.ended_by
            return ExecResult(_SIGNALLED + signal, cause, signal, job=self.number)
        return self.task.result()


class FakeExec:
    """Runs nothing; keeps the rules of commands, jobs and deadlines."""

    def __init__(self, compute: FakeCompute, tree: MemoryTree, env: Mapping[str, str], answer: AnswerCommand) -> None:
        self._compute = compute
        self._tree = tree
        self._env = dict(env)
        self._answer = answer
        self._runs: dict[int, FakeRun] = {}
        self._numbers = itertools.count(1)
        self._started = asyncio.get_running_loop().time()

    @property
    def busy(self) -> bool:
        return any(not run.task.done() for run in self._runs.values())

    def end(self) -> None:
        for run in self._runs.values():
            run.task.cancel()

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
        run = await self._begin(command, cwd, env, stdin, deadline_ms, output_limit, merge_stderr)
        try:
            return await self.outcome(run)
        finally:
            await run.end(Cause.CANCELLED, 15)
            del self._runs[run.number]

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
    ) -> FakeStream:
        return FakeStream(self, lambda: self._begin(command, cwd, env, stdin, deadline_ms, DEFAULT_OUTPUT_LIMIT, merge_stderr))

    async def start(
        self,
        command: Command,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        deadline_ms: int | None = None,
        grace_ms: int = 2_000,
        output_limit: int = DEFAULT_OUTPUT_LIMIT,
    ) -> FakeJob:
        run = await self._begin(command, cwd, env, None, deadline_ms, output_limit, merge=False)
        return FakeJob(self, run.number)

    async def jobs(self) -> Sequence[JobInfo]:
        self._compute.check()
        return [_info(run) for run in self._runs.values()]

    def job(self, job_id: int) -> FakeJob:
        return FakeJob(self, job_id)

    def find(self, number: int) -> FakeRun:
        self._compute.check()
        if number not in self._runs:
            raise JobUnknown(job=number)
        return self._runs[number]

    async def _begin(
        self,
        command: Command,
        cwd: str | None,
        env: Mapping[str, str] | None,
        stdin: Stdin,
        deadline_ms: int | None,
        limit: int,
        merge: bool,
    ) -> FakeRun:
        self._compute.check()
        self._check_cwd(cwd)
        given = stdin if isinstance(stdin, bytes) else b"".join([piece async for piece in stdin]) if stdin is not None else b""
        request = FakeCommand(command, cwd or ".", self._env | dict(env or {}), given, self._tree)
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        began = (loop.time() - self._started) * 1000
        coroutine = self._run(number, request, deadline_ms, merge)
        run = FakeRun(number, command, loop.create_task(coroutine), began, limit)
        self._runs[number] = run
        return run

    def _check_cwd(self, cwd: str | None) -> None:
        try:
            node = self._tree.find(cwd or ".")
        except FileRefused as error:
            raise CommandRefused(reason=f"the folder {cwd!r} cannot be entered ({error.kind})", stage="cwd") from None
        if node.kind is not FileKind.DIRECTORY:
            raise CommandRefused(reason=f"{cwd!r} is not a folder", stage="cwd")

    async def _run(self, number: int, request: FakeCommand, deadline_ms: int | None, merge: bool) -> ExecResult:
        began = asyncio.get_running_loop().time()
        cause, signal = Cause.EXIT, None
        answer = Answer()
        try:
            async with asyncio.timeout(None if deadline_ms is None else deadline_ms / 1000):
                told = self._answer(request)
                answer = _as_answer(await told if inspect.isawaitable(told) else told)
                signal = answer.signal
                cause = Cause.EXIT if signal is None else Cause.SIGNAL
        except TimeoutError:
            cause = Cause.TIMEOUT
        run = self._runs[number]
        out, err = _octets(answer.stdout), _octets(answer.stderr)
        run.streams = {Stream.STDOUT: out + err if merge else out, Stream.STDERR: b"" if merge else err}
        code = TIMEOUT_CODE if cause is Cause.TIMEOUT else answer.exit_code if signal is None else _SIGNALLED + signal
        kept = [_kept(run.streams[stream], run.limit) for stream in Stream]
        duration = (asyncio.get_running_loop().time() - began) * 1000
        return ExecResult(code, cause, signal, kept[0], kept[1], duration, job=number)

    async def outcome(self, run: FakeRun, timeout: float | None = None) -> ExecResult:
        """Wait for the result or for the end of compute, whichever comes first."""
        waited: set[asyncio.Future[Any]] = {run.task, self._compute.gone}
        await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED, timeout=timeout)
        if self._compute.gone.done():
            raise self._compute.loss()
        if not run.task.done():
            raise DeadlinePassed(operation=f"job {run.number}", seconds=timeout or 0)
        return run.result()


class FakeJob:
    """A `Job` of the fake."""

    def __init__(self, backend: FakeExec, number: int) -> None:
        self._backend = backend
        self.id = number

    async def wait(self, *, timeout_ms: int | None = None) -> ExecResult:
        return await self._backend.outcome(self._backend.find(self.id), None if timeout_ms is None else timeout_ms / 1000)

    async def read(self, stream: Stream = Stream.STDOUT, *, offset: int = 0, limit: int = DEFAULT_OUTPUT_LIMIT) -> LogPart:
        run = self._backend.find(self.id)
        data = run.streams.get(stream, b"")
        part = data[offset : offset + limit]
        return LogPart(part, min(offset, len(data)), len(data), 0, run.task.done() and offset + len(part) >= len(data))

    async def signal(self, number: int, *, tree: bool = False) -> int:
        run = self._backend.find(self.id)
        if run.task.done():
            return 0
        await run.end(Cause.SIGNAL, number)
        return 1

    async def cancel(self, *, grace_ms: int = 2_000) -> None:
        await self._backend.find(self.id).end(Cause.CANCELLED, 15)


class FakeStream:
    """An `ExecStream` that gives the whole answer when the command has ended."""

    def __init__(self, backend: FakeExec, begin: Callable[[], Awaitable[FakeRun]]) -> None:
        self._backend = backend
        self._begin = begin
        self._run: FakeRun | None = None

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        run = await self._begun()
        await self._backend.outcome(run)
        for stream, data in run.streams.items():
            if data:
                yield OutputChunk(stream, data)

    async def result(self) -> ExecResult:
        return await self._backend.outcome(await self._begun())

    async def cancel(self) -> None:
        await (await self._begun()).end(Cause.CANCELLED, 15)

    async def _begun(self) -> FakeRun:
        if self._run is None:
            self._run = await self._begin()
        return self._run


def _info(run: FakeRun) -> JobInfo:
    running = not run.task.done()
    result = None if running else run.result()
    text = run.command if isinstance(run.command, str) else " ".join(map(str, run.command))
    cause, code = (result.cause, result.exit_code) if result else (None, None)
    return JobInfo(run.number, run.number, running, running, run.started_ms, cause, code, text)


def _as_answer(told: Answer | str) -> Answer:
    return Answer(stdout=told) if isinstance(told, str) else told


def _octets(text: bytes | str) -> bytes:
    return text if isinstance(text, bytes) else text.encode(errors="surrogateescape")


def _kept(data: bytes, limit: int) -> Output:
    """Keep half of `limit` from the beginning and the rest from the end."""
    if len(data) <= limit:
        return Output(head=data, total=len(data))
    head = limit // 2
    return Output(data[:head], data[len(data) - (limit - head) :], len(data))
