"""A loss is told once to each holder; the call after it works on fresh compute with the same files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from b4run.errors import JobUnknown, SandboxLost, SandboxUnavailable
from b4run.sandbox import SandboxHandle, SandboxSupervisor
from b4run.sandbox.testing import Answer, FakeCommand, FakeProvider, fake_sandbox

CALLS: dict[str, Callable[[SandboxHandle], Coroutine[Any, Any, object]]] = {
    "run": lambda sandbox: sandbox.exec.run("x"),
    "start": lambda sandbox: sandbox.exec.start("x"),
    "jobs": lambda sandbox: sandbox.exec.jobs(),
    "stream": lambda sandbox: sandbox.exec.stream("x").result(),
    "stream chunks": lambda sandbox: anext(aiter(sandbox.exec.stream("x")), None),  # type: ignore[dict-item]
    "stat": lambda sandbox: sandbox.files.stat("."),
    "real_path": lambda sandbox: sandbox.files.real_path("."),
    "list": lambda sandbox: sandbox.files.list(),
    "entries": lambda sandbox: sandbox.files.entries(),
    "walk": lambda sandbox: sandbox.files.walk(),
    "read": lambda sandbox: sandbox.files.read("a"),
    "read_lines": lambda sandbox: sandbox.files.read_lines("a"),
    "read_stream": lambda sandbox: anext(sandbox.files.read_stream("a")),  # type: ignore[dict-item]
    "write": lambda sandbox: sandbox.files.write("b", b"x"),
    "mkdir": lambda sandbox: sandbox.files.mkdir("d"),
    "remove": lambda sandbox: sandbox.files.remove("a"),
    "rename": lambda sandbox: sandbox.files.rename("a", "c"),
}


async def forever(_: FakeCommand) -> Answer:
    return await asyncio.Future[Answer]()


@pytest.fixture
def provider() -> FakeProvider:
    return fake_sandbox(lambda command: "printed")


@pytest.fixture
async def supervisor(provider: FakeProvider) -> AsyncIterator[SandboxSupervisor]:
    async with SandboxSupervisor(provider) as supervisor:
        yield supervisor


@pytest.mark.parametrize("name", CALLS)
async def test_next_call_tells_the_loss_and_the_one_after_works(name: str, provider: FakeProvider, supervisor: SandboxSupervisor) -> None:
    async with supervisor.lease("t") as sandbox:
        await sandbox.files.write("a", b"kept\n")
        before = sandbox.instance
        provider.lose("t")
        assert sandbox.lost
        with pytest.raises(SandboxLost):
            await CALLS[name](sandbox)
        assert not sandbox.lost
        await CALLS[name](sandbox)
        assert sandbox.instance != before
    assert provider.log.count(("acquire", "t")) == 2


async def test_several_calls_under_way_are_all_told_and_one_replacement_is_made() -> None:
    provider = fake_sandbox(forever)
    async with SandboxSupervisor(provider) as supervisor, supervisor.lease("t") as sandbox:
        await sandbox.files.write("a", b"kept")
        job = await sandbox.exec.start("server")
        calls = [asyncio.create_task(sandbox.exec.run("x")) for _ in range(4)]
        calls += [asyncio.create_task(job.wait()), asyncio.create_task(sandbox.exec.stream("x").result())]
        while len(await sandbox.exec.jobs()) < 6:
            await asyncio.sleep(0)
        provider.lose("t")
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert [type(result) for result in results] == [SandboxLost] * 6
        contents = await asyncio.gather(*(sandbox.files.read("a") for _ in range(4)))
        assert [content.data for content in contents] == [b"kept"] * 4
        assert provider.log.count(("acquire", "t")) == 2


async def test_each_lease_is_told_for_itself(provider: FakeProvider, supervisor: SandboxSupervisor) -> None:
    async with supervisor.lease("t") as one, supervisor.lease("t") as two:
        provider.lose("t")
        with pytest.raises(SandboxLost):
            await one.exec.run("x")
        assert (await one.exec.run("x")).ok
        async with supervisor.lease("t") as newcomer:
            assert (await newcomer.exec.run("x")).ok
        with pytest.raises(SandboxLost):
            await two.exec.run("x")
        assert (await two.exec.run("x")).ok
    assert provider.log.count(("acquire", "t")) == 2


async def test_loss_between_leases_is_told_once(provider: FakeProvider, supervisor: SandboxSupervisor) -> None:
    async with supervisor.lease("t"):
        pass
    provider.lose("t")
    async with supervisor.lease("t") as sandbox:
        with pytest.raises(SandboxLost):
            await sandbox.files.list()
    async with supervisor.lease("t") as sandbox:
        assert (await sandbox.exec.run("x")).ok


async def test_jobs_are_gone_with_their_compute(provider: FakeProvider, supervisor: SandboxSupervisor) -> None:
    async with supervisor.lease("t") as sandbox:
        job = await sandbox.exec.start("x")
        assert (await job.wait()).stdout == "printed"
        provider.lose("t")
        with pytest.raises(SandboxLost):
            await job.wait()
        with pytest.raises(JobUnknown):
            await job.wait()
        other = await sandbox.exec.start("x")
        assert other.id == job.id
        with pytest.raises(JobUnknown):
            await job.read()
        await other.wait()
        assert (await other.read()).data == b"printed"


async def test_failed_replacement_is_told_and_tried_again(provider: FakeProvider, supervisor: SandboxSupervisor) -> None:
    async with supervisor.lease("t") as sandbox:
        await sandbox.files.write("a", b"kept")
        provider.lose("t")
        with pytest.raises(SandboxLost):
            await sandbox.exec.run("x")

        async def fail(_: str) -> None:
            raise SandboxUnavailable(thread_id="t", reason="no room")

        healthy, provider.on_acquire = provider.on_acquire, fail
        for _ in range(2):
            with pytest.raises(SandboxUnavailable, match="no room"):
                await sandbox.files.read("a")
        provider.on_acquire = healthy
        assert (await sandbox.files.read("a")).data == b"kept"


async def test_losses_in_a_row_are_each_told(provider: FakeProvider, supervisor: SandboxSupervisor) -> None:
    async with supervisor.lease("t") as sandbox:
        for _ in range(3):
            provider.lose("t")
            with pytest.raises(SandboxLost):
                await sandbox.exec.run("x")
            assert (await sandbox.exec.run("x")).stdout == "printed"


async def test_stream_gives_chunks_and_result(supervisor: SandboxSupervisor) -> None:
    async with supervisor.lease("t") as sandbox:
        stream = sandbox.exec.stream("x")
        assert [chunk.data async for chunk in stream] == [b"printed"]
        assert (await stream.result()).ok
        await sandbox.exec.stream("never begun").cancel()
