"""Background jobs: an id, a life and a log of their own."""

from __future__ import annotations

import asyncio
import signal
import time

import pytest

from b4run.errors import DeadlinePassed, JobUnknown
from b4run.sandbox.contract import Capability, Cause, Job, Stream
from b4run.sandbox.testing.trial import Trial, at_rest, case, sh

EXEC = (Capability.EXEC,)


async def _read_until(job: Job, expected: bytes, offset: int = 0) -> bytes:
    """Return the log from `offset` on once it holds `expected`."""
    async with asyncio.timeout(10):
        while expected not in (data := (await job.read(offset=offset)).data):
            await asyncio.sleep(0.02)
    return data


@case(needs=EXEC)
async def start_returns_at_once_and_wait_gives_the_result(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    began = time.monotonic()
    job = await sandbox.exec.start("until [ -e go ]; do sleep 0.02; done; echo done; exit 5")
    assert time.monotonic() - began < 2
    await sandbox.files.write("go", b"")
    result = await job.wait(timeout_ms=10_000)
    assert (result.exit_code, result.cause, result.stdout, result.job) == (5, Cause.EXIT, "done\n", job.id)
    assert await job.wait() == result


@case("T11", "T122", needs=EXEC)
async def log_is_read_by_offset(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = await sandbox.exec.start("printf one; until [ -e go ]; do sleep 0.02; done; printf two; printf bad >&2")
    assert await _read_until(job, b"one") == b"one"
    part = await job.read(offset=1, limit=1)
    assert (part.data, part.offset, part.eof, part.gap) == (b"n", 1, False, 0)
    await sandbox.files.write("go", b"")
    await job.wait(timeout_ms=10_000)
    part = await job.read(offset=3)
    assert (part.data, part.offset, part.total, part.eof) == (b"two", 3, 6, True)
    assert (await job.read(Stream.STDERR)).data == b"bad"
    assert (await job.read(offset=6)).data == b""
    again = sandbox.exec.job(job.id)
    assert (await again.read()).data == b"onetwo"


@case("T35", needs=EXEC)
async def log_is_bounded_and_counts_what_is_gone(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = await sandbox.exec.start("printf START; head -c 500000 /dev/zero; printf END", output_limit=1_000)
    result = await job.wait(timeout_ms=20_000)
    assert result.out.total == 500_008
    assert len(result.out.data) == 1_000
    head = await job.read(offset=0, limit=500)
    assert (head.data[:5], head.gap) == (b"START", 0)
    tail = await job.read(offset=500)
    assert tail.data.endswith(b"END")
    assert tail.gap == 500_008 - 1_000
    assert tail.offset + len(tail.data) == tail.total == 500_008


@case("T10", needs=EXEC)
async def end_of_a_wait_is_not_the_end_of_the_job(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = await sandbox.exec.start("until [ -e go ]; do sleep 0.02; done; exit 3")
    with pytest.raises(DeadlinePassed):
        await job.wait(timeout_ms=100)
    await sandbox.files.write("go", b"")
    assert (await job.wait(timeout_ms=10_000)).exit_code == 3


@case("T12", "T122", needs=EXEC)
async def job_outlives_the_commands_beside_it(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = await sandbox.exec.start("while :; do echo tick; sleep 0.05; done")
    await sandbox.exec.run("sleep 60", deadline_ms=200)
    await _read_until(job, b"tick\ntick\n")
    assert [info.job for info in await sandbox.exec.jobs() if info.running] == [job.id]
    await job.cancel()


@case("T9", needs=EXEC)
async def job_has_a_deadline_of_its_own(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = await sandbox.exec.start("sleep 60", deadline_ms=200)
    result = await job.wait(timeout_ms=10_000)
    assert (result.cause, result.exit_code) == (Cause.TIMEOUT, 124)


@case("T30", needs=EXEC)
async def signals_reach_the_leader_or_the_tree(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    command = (
        "trap 'echo usr1' USR1; sh -c 'trap \"echo child\" USR1; echo up; while :; do sleep 0.05; done' & while :; do sleep 0.05; done"
    )
    job = await sandbox.exec.start(command)
    await _read_until(job, b"up\n")
    assert await job.signal(signal.SIGUSR1) == 1
    assert b"child" not in await _read_until(job, b"usr1\n")
    assert await job.signal(signal.SIGKILL, tree=True) >= 2
    assert (await job.wait(timeout_ms=10_000)).signal == signal.SIGKILL
    await at_rest(sandbox)


@case("T18", needs=EXEC)
async def cancel_returns_when_the_tree_is_gone(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = await sandbox.exec.start("sleep 60 & echo $! $$ > pids; wait")
    pids = await sh(sandbox, "until [ -s pids ]; do sleep 0.02; done; cat pids")
    await job.cancel()
    assert await sh(sandbox, f"for p in {pids}; do kill -0 $p 2>/dev/null && echo $p; done; true") == ""
    result = await job.wait()
    assert result.cause is Cause.CANCELLED
    await job.cancel()


@case(needs=EXEC)
async def list_tells_every_job(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    done = await sandbox.exec.start("exit 9")
    await done.wait(timeout_ms=10_000)
    runs = await sandbox.exec.start(["sleep", "60"])
    listed = await sandbox.exec.jobs()
    assert [info.job for info in listed] == [done.id, runs.id]
    assert (listed[0].running, listed[0].cause, listed[0].exit_code) == (False, Cause.EXIT, 9)
    assert (listed[1].running, listed[1].alive, listed[1].cause) == (True, True, None)
    assert "exit 9" in listed[0].command
    assert "sleep" in listed[1].command
    assert 0 <= listed[0].started_ms <= listed[1].started_ms < 600_000
    await runs.cancel()


@case()
async def unknown_job_is_told(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = sandbox.exec.job(987_654)
    with pytest.raises(JobUnknown):
        await job.wait(timeout_ms=1_000)
    with pytest.raises(JobUnknown):
        await job.read()
    with pytest.raises(JobUnknown):
        await job.signal(15)
    with pytest.raises(JobUnknown):
        await job.cancel()


@case("T18", needs=EXEC)
async def cancelling_what_is_over_succeeds(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    plain = (await sandbox.exec.run("true")).job
    await sandbox.exec.job(plain).cancel()
    jobs = [await sandbox.exec.start("true") for _ in range(70)]
    await jobs[-1].wait(timeout_ms=20_000)
    for job in jobs:
        await job.cancel()
    assert await sandbox.idle()


@case("T2", "T35", needs=EXEC)
async def log_of_what_outlived_its_command_stays_readable(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run("(until [ -e go ]; do sleep 0.02; done; echo later) & echo first")
    assert result.stdout == "first\n"
    job = sandbox.exec.job(result.job)
    await sandbox.files.write("go", b"")
    assert await _read_until(job, b"later\n") == b"first\nlater\n"
    await at_rest(sandbox)
    part = await job.read()
    assert (part.data, part.total, part.eof) == (b"first\nlater\n", 12, True)
    assert (await job.wait()).exit_code == 0


@case("T35", needs=EXEC)
async def finished_jobs_are_kept_up_to_a_bound(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    jobs = [await sandbox.exec.start(f"exit {number}") for number in range(70)]
    assert (await jobs[-1].wait(timeout_ms=20_000)).exit_code == 69
    async with asyncio.timeout(20):
        while any(info.running for info in await sandbox.exec.jobs()):
            await asyncio.sleep(0.02)
    kept = [info.job for info in await sandbox.exec.jobs()]
    assert kept == [job.id for job in jobs[-64:]]
    with pytest.raises(JobUnknown):
        await jobs[0].wait(timeout_ms=1_000)


@case("T30", needs=EXEC)
async def agent_ends_its_own_background_server(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = await sandbox.exec.start("echo $$ > pid; exec sleep 60")
    await sh(sandbox, 'until [ -s pid ]; do sleep 0.02; done; kill "$(cat pid)"')
    result = await job.wait(timeout_ms=10_000)
    assert (result.cause, result.signal) == (Cause.SIGNAL, signal.SIGTERM)
