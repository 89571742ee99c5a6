"""Commands over the guest's channel: plain runs, output as it comes, background jobs."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeVar

from b4run.errors import CommandRefused, DeadlinePassed, JobUnknown
from b4run.sandbox.contract import (
    DEFAULT_OUTPUT_LIMIT,
    Cause,
    Command,
    ExecResult,
    ExecStream,
    Job,
    JobInfo,
    LogPart,
    Output,
    Stdin,
    Stream,
)
from b4run.sandbox.guest.calls import Collector, Patience, Plan
from b4run.sandbox.guest.client import GuestClient, RequestTooLarge
from b4run.sandbox.guest.commands import LOG_LIMIT, command_refused, command_too_large, exec_request, milliseconds
from b4run.sandbox.guest.frames import Lane, ProtocolError
from b4run.sandbox.guest.messages import GuestRefusal, Kept, Message, boolean, integer, items, read_job, read_kept, read_result
from b4run.sandbox.guest.output import GuestStream, Judge

T = TypeVar("T")
OomCheck = Callable[[], Awaitable[bool]]
"""Tells whether the memory limit has killed something since it was last asked."""

_KILLED: Final = 137
"""The code of a death by SIGKILL, the leader's own or, through a shell, that of its child."""
_REMEMBERED: Final = 64
"""Jobs known to have died by the memory limit; the guest keeps no more finished ones."""
_LAST_SIGNAL: Final = 64
_LANES: Final = {Stream.STDOUT: Lane.OUTPUT, Stream.STDERR: Lane.ERRORS}
_QUICK: Final = Patience(quiet_s=60.0)


class GuestExec:
    """`ExecBackend` over a `GuestClient`. With `oom_check`, a death by SIGKILL that it confirms is reported as cause `oom`."""

    def __init__(self, client: GuestClient, oom_check: OomCheck | None = None) -> None:
        self._client = client
        self._oom_check = oom_check
        self._oom_jobs: deque[int] = deque(maxlen=_REMEMBERED)

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
        message = exec_request(command, cwd, env, deadline_ms, grace_ms, output_limit, stdin=stdin is not None, merge=merge_stderr)
        kept = Collector(output_limit, 0 if merge_stderr else output_limit)
        plan = Plan("the command", message, lambda answer: _collected(answer, kept), kept, patience=self._patience(deadline_ms, grace_ms))
        return await self._judged(await self._asked(self._client.request(plan, stdin), command, cwd))

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
        message = exec_request(command, cwd, env, deadline_ms, grace_ms, None, stdin=stdin is not None, merge=merge_stderr) | {
            "follow": True
        }
        return GuestStream(self._client, message, command, stdin, self._patience(deadline_ms, grace_ms), self._judged)

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
        message = exec_request(command, cwd, env, deadline_ms, grace_ms, output_limit) | {"background": True}
        plan = Plan("the start of a job", message, lambda answer: integer(answer, "job"), patience=_QUICK)
        call = await self._asked(self._client.open(plan), command, cwd)
        try:
            return self.job(await self._asked(self._client.finish(call), command, cwd))
        except asyncio.CancelledError:
            if call.end.done() and not call.end.cancelled() and call.end.exception() is None:
                await self.job(call.end.result()).cancel()
            raise

    async def jobs(self) -> Sequence[JobInfo]:
        plan = Plan(
            "the list of jobs", {"op": "job.list"}, lambda answer: [read_job(job) for job in items(answer, "jobs")], patience=_QUICK
        )
        try:
            return await self._client.request(plan)
        except GuestRefusal as refusal:
            raise CommandRefused(reason=f"the guest answered the list of jobs with {refusal.code!r}") from None

    def job(self, job_id: int) -> Job:
        return GuestJob(self._client, job_id, self._judged)

    def _patience(self, deadline_ms: int | None, grace_ms: int) -> Patience:
        if deadline_ms is None:
            return Patience(grace_ms=grace_ms)
        return Patience((deadline_ms + grace_ms) / 1000 + self._client.timing.margin, grace_ms=grace_ms)

    @staticmethod
    async def _asked(asking: Awaitable[T], command: Command, cwd: str | None) -> T:
        try:
            return await asking
        except GuestRefusal as refusal:
            raise command_refused(refusal, command, cwd) from None
        except RequestTooLarge:
            raise command_too_large() from None

    async def _judged(self, result: ExecResult) -> ExecResult:
        if result.exit_code != _KILLED or result.cause not in (Cause.SIGNAL, Cause.EXIT) or self._oom_check is None:
            return result
        if result.job not in self._oom_jobs:
            if not await self._oom_check():
                return result
            self._oom_jobs.append(result.job)
        return replace(result, cause=Cause.OOM)


class GuestJob:
    """`Job` over a `GuestClient`."""

    def __init__(self, client: GuestClient, job_id: int, judge: Judge) -> None:
        self._client = client
        self._id = job_id
        self._judge = judge

    @property
    def id(self) -> int:
        return self._id

    async def wait(self, *, timeout_ms: int | None = None) -> ExecResult:
        message, patience = {"op": "job.wait", "job": self._id}, Patience()
        if timeout_ms is not None:
            message["timeout_ms"] = milliseconds("timeout_ms", timeout_ms)
            patience = Patience(timeout_ms / 1000 + self._client.timing.margin)
        plan = Plan("the wait for a job", message, _sealed, patience=patience)
        result, out, err = await self._asked(plan, timeout_ms)
        return await self._judge(replace(result, out=await self._kept(Stream.STDOUT, out), err=await self._kept(Stream.STDERR, err)))

    async def read(self, stream: Stream = Stream.STDOUT, *, offset: int = 0, limit: int = DEFAULT_OUTPUT_LIMIT) -> LogPart:
        if offset < 0 or not 1 <= limit <= LOG_LIMIT:
            raise ValueError(f"offset is at least 0, limit 1 to {LOG_LIMIT} bytes")
        lane, kept = _LANES[stream], Collector(limit, limit)
        message = {"op": "job.read", "job": self._id, "channel": int(lane), "offset": offset, "limit": limit}
        return await self._asked(
            Plan("the reading of a log", message, lambda answer: _log_part(answer, kept.kept(lane)), kept, patience=_QUICK)
        )

    async def signal(self, number: int, *, tree: bool = False) -> int:
        if not 1 <= number <= _LAST_SIGNAL:
            raise ValueError(f"a signal is 1 to {_LAST_SIGNAL}, not {number}")
        message = {"op": "job.signal", "job": self._id, "signal": number, "tree": tree}
        return await self._asked(Plan("a signal", message, lambda answer: integer(answer, "sent"), patience=_QUICK))

    async def cancel(self, *, grace_ms: int = 2_000) -> None:
        message = {"op": "job.cancel", "job": self._id, "grace_ms": milliseconds("grace_ms", grace_ms)}
        patience = Patience(quiet_s=grace_ms / 1000 + self._client.timing.margin)
        await self._asked(Plan("the end of a job", message, lambda _: None, patience=patience))

    async def _asked(self, plan: Plan[T], timeout_ms: int | None = None) -> T:
        try:
            return await self._client.request(plan)
        except GuestRefusal as refusal:
            if refusal.code == "no_job":
                raise JobUnknown(job=self._id) from None
            if refusal.code == "timed_out" and timeout_ms is not None:
                raise DeadlinePassed(operation=plan.operation, seconds=timeout_ms / 1000) from None
            raise CommandRefused(reason=f"job {self._id}: the guest answered {refusal.code!r}") from None

    async def _kept(self, stream: Stream, kept: Kept) -> Output:
        """Fetch what the log still has of an output: in one piece when nothing is missing, else its beginning and its end."""
        if kept.head + kept.tail == kept.total:
            data = (await self.read(stream, limit=kept.total)).data if kept.total else b""
            return Output(data[: kept.head], data[kept.head :], kept.total)
        head = (await self.read(stream, limit=kept.head)).data if kept.head else b""
        tail = await self.read(stream, offset=kept.total - kept.tail, limit=kept.tail) if kept.tail else None
        return Output(head, tail.data if tail else b"", kept.total)


def _collected(answer: Message, kept: Collector) -> ExecResult:
    out, err = _output(read_kept(answer, "stdout"), kept.kept(Lane.OUTPUT)), _output(read_kept(answer, "stderr"), kept.kept(Lane.ERRORS))
    return read_result(answer, out, err)


def _output(counts: Kept, data: bytearray) -> Output:
    if counts.head + counts.tail != len(data):
        raise ProtocolError("the kept output is not of the length announced")
    with memoryview(data) as view:
        return Output(bytes(view[: counts.head]), bytes(view[counts.head :]), counts.total)


def _sealed(answer: Message) -> tuple[ExecResult, Kept, Kept]:
    out, err = read_kept(answer, "stdout"), read_kept(answer, "stderr")
    if max(out.head + out.tail, err.head + err.tail) > LOG_LIMIT:
        raise ProtocolError("a log larger than a log can be")
    return read_result(answer, Output(), Output()), out, err


def _log_part(answer: Message, data: bytearray) -> LogPart:
    if integer(answer, "length") != len(data):
        raise ProtocolError("a part of a log that is not of the length announced")
    return LogPart(
        data=bytes(data),
        offset=integer(answer, "offset"),
        total=integer(answer, "total"),
        gap=integer(answer, "gap"),
        eof=boolean(answer, "eof"),
    )
