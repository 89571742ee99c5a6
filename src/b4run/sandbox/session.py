"""The compute of one thread: made once for all who ask, kept while it is used, dropped when it has been quiet for long.

Whatever changes the compute happens under one lock, so that a start never crosses a stop. Whether someone uses it is a
count of holds: a lease is one, so is each call under way.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from b4run.errors import B4Error, DeadlinePassed, SandboxHeld, SandboxUnavailable
from b4run.sandbox.contract import SandboxHandle, SandboxProvider
from b4run.sandbox.policy import SandboxPolicy

logger = logging.getLogger("b4run.sandbox")

_POLLS_PER_TIMEOUT = 4
"""How often a sandbox with background work is looked at within one idle timeout."""


class Clock(Protocol):
    """Where time comes from; tests bring their own."""

    def now(self) -> float:
        """Return seconds that never go back."""

    async def sleep(self, seconds: float) -> None: ...


class LoopClock:
    """The running event loop's time."""

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True, slots=True)
class Limits:
    """How long each step may take, in milliseconds; `idle` None: compute is never dropped for being quiet."""

    idle: int | None = 600_000
    acquire: int = 120_000
    stop: int = 60_000
    """One release or destroy."""
    ask: int = 5_000
    """One question whether the sandbox is idle."""


class State(StrEnum):
    STARTING = "starting"
    IN_USE = "in_use"
    IDLE = "idle"
    STOPPED = "stopped"
    ENDING = "ending"


def _cancelled_itself() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Session:
    """One thread's compute and everybody's claims on it. Made and dropped by the supervisor alone."""

    def __init__(
        self,
        provider: SandboxProvider,
        thread_id: str,
        policy: Callable[[str], SandboxPolicy],
        limits: Limits,
        clock: Clock,
        forget: Callable[[Session], None],
    ) -> None:
        self.thread_id = thread_id
        self.handle: SandboxHandle | None = None
        self.instance = ""
        self.losses = 0
        """How often compute was lost; a lease compares it with what its holder was told."""
        self.losses_told = 0
        self.leases = 0
        self._provider = provider
        self._policy = policy
        self._limits = limits
        self._clock = clock
        self._forget = forget
        self._holds = 0
        self._unheld = asyncio.Event()
        self._unheld.set()
        self._gate = asyncio.Lock()
        self._making: asyncio.Task[SandboxHandle] | None = None
        self._waiting = 0
        self._watch: asyncio.Task[None] | None = None
        self._quiet_since = clock.now()
        self._ending = ""

    @property
    def disposable(self) -> bool:
        """Nothing would be forgotten with this object."""
        return not self._holds and self.handle is None and not self._gate.locked() and self.losses == self.losses_told

    @property
    def state(self) -> State:
        if self._ending:
            return State.ENDING
        if self._making is not None:
            return State.STARTING
        if self.handle is None:
            return State.STOPPED
        return State.IN_USE if self._holds else State.IDLE

    @property
    def quiet_ms(self) -> float:
        """How long nobody has held it; 0 while it is held."""
        return 0.0 if self._holds else (self._clock.now() - self._quiet_since) * 1000

    def hold(self) -> None:
        self._holds += 1
        self._unheld.clear()

    def leave(self) -> None:
        self._holds -= 1
        if not self._holds:
            self._quiet_since = self._clock.now()
            self._unheld.set()

    def note_loss(self, handle: SandboxHandle) -> None:
        """Take `handle` for lost; the first of several reports counts."""
        if self.handle is handle:
            self.handle = None
            self.losses += 1
            logger.warning("sandbox lost", extra={"event": "sandbox.lost", "thread_id": self.thread_id, "instance": self.instance})

    def refuse_if_ending(self) -> None:
        if self._ending:
            raise SandboxUnavailable(thread_id=self.thread_id, reason=self._ending)

    async def compute(self) -> SandboxHandle:
        """Return live compute; whoever asks first makes it, all others wait for the same.

        Raises:
            SandboxUnavailable: it cannot be made, or is being removed.
        """
        self.refuse_if_ending()
        if self.handle is not None and self.handle.lost:
            self.note_loss(self.handle)
        if self.handle is not None:
            return self.handle
        if self._making is None:
            self._making = asyncio.create_task(self._make())
            self._waiting = 0
        making = self._making
        self._waiting += 1
        try:
            handle = await asyncio.shield(making)
        except asyncio.CancelledError:
            if making.cancelled() and not _cancelled_itself():
                self.refuse_if_ending()
            elif self._making is making and self._waiting == 1:
                await self._give_up(making)
            raise
        finally:
            if self._making is making:
                self._waiting -= 1
        self.refuse_if_ending()
        return handle

    async def _make(self) -> SandboxHandle:
        try:
            async with self._gate:
                if self.handle is None:
                    self.handle = await self._acquire()
                    self.instance = self.handle.instance
                    self._start_watch()
                return self.handle
        finally:
            if self._making is asyncio.current_task():
                self._making = None

    async def _acquire(self) -> SandboxHandle:
        started = self._clock.now()
        try:
            async with asyncio.timeout(self._limits.acquire / 1000):
                handle = await self._provider.acquire(self.thread_id, self._policy(self.thread_id))
        except TimeoutError as error:
            await self._drop_half_made()
            reason = f"it was not ready within {self._limits.acquire / 1000:g} s"
            raise SandboxUnavailable(thread_id=self.thread_id, reason=reason) from error
        except asyncio.CancelledError:
            await self._drop_half_made()
            raise
        except B4Error:
            raise
        except Exception as error:
            reason = f"provider {self._provider.name!r} failed with {type(error).__name__}"
            raise SandboxUnavailable(thread_id=self.thread_id, reason=reason) from error
        fields = {"event": "sandbox.acquired", "thread_id": self.thread_id, "instance": handle.instance}
        logger.info("sandbox acquired", extra=fields | {"duration_ms": (self._clock.now() - started) * 1000})
        return handle

    async def _drop_half_made(self) -> None:
        """What an interrupted start may have left goes, whatever became of it."""
        try:
            await self._stop("release", self._provider.release)
        except Exception:
            logger.exception("clean-up failed", extra={"event": "sandbox.cleanup_failed", "thread_id": self.thread_id})

    async def _give_up(self, making: asyncio.Task[SandboxHandle]) -> None:
        """Nobody waits for the start any more; later callers begin a new one, behind the clean-up of this."""
        self._making = None
        if not self._ending:
            making.cancel()
        await asyncio.wait({making})
        if not making.cancelled() and making.exception() is not None:
            logger.info("abandoned start failed", extra={"event": "sandbox.abandoned", "thread_id": self.thread_id})

    async def _stop(self, name: str, action: Callable[[str], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(self._limits.stop / 1000):
                await action(self.thread_id)
        except TimeoutError as error:
            raise DeadlinePassed(operation=f"{name} of thread {self.thread_id!r}", seconds=self._limits.stop / 1000) from error

    async def release(self) -> None:
        """Drop compute, keep the files.

        Raises:
            SandboxHeld: somebody holds it.
        """
        async with self._gate:
            if self._holds:
                raise SandboxHeld(thread_id=self.thread_id, reason="a lease is held")
            self._end_watch()
            self.handle = None
            self.losses_told = self.losses
            await self._stop("release", self._provider.release)
        logger.info("sandbox released", extra={"event": "sandbox.released", "thread_id": self.thread_id, "why": "asked"})

    async def end(self, reason: str, action: str, grace_ms: int) -> None:
        """Refuse new work, let what is under way finish within `grace_ms`, then release or destroy for good.

        Raises:
            DeadlinePassed: the provider did not answer. Its own errors pass through.
        """
        self._ending = reason
        if self._making is not None:
            self._making.cancel()
        try:
            async with asyncio.timeout(grace_ms / 1000):
                await self._unheld.wait()
        except TimeoutError:
            fields = {"event": "sandbox.interrupted", "thread_id": self.thread_id, "leases": self.leases}
            logger.warning("sandbox ended under its holders", extra=fields)
        async with self._gate:
            self._end_watch()
            self.handle = None
            await self._stop(action, self._provider.destroy if action == "destroy" else self._provider.release)
        logger.info("sandbox ended", extra={"event": f"sandbox.{action}", "thread_id": self.thread_id, "why": reason})

    def _start_watch(self) -> None:
        self._end_watch()
        if self._limits.idle is not None:
            self._watch = asyncio.create_task(self._drop_when_quiet(self._limits.idle / 1000))

    def _end_watch(self) -> None:
        """Only under the gate: there the watch is at rest, never in the middle of a release."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None

    async def _drop_when_quiet(self, timeout: float) -> None:
        while True:
            await self._unheld.wait()
            since = self._quiet_since
            await self._clock.sleep(since + timeout - self._clock.now())
            if self._holds or self._quiet_since != since:
                continue
            if not await self._quiet():
                await self._until_quiet(timeout / _POLLS_PER_TIMEOUT)
                self._quiet_since = self._clock.now()
                continue
            async with self._gate:
                released = not self._holds and self._quiet_since == since and await self._release_quiet()
            if released:
                self._watch = None
                self._forget(self)
                return

    async def _quiet(self) -> bool:
        """Whether nothing runs in it. Doubt counts as work: quiet is not dead, and a slow answer is not quiet."""
        if self.handle is None or self.handle.lost:
            return True
        try:
            async with asyncio.timeout(self._limits.ask / 1000):
                return await self.handle.idle()
        except (TimeoutError, B4Error):
            return self.handle is None or self.handle.lost

    async def _until_quiet(self, interval: float) -> None:
        while not self._holds and not await self._quiet():
            await self._clock.sleep(interval)

    async def _release_quiet(self) -> bool:
        """Release under the gate unless a lease or job came meanwhile; a failed release is tried again an idle timeout later."""
        if not await self._quiet() or self._holds:
            self._quiet_since = self._clock.now()
            return False
        handle, self.handle = self.handle, None
        if handle is not None and handle.lost:
            self.losses += 1
        try:
            await self._stop("release", self._provider.release)
        except Exception:
            self.handle = None if handle is None or handle.lost else handle
            self._quiet_since = self._clock.now()
            logger.exception("idle release failed", extra={"event": "sandbox.release_failed", "thread_id": self.thread_id})
            return False
        logger.info("sandbox released", extra={"event": "sandbox.released", "thread_id": self.thread_id, "why": "idle"})
        return True
