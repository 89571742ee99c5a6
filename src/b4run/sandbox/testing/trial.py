"""What a conformance case is and what it works with."""

from __future__ import annotations

import asyncio
import functools
import itertools
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType

from b4run.errors import FileRefused
from b4run.sandbox.contract import Capability, ExecResult, SandboxHandle, SandboxProvider
from b4run.sandbox.policy import SandboxPolicy

KillGuest = Callable[[SandboxHandle], Awaitable[None]]
"""Ends the guest of a live handle from outside and returns once it is dead."""

Body = Callable[["Trial"], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Case:
    """One check. `needs`: capabilities without which it says nothing; `faults`: T-numbers of the survey."""

    body: Body
    group: str
    needs: frozenset[Capability]
    faults: tuple[str, ...]
    kills: bool
    limit_s: float
    alone: bool = False
    """It counts what this process holds, so no other case may run beside it."""

    @property
    def id(self) -> str:
        return "-".join((self.group, self.body.__name__, *self.faults))

    def applies(self, capabilities: frozenset[Capability], kill_guest: KillGuest | None) -> bool:
        return self.needs <= capabilities and (kill_guest is not None or not self.kills)


def case(
    *faults: str, needs: tuple[Capability, ...] = (), kills: bool = False, limit_s: float = 60.0, alone: bool = False
) -> Callable[[Body], Case]:
    """Mark a function as a conformance case. `kills`: it ends the guest; `limit_s`: within which it must be through;
    `alone`: it counts what this process holds."""
    return lambda body: Case(body, body.__module__.rpartition(".")[2], frozenset(needs), faults, kills, limit_s, alone)


def cases_of(module: ModuleType) -> list[Case]:
    """Return the module's cases as they stand in it."""
    return [value for value in vars(module).values() if isinstance(value, Case)]


class Trial:
    """One case's provider and threads; every thread handed out is destroyed afterwards."""

    def __init__(self, make_provider: Callable[[], SandboxProvider], kill_guest: KillGuest | None) -> None:
        self._make = make_provider
        self._kill = kill_guest
        self._run = uuid.uuid4().hex[:12]
        self._numbers = itertools.count(1)
        self._threads: list[str] = []
        self._last: list[Callable[[], Awaitable[None]]] = []
        self.provider = make_provider()

    def thread(self, name: str = "t") -> str:
        """Return an id that no other thread has; `name` is part of it."""
        thread_id = f"{name}-{self._run}-{next(self._numbers)}"
        self._threads.append(thread_id)
        return thread_id

    async def sandbox(self, policy: SandboxPolicy | None = None, thread_id: str | None = None) -> SandboxHandle:
        """Acquire a thread, a new one unless it is named."""
        return await self.provider.acquire(thread_id or self.thread(), policy or SandboxPolicy())

    async def reopen(self) -> None:
        """Close the provider and make it anew, as after a restart of the program."""
        await self.provider.aclose()
        self.provider = self._make()

    def at_the_end(self, step: Callable[[], Awaitable[None]]) -> None:
        """Have `step` done when the case is over, whatever happened."""
        self._last.append(step)

    async def kill(self, sandbox: SandboxHandle) -> None:
        assert self._kill is not None
        await self._kill(sandbox)

    async def clean_up(self) -> None:
        failures: list[Exception] = []
        steps: list[Callable[[], Awaitable[None]]] = [*self._last]
        steps += [functools.partial(self.provider.destroy, thread_id) for thread_id in self._threads]
        for step in (*steps, self.provider.aclose):
            try:
                await step()
            except Exception as error:  # noqa: BLE001 - raised below, with the others
                failures.append(error)
        if failures:
            raise ExceptionGroup("clean-up failed", failures)


@asynccontextmanager
async def refused(kind: str) -> AsyncIterator[None]:
    """Expect `FileRefused` of this kind."""
    try:
        yield
    except FileRefused as error:
        assert error.kind == kind, f"refused as {error.kind!r}, not as {kind!r}: {error}"
    else:
        raise AssertionError(f"not refused; expected {kind!r}")


async def sh(sandbox: SandboxHandle, command: str) -> str:
    """Run a command that must succeed and return what it printed, without the last newline."""
    result: ExecResult = await sandbox.exec.run(command, deadline_ms=30_000)
    assert result.ok, f"{command!r} ended with {result.cause} {result.exit_code}: {result.stderr}"
    return result.stdout.removesuffix("\n")


async def at_rest(sandbox: SandboxHandle) -> None:
    """Wait until nothing runs in the sandbox; what was killed may take a moment to be gone."""
    async with asyncio.timeout(10):
        while not await sandbox.idle():
            await asyncio.sleep(0.02)


async def symlink(sandbox: SandboxHandle, target: str, path: str) -> None:
    await _arrange(sandbox, ["ln", "-s", target, path])
    assert (await sandbox.files.stat(path, follow=False)).target == target


async def chmod(sandbox: SandboxHandle, mode: int, path: str) -> None:
    await _arrange(sandbox, ["chmod", f"{mode:o}", path])


async def mkfifo(sandbox: SandboxHandle, path: str) -> None:
    await _arrange(sandbox, ["mkfifo", path])


async def _arrange(sandbox: SandboxHandle, argv: list[str]) -> None:
    """Prepare files by a command; a provider that runs none must answer these three: ln, chmod, mkfifo."""
    result = await sandbox.exec.run(argv, deadline_ms=10_000)
    assert result.ok, f"{argv} ended with {result.exit_code}: {result.stderr}"


async def contents(sandbox: SandboxHandle, path: str = ".") -> list[str]:
    return list((await sandbox.files.list(path)).names)


async def pieces(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part
