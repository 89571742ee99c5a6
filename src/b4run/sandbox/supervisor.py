"""One sandbox per thread: leases for those who use it, an end to compute that is quiet, recovery when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Self

from b4run.errors import DeadlinePassed, SandboxUnavailable
from b4run.sandbox.contract import SandboxHandle, SandboxProvider
from b4run.sandbox.lease import Lease
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.session import Clock, Limits, LoopClock, Session, State

logger = logging.getLogger("b4run.sandbox")

PolicyOf = SandboxPolicy | Callable[[str], SandboxPolicy]
"""One policy for all threads, or a function from the thread's id to its policy."""


@dataclass(frozen=True, slots=True)
class ThreadStatus:
    """One thread that the supervisor knows. `quiet_ms`: how long nobody has held it."""

    thread_id: str
    state: State
    instance: str
    leases: int
    quiet_ms: float


class SandboxSupervisor:
    """Owns a provider and everything that is made with it; all work goes through `lease`.

    `idle_timeout_ms` (None: never) drops compute that nobody has held and in which nothing has run for that long; files stay.
    A lease, a running command and a live background job count as use.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        policy: PolicyOf | None = None,
        *,
        idle_timeout_ms: int | None = 600_000,
        limits: Limits | None = None,
        clock: Clock | None = None,
        close_provider: bool = True,
    ) -> None:
        self._provider = provider
        self._policy = policy if callable(policy) else _constant(policy or SandboxPolicy())
        self._limits = replace(limits or Limits(), idle=idle_timeout_ms)
        self._clock = clock or LoopClock()
        self._close_provider = close_provider
        self._sessions: dict[str, Session] = {}
        self._destroying: dict[str, asyncio.Task[None]] = {}
        self._closing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    @property
    def provider(self) -> SandboxProvider:
        return self._provider

    def status(self) -> Sequence[ThreadStatus]:
        """Return every thread with compute, a lease or an untold loss, by id."""
        return [
            ThreadStatus(session.thread_id, session.state, session.instance, session.leases, session.quiet_ms)
            for _, session in sorted(self._sessions.items())
            if not session.disposable
        ]

    @asynccontextmanager
    async def lease(self, thread_id: str) -> AsyncIterator[SandboxHandle]:
        """Hold the thread's sandbox for the length of the block; several leases may share it.

        Compute is there when the block begins. After a loss, one call of the block raises `SandboxLost`; the next one works on
        fresh compute with the same files.

        Raises:
            SandboxUnavailable: it cannot be made, or the supervisor is closed.
        """
        session = await self._hold(thread_id)
        session.leases += 1
        lease = Lease(session)
        try:
            await session.compute()
            yield lease
        finally:
            lease.end()
            session.leases -= 1
            session.leave()
            self._forget(session)

    async def release(self, thread_id: str) -> None:
        """Drop the thread's compute, keep its files; its background jobs end.

        Raises:
            SandboxHeld: somebody holds a lease.
        """
        await self._destroyed(thread_id)
        session = self._session(thread_id)
        try:
            await session.release()
        finally:
            self._forget(session)

    async def destroy(self, thread_id: str, *, grace_ms: int = 5_000) -> None:
        """Remove the thread's compute and files; return when both are gone.

        Calls under way may finish within `grace_ms`, new ones on old leases are refused. Whoever asks while it goes on waits for
        the same end; a lease asked for meanwhile begins empty afterwards. Once begun it goes on even if the caller is cancelled.
        """
        task = self._destroying.get(thread_id)
        if task is None:
            task = asyncio.create_task(self._destroy(thread_id, grace_ms))
            self._destroying[thread_id] = task
        await asyncio.shield(task)

    async def abandon(self, thread_id: str) -> None:
        """Drop the thread's compute under whoever holds it; files stay. For work that does not heed its cancellation."""
        await self._destroyed(thread_id)
        session = self._sessions.pop(thread_id, None)
        if session is not None:
            await session.end("its holder does not end", "release", 0)

    async def aclose(self, *, deadline_ms: int = 10_000) -> None:
        """Take no new work, let calls finish within `deadline_ms`, release every thread and close the provider; files stay.

        Raises:
            ExceptionGroup: what could not be released; everything else has been.
        """
        if self._closing is None:
            self._closing = asyncio.create_task(self._close(deadline_ms))
        await asyncio.shield(self._closing)

    def _session(self, thread_id: str) -> Session:
        if thread_id not in self._sessions:
            self._sessions[thread_id] = Session(self._provider, thread_id, self._policy, self._limits, self._clock, self._forget)
        return self._sessions[thread_id]

    async def _hold(self, thread_id: str) -> Session:
        await self._destroyed(thread_id)
        if self._closing is not None:
            raise SandboxUnavailable(thread_id=thread_id, reason="the supervisor is closed")
        session = self._session(thread_id)
        session.hold()
        return session

    async def _destroyed(self, thread_id: str) -> None:
        while thread_id in self._destroying:
            await asyncio.wait({self._destroying[thread_id]})

    def _forget(self, session: Session) -> None:
        if session.disposable and self._sessions.get(session.thread_id) is session:
            del self._sessions[session.thread_id]

    async def _destroy(self, thread_id: str, grace_ms: int) -> None:
        session = self._session(thread_id)
        try:
            await session.end("it is being destroyed", "destroy", grace_ms)
        except Exception:
            logger.exception("destroy failed", extra={"event": "sandbox.destroy_failed", "thread_id": thread_id})
            raise
        finally:
            self._sessions.pop(thread_id, None)
            self._destroying.pop(thread_id, None)

    async def _close(self, deadline_ms: int) -> None:
        ends: list[Awaitable[None]] = list(self._destroying.values())
        ends += [
            session.end("the supervisor is closed", "release", deadline_ms)
            for thread_id, session in self._sessions.items()
            if thread_id not in self._destroying
        ]
        results = await asyncio.gather(*ends, return_exceptions=True)
        if self._close_provider:
            results += await asyncio.gather(self._aclose_provider(), return_exceptions=True)
        self._sessions.clear()
        failures = [result for result in results if isinstance(result, Exception)]
        if failures:
            raise ExceptionGroup("some sandboxes could not be released", failures)

    async def _aclose_provider(self) -> None:
        try:
            async with asyncio.timeout(self._limits.stop / 1000):
                await self._provider.aclose()
        except TimeoutError as error:
            raise DeadlinePassed(operation=f"closing provider {self._provider.name!r}", seconds=self._limits.stop / 1000) from error


def _constant(policy: SandboxPolicy) -> Callable[[str], SandboxPolicy]:
    return lambda _: policy


@asynccontextmanager
async def open_sandbox(
    provider: SandboxProvider, *, thread_id: str, policy: PolicyOf | None = None, destroy: bool = False
) -> AsyncIterator[SandboxHandle]:
    """One thread's sandbox for the length of the block: the front door for a program without a server or an agent.

    Compute is released at the end and files are kept, unless `destroy`. The provider stays open: it may serve other threads.

    Raises:
        SandboxUnavailable: it cannot be made.
    """
    supervisor = SandboxSupervisor(provider, policy, idle_timeout_ms=None, close_provider=False)
    try:
        async with supervisor.lease(thread_id) as sandbox:
            yield sandbox
    finally:
        try:
            if destroy:
                await supervisor.destroy(thread_id)
        finally:
            await supervisor.aclose()
