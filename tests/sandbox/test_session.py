"""Compute that is quiet goes, compute at work stays: time passes only when a test says so."""

from __future__ import annotations

import asyncio
import gc

import pytest

from b4run.errors import SandboxLost
from b4run.sandbox import SandboxSupervisor
from b4run.sandbox.session import Session, State
from b4run.sandbox.testing import Answer, FakeCommand, FakeProvider, fake_sandbox

from .clock import ManualClock, settle

RELEASED = ("release", "t")


class Work:
    """Answers every command once `finish` is set."""

    def __init__(self) -> None:
        self.running = asyncio.Event()
        self.finish = asyncio.Event()

    async def __call__(self, _: FakeCommand) -> Answer:
        self.running.set()
        await self.finish.wait()
        return Answer()


def supervise(provider: FakeProvider, clock: ManualClock) -> SandboxSupervisor:
    return SandboxSupervisor(provider, idle_timeout_ms=60_000, clock=clock)


async def test_quiet_compute_is_released_and_files_stay() -> None:
    provider, clock = fake_sandbox(), ManualClock()
    async with supervise(provider, clock) as supervisor:
        async with supervisor.lease("t") as sandbox:
            await sandbox.files.write("a", b"kept")
        await clock.advance(59.9)
        assert RELEASED not in provider.log
        assert supervisor.status()[0].quiet_ms == pytest.approx(59_900)
        await clock.advance(0.2)
        assert provider.log.count(RELEASED) == 1
        assert supervisor.status() == []
        async with supervisor.lease("t") as sandbox:
            assert (await sandbox.files.read("a")).data == b"kept"


async def test_released_threads_are_forgotten() -> None:
    provider, clock = fake_sandbox(), ManualClock()
    async with supervise(provider, clock) as supervisor:
        for number in range(50):
            async with supervisor.lease(f"forgotten-{number}"):
                pass
        assert len(kept_sessions()) == 50
        await clock.advance(61)
        assert kept_sessions() == []


def kept_sessions() -> list[Session]:
    gc.collect()
    # By name: libraries above keep closures of other tests in their caches.
    return [item for item in gc.get_objects() if isinstance(item, Session) and item.thread_id.startswith("forgotten-")]


async def test_every_lease_starts_the_time_anew() -> None:
    provider, clock = fake_sandbox(), ManualClock()
    async with supervise(provider, clock) as supervisor:
        for _ in range(5):
            async with supervisor.lease("t"):
                pass
            await clock.advance(50)
        assert RELEASED not in provider.log
        await clock.advance(11)
        assert provider.log.count(RELEASED) == 1


async def test_held_lease_is_never_released_however_long() -> None:
    provider, clock = fake_sandbox(), ManualClock()
    async with supervise(provider, clock) as supervisor:
        async with supervisor.lease("t") as sandbox:
            await clock.advance(100_000)
            assert supervisor.status()[0].state is State.IN_USE
            await sandbox.exec.run("true")
        assert RELEASED not in provider.log


async def test_running_command_is_never_interrupted() -> None:
    clock, work = ManualClock(), Work()
    provider = fake_sandbox(work)
    async with supervise(provider, clock) as supervisor:

        async def run() -> bool:
            async with supervisor.lease("t") as sandbox:
                return (await sandbox.exec.run("x")).ok

        running = asyncio.create_task(run())
        await work.running.wait()
        await clock.advance(100_000)
        work.finish.set()
        assert await running
        assert RELEASED not in provider.log
        await clock.advance(61)
        assert provider.log.count(RELEASED) == 1


async def test_call_that_outlives_its_lease_is_not_interrupted() -> None:
    clock, work = ManualClock(), Work()
    provider = fake_sandbox(work)
    async with supervise(provider, clock) as supervisor:
        async with supervisor.lease("t") as sandbox:
            running = asyncio.create_task(sandbox.exec.run("x"))
            await work.running.wait()
        await clock.advance(100_000)
        work.finish.set()
        assert (await running).ok


async def test_background_job_is_work_and_quiet_begins_when_it_ends() -> None:
    clock, work = ManualClock(), Work()
    provider = fake_sandbox(work)
    async with supervise(provider, clock) as supervisor:
        async with supervisor.lease("t") as sandbox:
            await sandbox.exec.start("server")
        await clock.advance(1_000)
        assert RELEASED not in provider.log
        work.finish.set()
        await clock.advance(59)
        assert RELEASED not in provider.log
        await clock.advance(17)
        assert provider.log.count(RELEASED) == 1


async def test_lease_taken_while_the_sandbox_is_asked_wins() -> None:
    provider, clock = fake_sandbox(), ManualClock()
    asked, answer = asyncio.Event(), asyncio.Event()
    async with supervise(provider, clock) as supervisor:
        async with supervisor.lease("t"):
            pass
        handle = provider.handle("t")

        async def slow_idle() -> bool:
            asked.set()
            await answer.wait()
            return True

        handle.idle = slow_idle  # type: ignore[method-assign]
        reaping = asyncio.create_task(clock.advance(61))
        await asked.wait()
        async with supervisor.lease("t") as sandbox:
            answer.set()
            await reaping
            await settle()
            assert (await sandbox.exec.run("true")).ok
            assert RELEASED not in provider.log


async def test_lease_taken_during_the_release_gets_fresh_compute() -> None:
    provider, clock = fake_sandbox(), ManualClock()
    reached, opened = asyncio.Event(), asyncio.Event()

    async def slow(_: str) -> None:
        reached.set()
        await opened.wait()

    async with supervise(provider, clock) as supervisor:
        async with supervisor.lease("t") as sandbox:
            before = sandbox.instance
        provider.on_release = slow
        reaping = asyncio.create_task(clock.advance(61))
        await reached.wait()

        async def work() -> str:
            async with supervisor.lease("t") as sandbox:
                await sandbox.exec.run("true")
                return sandbox.instance

        working = asyncio.create_task(work())
        await settle()
        opened.set()
        assert await working != before
        await reaping
    assert provider.log[:3] == [("acquire", "t"), RELEASED, ("acquire", "t")]


async def test_failed_release_is_tried_again() -> None:
    provider, clock = fake_sandbox(), ManualClock()
    failures = [OSError("busy"), OSError("busy")]

    async def fail(_: str) -> None:
        if failures:
            raise failures.pop()

    provider.on_release = fail
    async with supervise(provider, clock) as supervisor:
        async with supervisor.lease("t"):
            pass
        await clock.advance(121)
        assert RELEASED not in provider.log
        await clock.advance(60)
        assert provider.log.count(RELEASED) == 1


async def test_loss_that_nobody_saw_is_told_to_the_next_holder() -> None:
    provider, clock = fake_sandbox(), ManualClock()
    async with supervise(provider, clock) as supervisor:
        async with supervisor.lease("t"):
            pass
        provider.lose("t")
        await clock.advance(61)
        assert [status.state for status in supervisor.status()] == [State.STOPPED]
        async with supervisor.lease("t") as sandbox:
            with pytest.raises(SandboxLost):
                await sandbox.exec.run("true")
            assert (await sandbox.exec.run("true")).ok
    assert provider.log[:3] == [("acquire", "t"), RELEASED, ("acquire", "t")]
