"""What a holder of a sandbox works with: the thread's present compute, made anew behind it when it was lost.

A loss is told once to each lease that was there, by the call under way or by the next one; the call after it works on fresh
compute with the same files. Jobs belong to the compute they were started on and are gone with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, TypeVar

from b4run.errors import JobUnknown, SandboxLost, SandboxUnavailable
from b4run.sandbox.contract import (
    DEFAULT_OUTPUT_LIMIT,
    WORKSPACE_ROOT,
    Command,
    DirectoryPage,
    ExecResult,
    ExecStream,
    FileContent,
    FileEntry,
    FileLines,
    Job,
    JobInfo,
    LogPart,
    OutputChunk,
    RealPath,
    SandboxHandle,
    Stdin,
    Stream,
)
from b4run.sandbox.session import Session

T = TypeVar("T")


class Lease:
    """A `SandboxHandle` for as long as its `async with` block lasts; calls after it are refused."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._losses = session.losses_told
        self._ended = False
        self.exec = LeasedExec(self)
        self.files = LeasedFiles(self)

    @property
    def thread_id(self) -> str:
        return self._session.thread_id

    @property
    def workspace_root(self) -> str:
        handle = self._session.handle
        return WORKSPACE_ROOT if handle is None else handle.workspace_root

    @property
    def instance(self) -> str:
        return self._session.instance

    @property
    def losses(self) -> int:
        """How many losses of the thread's compute this lease's holder knows of."""
        return self._losses

    @property
    def lost(self) -> bool:
        """True while a loss is known that no call has told yet; the next call raises `SandboxLost`."""
        handle = self._session.handle
        return self._session.losses > self._losses or (handle is not None and handle.lost)

    async def idle(self) -> bool:
        handle = self._session.handle
        return handle is None or await handle.idle()

    def end(self) -> None:
        self._ended = True

    async def compute(self) -> SandboxHandle:
        """Return what a call works on.

        Raises:
            SandboxLost: compute was lost and the holder was not told yet.
            SandboxUnavailable: the lease has ended, or there can be no new compute.
        """
        if self._ended:
            raise SandboxUnavailable(thread_id=self.thread_id, reason="its lease has ended")
        session = self._session
        session.refuse_if_ending()
        if session.handle is not None and session.handle.lost:
            session.note_loss(session.handle)
        if session.losses > self._losses:
            self._told()
            raise SandboxLost(thread_id=self.thread_id, reason="its compute ended between two calls")
        return await session.compute()

    async def call(self, action: Callable[[SandboxHandle], Awaitable[T]]) -> T:
        """Do one thing on live compute; what is lost meanwhile counts as told."""
        session = self._session
        session.hold()
        try:
            handle = await self.compute()
            try:
                return await action(handle)
            except SandboxLost:
                self.lost_under(handle)
                raise
        finally:
            session.leave()

    def lost_under(self, handle: SandboxHandle) -> None:
        """Note that a call on `handle` has told its caller of the loss."""
        self._session.note_loss(handle)
        self._told()

    def _told(self) -> None:
        self._losses = self._session.losses
        self._session.losses_told = self._losses


class LeasedExec:
    """`ExecBackend` on whatever compute the lease has."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

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
        return await self._lease.call(
            lambda handle: handle.exec.run(
                command,
                cwd=cwd,
                env=env,
                stdin=stdin,
                merge_stderr=merge_stderr,
                deadline_ms=deadline_ms,
                grace_ms=grace_ms,
                output_limit=output_limit,
            )
        )

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
        return LeasedStream(
            self._lease,
            lambda handle: handle.exec.stream(
                command, cwd=cwd, env=env, stdin=stdin, merge_stderr=merge_stderr, deadline_ms=deadline_ms, grace_ms=grace_ms
            ),
        )

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
        job = await self._lease.call(
            lambda handle: handle.exec.start(
                command, cwd=cwd, env=env, deadline_ms=deadline_ms, grace_ms=grace_ms, output_limit=output_limit
            )
        )
        return LeasedJob(self._lease, job.id)

    async def jobs(self) -> Sequence[JobInfo]:
        return await self._lease.call(lambda handle: handle.exec.jobs())

    def job(self, job_id: int) -> Job:
        return LeasedJob(self._lease, job_id)


class LeasedJob:
    """A job of the compute that the lease had when this was made."""

    def __init__(self, lease: Lease, job_id: int) -> None:
        self._lease = lease
        self._losses = lease.losses
        self.id = job_id

    async def wait(self, *, timeout_ms: int | None = None) -> ExecResult:
        return await self._call(lambda job: job.wait(timeout_ms=timeout_ms))

    async def read(self, stream: Stream = Stream.STDOUT, *, offset: int = 0, limit: int = DEFAULT_OUTPUT_LIMIT) -> LogPart:
        return await self._call(lambda job: job.read(stream, offset=offset, limit=limit))

    async def signal(self, number: int, *, tree: bool = False) -> int:
        return await self._call(lambda job: job.signal(number, tree=tree))

    async def cancel(self, *, grace_ms: int = 2_000) -> None:
        await self._call(lambda job: job.cancel(grace_ms=grace_ms))

    async def _call(self, action: Callable[[Job], Awaitable[T]]) -> T:
        if self._lease.losses != self._losses:
            raise JobUnknown(job=self.id)
        return await self._lease.call(lambda handle: action(handle.exec.job(self.id)))


class LeasedStream:
    """A stream that starts on the lease's compute at its first use."""

    def __init__(self, lease: Lease, start: Callable[[SandboxHandle], ExecStream]) -> None:
        self._lease = lease
        self._start = start
        self._begun: tuple[SandboxHandle, ExecStream] | None = None

    async def __aiter__(self) -> AsyncIterator[OutputChunk]:
        handle, stream = await self._begin()
        try:
            async for chunk in stream:
                yield chunk
        except SandboxLost:
            self._lease.lost_under(handle)
            raise

    async def result(self) -> ExecResult:
        handle, stream = await self._begin()
        try:
            return await stream.result()
        except SandboxLost:
            self._lease.lost_under(handle)
            raise

    async def cancel(self) -> None:
        if self._begun is not None:
            await self._begun[1].cancel()

    async def _begin(self) -> tuple[SandboxHandle, ExecStream]:
        if self._begun is None:
            handle = await self._lease.compute()
            self._begun = (handle, self._start(handle))
        return self._begun


class LeasedFiles:
    """`FileBackend` on whatever compute the lease has."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease

    async def stat(self, path: str, *, follow: bool = True, beyond: bool = False) -> FileEntry:
        return await self._lease.call(lambda handle: handle.files.stat(path, follow=follow, beyond=beyond))

    async def real_path(self, path: str) -> RealPath:
        return await self._lease.call(lambda handle: handle.files.real_path(path))

    async def list(self, path: str = ".", *, after: str | None = None, limit: int = 10_000, beyond: bool = False) -> DirectoryPage:
        return await self._lease.call(lambda handle: handle.files.list(path, after=after, limit=limit, beyond=beyond))

    async def entries(self, path: str = ".", *, after: str | None = None, limit: int = 10_000) -> Sequence[FileEntry]:
        return await self._lease.call(lambda handle: handle.files.entries(path, after=after, limit=limit))

    async def walk(self, path: str = ".", *, limit: int = 100_000, exclude: Sequence[str] = ()) -> Sequence[FileEntry]:
        return await self._lease.call(lambda handle: handle.files.walk(path, limit=limit, exclude=exclude))

    async def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, max_size: int | None = 67_108_864, beyond: bool = False
    ) -> FileContent:
        return await self._lease.call(lambda handle: handle.files.read(path, offset=offset, limit=limit, max_size=max_size, beyond=beyond))

    async def read_lines(
        self, path: str, *, first: int = 1, last: int | None = None, limit: int = 262_144, beyond: bool = False
    ) -> FileLines:
        return await self._lease.call(lambda handle: handle.files.read_lines(path, first=first, last=last, limit=limit, beyond=beyond))

    async def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        handle = await self._lease.compute()
        pieces: Any = handle.files.read_stream(path, offset=offset)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        except SandboxLost:
            self._lease.lost_under(handle)
            raise

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
        return await self._lease.call(
            lambda handle: handle.files.write(path, data, mode=mode, parents=parents, expect=expect, create=create, beyond=beyond)
        )

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> bool:
        return await self._lease.call(lambda handle: handle.files.mkdir(path, parents=parents, mode=mode))

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        return await self._lease.call(lambda handle: handle.files.remove(path, recursive=recursive))

    async def rename(self, source: str, target: str, *, replace: bool = True) -> None:
        await self._lease.call(lambda handle: handle.files.rename(source, target, replace=replace))
