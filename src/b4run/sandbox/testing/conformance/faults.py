"""The guest is killed or attacked: a typed error, then fresh compute on the same files."""

from __future__ import annotations

import asyncio

import pytest

from b4run.errors import JobUnknown, SandboxLost
from b4run.sandbox.contract import Capability
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.supervisor import SandboxSupervisor
from b4run.sandbox.testing.trial import Trial, case, contents, sh

EXEC = (Capability.EXEC,)


@case("T26", "T87", kills=True)
async def killed_guest_is_a_typed_error(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sandbox.files.write("a", b"kept")
    await trial.kill(sandbox)
    async with asyncio.timeout(20):
        with pytest.raises(SandboxLost):
            await sandbox.exec.run("true")
    assert sandbox.lost
    assert await sandbox.idle()
    with pytest.raises(SandboxLost):
        await sandbox.files.list()
    again = await trial.sandbox(thread_id=thread)
    assert again.instance != sandbox.instance
    assert (await again.files.read("a")).data == b"kept"


@case("T26", kills=True, needs=EXEC)
async def killed_guest_ends_calls_under_way(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    runs = [asyncio.create_task(sandbox.exec.run(f"touch {number}; sleep 60")) for number in range(3)]
    job = await sandbox.exec.start("sleep 60")
    waiting = asyncio.create_task(job.wait())
    await sh(sandbox, "until [ -e 0 ] && [ -e 1 ] && [ -e 2 ]; do sleep 0.02; done")
    await trial.kill(sandbox)
    async with asyncio.timeout(20):
        outcomes = await asyncio.gather(*runs, waiting, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [SandboxLost] * 4


@case("T26", "T87", kills=True, needs=EXEC)
async def next_command_after_a_kill_works(trial: Trial) -> None:
    thread = trial.thread()
    async with SandboxSupervisor(trial.provider) as supervisor, supervisor.lease(thread) as sandbox:
        await sh(sandbox, "echo kept > a; (setsid sleep 60 &)")
        job = await sandbox.exec.start("sleep 60")
        handle = await trial.provider.acquire(thread, SandboxPolicy())
        await trial.kill(handle)
        async with asyncio.timeout(20):
            with pytest.raises(SandboxLost):
                await sandbox.exec.run("cat a")
        assert await sh(sandbox, "cat a") == "kept"
        assert sandbox.instance != handle.instance
        with pytest.raises(JobUnknown):
            await job.wait()
        assert await sandbox.exec.jobs() == []


@case("T26", kills=True, needs=EXEC)
async def nothing_of_a_killed_sandbox_runs_on(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sandbox.exec.start("(setsid sh -c 'while :; do echo x >> ticks; sleep 0.05; done' &)")
    await sh(sandbox, "until [ -s ticks ]; do sleep 0.02; done")
    await trial.kill(sandbox)
    with pytest.raises(SandboxLost):
        await sandbox.exec.run("true")
    again = await trial.sandbox(thread_id=thread)
    first, second = (await sh(again, "wc -c < ticks; sleep 0.3; wc -c < ticks")).split()
    assert first == second


@case("T85", kills=True)
async def killed_sandbox_can_be_released_and_destroyed(trial: Trial) -> None:
    thread = trial.thread()
    for end in (trial.provider.release, trial.provider.destroy):
        sandbox = await trial.sandbox(thread_id=thread)
        await sandbox.files.write("a", b"")
        await trial.kill(sandbox)
        await end(thread)
    assert await contents(await trial.sandbox(thread_id=thread)) == []


@case(needs=(Capability.EXEC, Capability.GUEST_PROTECTED))
async def commands_cannot_hurt_the_guest(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for command in ("kill -9 -1", "kill -9 1", "kill -STOP 1", "for s in 1 2 3 6 11 15; do kill -$s 1; done", "kill -9 0"):
        await sandbox.exec.run(command, deadline_ms=10_000)
        assert not sandbox.lost, command
        assert (await sandbox.exec.run("echo works", deadline_ms=10_000)).stdout == "works\n", command


@case(needs=EXEC)
async def killing_everything_leaves_a_usable_thread(trial: Trial) -> None:
    thread = trial.thread()
    async with SandboxSupervisor(trial.provider) as supervisor, supervisor.lease(thread) as sandbox:
        await sandbox.files.write("a", b"kept")
        async with asyncio.timeout(30):
            try:
                await sandbox.exec.run("kill -9 -1; sleep 60", deadline_ms=5_000)
                await sandbox.exec.run("true")
            except SandboxLost:
                await sandbox.exec.run("true")
            assert await sh(sandbox, "cat a") == "kept"
