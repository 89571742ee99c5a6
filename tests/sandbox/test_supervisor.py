"""One sandbox per thread, whoever asks and whatever fails; races are made by events."""

from __future__ import annotations

import asyncio

import pytest

from b4run.errors import DeadlinePassed, SandboxHeld, SandboxUnavailable
from b4run.sandbox import Cause, SandboxPolicy, SandboxSupervisor, open_sandbox
from b4run.sandbox.session import Limits, State
from b4run.sandbox.testing import Answer, FakeCommand, FakeProvider, fake_sandbox

from .clock import settle


class Gate:
    """A hook that says when it is reached and waits to be opened; `error` is raised then."""

    def __init__(self, error: Exception | None = None) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()
        self.calls = 0
        self.error = error

    async def __call__(self, _: str) -> None:
        self.calls += 1
        self.reached.set()
        await self.opened.wait()
        if self.error is not None:
            raise self.error


async def hold(supervisor: SandboxSupervisor, thread_id: str, until: asyncio.Event, taken: asyncio.Event | None = None) -> str:
    async with supervisor.lease(thread_id) as sandbox:
        if taken is not None:
            taken.set()
        await until.wait()
        return sandbox.instance


async def test_two_first_calls_share_one_start() -> None:
    provider, done = fake_sandbox(), asyncio.Event()
    gate = provider.on_acquire = Gate()
    async with SandboxSupervisor(provider) as supervisor:
        holders = [asyncio.create_task(hold(supervisor, "t", done)) for _ in range(5)]
        await gate.reached.wait()
        assert [status.state for status in supervisor.status()] == [State.STARTING]
        gate.opened.set()
        done.set()
        assert len(set(await asyncio.gather(*holders))) == 1
    assert provider.log.count(("acquire", "t")) == 1


async def test_hundred_threads_at_once() -> None:
    provider = fake_sandbox()
    async with SandboxSupervisor(provider) as supervisor:

        async def work(number: int) -> bytes:
            for _ in range(3):
                async with supervisor.lease(f"t-{number}") as sandbox:
                    await sandbox.files.write("number", str(number).encode())
                    await sandbox.exec.run("true")
            async with supervisor.lease(f"t-{number}") as sandbox:
                return (await sandbox.files.read("number")).data

        assert await asyncio.gather(*map(work, range(100))) == [str(number).encode() for number in range(100)]
        assert len(supervisor.status()) == 100
    assert len([entry for entry in provider.log if entry[0] == "acquire"]) == 100
    assert len([entry for entry in provider.log if entry[0] == "release"]) == 100


async def test_cancelled_start_is_cleaned_up_and_can_be_repeated() -> None:
    provider = fake_sandbox()
    gate = provider.on_acquire = Gate()
    async with SandboxSupervisor(provider) as supervisor:
        first = asyncio.create_task(hold(supervisor, "t", asyncio.Event()))
        await gate.reached.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert provider.log == [("release", "t")]
        assert supervisor.status() == []
        gate.opened.set()
        async with supervisor.lease("t") as sandbox:
            assert (await sandbox.exec.run("true")).ok


async def test_cancelling_one_of_two_waiting_callers_keeps_the_start() -> None:
    provider, done = fake_sandbox(), asyncio.Event()
    gate = provider.on_acquire = Gate()
    async with SandboxSupervisor(provider) as supervisor:
        first, second = (asyncio.create_task(hold(supervisor, "t", done)) for _ in range(2))
        await gate.reached.wait()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        gate.opened.set()
        done.set()
        assert await second
    assert provider.log.count(("acquire", "t")) == 1


async def test_caller_that_comes_while_a_start_is_given_up_gets_its_own() -> None:
    provider, done = fake_sandbox(), asyncio.Event()
    acquire, release = Gate(), Gate()
    provider.on_acquire, provider.on_release = acquire, release
    async with SandboxSupervisor(provider) as supervisor:
        first = asyncio.create_task(hold(supervisor, "t", done))
        await acquire.reached.wait()
        first.cancel()
        await release.reached.wait()
        second = asyncio.create_task(hold(supervisor, "t", done))
        release.opened.set()
        acquire.opened.set()
        done.set()
        assert await second
        with pytest.raises(asyncio.CancelledError):
            await first
    assert provider.log[:2] == [("release", "t"), ("acquire", "t")]


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (SandboxHeld(thread_id="t", reason="elsewhere"), SandboxHeld),
        (OSError("/secret/host/path"), SandboxUnavailable),
        (RuntimeError("odd"), SandboxUnavailable),
    ],
)
async def test_failed_start_is_told_to_all_and_can_be_repeated(error: Exception, expected: type[Exception]) -> None:
    provider = fake_sandbox()
    gate = provider.on_acquire = Gate(error)
    async with SandboxSupervisor(provider) as supervisor:
        holders = [asyncio.create_task(hold(supervisor, "t", asyncio.Event())) for _ in range(3)]
        await gate.reached.wait()
        gate.opened.set()
        results = await asyncio.gather(*holders, return_exceptions=True)
        assert [type(result) for result in results] == [expected] * 3
        assert "/secret" not in str(results[0])
        assert gate.calls == 1
        gate.error = None
        async with supervisor.lease("t") as sandbox:
            assert sandbox.instance


async def test_start_that_takes_too_long_is_given_up() -> None:
    provider = fake_sandbox()
    gate = provider.on_acquire = Gate()
    async with SandboxSupervisor(provider, limits=Limits(acquire=30)) as supervisor:
        with pytest.raises(SandboxUnavailable, match=r"not ready within 0\.03 s"):
            async with supervisor.lease("t"):
                pass
        gate.opened.set()
        async with supervisor.lease("t"):
            pass
    assert provider.log[0] == ("release", "t")


async def test_policy_may_depend_on_the_thread() -> None:
    def answer(command: FakeCommand) -> str:
        return command.env["NAME"]

    async with SandboxSupervisor(fake_sandbox(answer), lambda thread_id: SandboxPolicy(env={"NAME": thread_id})) as supervisor:
        for thread_id in ("one", "two"):
            async with supervisor.lease(thread_id) as sandbox:
                assert (await sandbox.exec.run("x")).stdout == thread_id


async def test_ended_lease_refuses_calls() -> None:
    async with SandboxSupervisor(fake_sandbox()) as supervisor:
        async with supervisor.lease("t") as sandbox:
            stream = sandbox.exec.stream("x")
        for call in (sandbox.exec.run("x"), sandbox.files.list(), sandbox.exec.jobs(), stream.result()):
            with pytest.raises(SandboxUnavailable, match="lease has ended"):
                await call


async def test_release_keeps_files_and_refuses_while_held() -> None:
    provider = fake_sandbox()
    async with SandboxSupervisor(provider) as supervisor:
        async with supervisor.lease("t") as sandbox:
            await sandbox.files.write("a", b"kept")
            before = sandbox.instance
            with pytest.raises(SandboxHeld):
                await supervisor.release("t")
        await supervisor.release("t")
        assert supervisor.status() == []
        async with supervisor.lease("t") as sandbox:
            assert (await sandbox.files.read("a")).data == b"kept"
            assert sandbox.instance != before


async def test_destroy_waits_for_the_call_under_way_and_refuses_new_ones() -> None:
    running, finish = asyncio.Event(), asyncio.Event()

    async def answer(_: FakeCommand) -> Answer:
        running.set()
        await finish.wait()
        return Answer(stdout="finished")

    provider = fake_sandbox(answer)
    async with SandboxSupervisor(provider) as supervisor:

        async def holder() -> str:
            async with supervisor.lease("t") as sandbox:
                result = await sandbox.exec.run("x")
                with pytest.raises(SandboxUnavailable, match="being destroyed"):
                    await sandbox.files.list()
                return result.stdout

        holding = asyncio.create_task(holder())
        await running.wait()
        destroying = asyncio.create_task(supervisor.destroy("t"))
        await settle()
        assert [status.state for status in supervisor.status()] == [State.ENDING]
        assert ("destroy", "t") not in provider.log
        finish.set()
        assert await holding == "finished"
        await destroying
    assert provider.log.count(("destroy", "t")) == 1


async def test_destroy_ends_who_does_not_leave() -> None:
    provider, taken, done = fake_sandbox(), asyncio.Event(), asyncio.Event()
    async with SandboxSupervisor(provider) as supervisor:
        holding = asyncio.create_task(hold(supervisor, "t", done, taken))
        await taken.wait()
        await supervisor.destroy("t", grace_ms=20)
        async with supervisor.lease("t") as sandbox:
            assert (await sandbox.files.list()).names == []
            done.set()
            await holding
            assert (await sandbox.exec.run("true")).ok


async def test_concurrent_destroys_merge_and_a_lease_meanwhile_begins_empty() -> None:
    provider, done = fake_sandbox(), asyncio.Event()
    gate = provider.on_destroy = Gate()
    async with SandboxSupervisor(provider) as supervisor:
        async with supervisor.lease("t") as sandbox:
            await sandbox.files.write("a", b"old")
        destroys = [asyncio.create_task(supervisor.destroy("t")) for _ in range(4)]
        await gate.reached.wait()

        async def later() -> list[str]:
            async with supervisor.lease("t") as sandbox:
                return list((await sandbox.files.list()).names)

        leasing = asyncio.create_task(later())
        await settle()
        assert not leasing.done()
        done.set()
        gate.opened.set()
        await asyncio.gather(*destroys)
        assert await leasing == []
    assert provider.log.count(("destroy", "t")) == 1


async def test_destroy_goes_on_when_its_caller_is_cancelled() -> None:
    provider = fake_sandbox()
    gate = provider.on_destroy = Gate()
    async with SandboxSupervisor(provider) as supervisor:
        destroying = asyncio.create_task(supervisor.destroy("t"))
        await gate.reached.wait()
        destroying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await destroying
        gate.opened.set()
        await supervisor.destroy("t")
    assert ("destroy", "t") in provider.log


async def test_destroy_gives_up_a_start() -> None:
    provider = fake_sandbox()
    gate = provider.on_acquire = Gate()
    async with SandboxSupervisor(provider) as supervisor:
        holding = asyncio.create_task(hold(supervisor, "t", asyncio.Event()))
        await gate.reached.wait()
        await supervisor.destroy("t")
        with pytest.raises(SandboxUnavailable, match="being destroyed"):
            await holding
    assert provider.log == [("release", "t"), ("destroy", "t")]


async def test_failed_destroy_is_told_and_can_be_repeated() -> None:
    provider = fake_sandbox()
    gate = provider.on_destroy = Gate(OSError("busy"))
    gate.opened.set()
    async with SandboxSupervisor(provider) as supervisor:
        async with supervisor.lease("t") as sandbox:
            await sandbox.files.write("a", b"")
        with pytest.raises(OSError, match="busy"):
            await supervisor.destroy("t")
        gate.error = None
        await supervisor.destroy("t")
        async with supervisor.lease("t") as sandbox:
            assert (await sandbox.files.list()).names == []


async def test_provider_that_does_not_answer_a_destroy_is_given_up() -> None:
    provider = fake_sandbox()
    gate = provider.on_destroy = Gate()
    async with SandboxSupervisor(provider, limits=Limits(stop=30)) as supervisor:
        with pytest.raises(DeadlinePassed, match="destroy of thread 't'"):
            await supervisor.destroy("t")
        gate.opened.set()


async def test_close_lets_work_finish_then_refuses() -> None:
    running, finish = asyncio.Event(), asyncio.Event()

    async def answer(_: FakeCommand) -> Answer:
        running.set()
        await finish.wait()
        return Answer(stdout="finished")

    provider = fake_sandbox(answer)
    supervisor = SandboxSupervisor(provider)

    async def holder() -> str:
        async with supervisor.lease("t") as sandbox:
            return (await sandbox.exec.run("x")).stdout

    holding = asyncio.create_task(holder())
    await running.wait()
    closes = [asyncio.create_task(supervisor.aclose()) for _ in range(2)]
    await settle()
    with pytest.raises(SandboxUnavailable, match="closed"):
        async with supervisor.lease("other"):
            pass
    finish.set()
    assert await holding == "finished"
    await asyncio.gather(*closes)
    assert provider.log.count(("release", "t")) == 1


async def test_close_ends_work_at_its_deadline() -> None:
    async def answer(_: FakeCommand) -> Answer:
        return await asyncio.Future[Answer]()

    provider, taken = fake_sandbox(answer), asyncio.Event()
    supervisor = SandboxSupervisor(provider)

    async def holder() -> None:
        async with supervisor.lease("t") as sandbox:
            taken.set()
            await sandbox.exec.run("x")

    holding = asyncio.create_task(holder())
    await taken.wait()
    await supervisor.aclose(deadline_ms=20)
    with pytest.raises(SandboxUnavailable):
        await holding
    assert ("release", "t") in provider.log


async def test_close_releases_all_it_can_and_tells_the_rest() -> None:
    provider = fake_sandbox()

    async def fail_two(thread_id: str) -> None:
        if thread_id == "two":
            raise OSError("stuck")

    provider.on_release = fail_two
    supervisor = SandboxSupervisor(provider, close_provider=False)
    for thread_id in ("one", "two", "three"):
        async with supervisor.lease(thread_id):
            pass
    with pytest.raises(ExceptionGroup) as caught:
        await supervisor.aclose()
    assert [str(error) for error in caught.value.exceptions] == ["stuck"]
    assert {thread_id for action, thread_id in provider.log if action == "release"} == {"one", "three"}


async def test_status_tells_who_holds_what() -> None:
    async with SandboxSupervisor(fake_sandbox()) as supervisor:
        async with supervisor.lease("b"), supervisor.lease("b"), supervisor.lease("a") as sandbox:
            assert [(s.thread_id, s.state, s.leases) for s in supervisor.status()] == [("a", State.IN_USE, 1), ("b", State.IN_USE, 2)]
            assert supervisor.status()[0].instance == sandbox.instance
        assert [(s.state, s.leases) for s in supervisor.status()] == [(State.IDLE, 0)] * 2


async def test_open_sandbox_releases_or_destroys_at_the_end() -> None:
    provider: FakeProvider = fake_sandbox(lambda command: "printed")
    async with open_sandbox(provider, thread_id="t") as sandbox:
        await sandbox.files.write("a", b"kept")
        result = await sandbox.exec.run("x")
        assert (result.stdout, result.cause) == ("printed", Cause.EXIT)
    assert provider.log[-1] == ("release", "t")
    async with open_sandbox(provider, thread_id="t", policy=SandboxPolicy(env={"A": "b"}), destroy=True) as sandbox:
        assert (await sandbox.files.read("a")).data == b"kept"
    async with open_sandbox(provider, thread_id="t") as sandbox:
        assert (await sandbox.files.list()).names == []
    with pytest.raises(ZeroDivisionError):
        async with open_sandbox(provider, thread_id="t", destroy=True):
            raise ZeroDivisionError
    assert ("destroy", "t") in provider.log[-2:]
