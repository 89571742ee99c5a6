"""How a command ends: by itself, by a signal, by its deadline, by cancellation; each told from the others."""

from __future__ import annotations

import asyncio
import time

import pytest

from b4run.sandbox.contract import Capability, Cause
from b4run.sandbox.testing.trial import Trial, case, sh

EXEC = (Capability.EXEC,)


@case("T28", needs=EXEC)
async def death_by_signal_is_told_from_timeout(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for number in (1, 2, 6, 9, 13, 15):
        result = await sandbox.exec.run(f"kill -{number} $$; sleep 5", deadline_ms=10_000)
        assert (result.cause, result.signal, result.exit_code) == (Cause.SIGNAL, number, 128 + number)
    result = await sandbox.exec.run("sleep 60", deadline_ms=200)
    assert (result.cause, result.exit_code) == (Cause.TIMEOUT, 124)


@case("T29", needs=EXEC)
async def code_that_looks_like_a_signal_is_a_code(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for code in (124, 137, 143):
        result = await sandbox.exec.run(f"exit {code}", deadline_ms=10_000)
        assert (result.cause, result.signal, result.exit_code) == (Cause.EXIT, None, code)
    result = await sandbox.exec.run("trap 'exit 124' TERM; kill $$; sleep 5", deadline_ms=10_000)
    assert (result.cause, result.exit_code) == (Cause.EXIT, 124)


@case("T5", "T8", needs=EXEC)
async def deadline_is_kept(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    began = time.monotonic()
    result = await sandbox.exec.run("echo before; sleep 60; echo after", deadline_ms=300)
    assert 0.3 <= time.monotonic() - began < 2
    assert result.duration_ms < 1_500
    assert (result.exit_code, result.cause, result.stdout) == (124, Cause.TIMEOUT, "before\n")


@case(needs=EXEC)
async def deadline_not_reached_changes_nothing(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run("sleep 0.2; exit 4", deadline_ms=20_000)
    assert (result.exit_code, result.cause) == (4, Cause.EXIT)


@case("T21", needs=EXEC)
async def traps_run_before_the_kill(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    command = "trap 'echo cleaned; exit 3' TERM; echo ready; while :; do sleep 0.05; done"
    result = await sandbox.exec.run(command, deadline_ms=400, grace_ms=10_000)
    assert (result.cause, result.exit_code, result.stdout) == (Cause.TIMEOUT, 124, "ready\ncleaned\n")
    assert result.duration_ms < 5_000


@case("T21", needs=EXEC)
async def who_ignores_term_is_killed(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run("trap '' TERM INT HUP; while :; do sleep 0.05; done", deadline_ms=500, grace_ms=500)
    assert (result.cause, result.exit_code) == (Cause.TIMEOUT, 124)
    # Both count from the request, the duration from the start of the program.
    assert 700 <= result.duration_ms < 3_000


@case("T8", needs=EXEC)
async def stopped_process_is_killed(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run("kill -STOP $$; echo on", deadline_ms=300, grace_ms=300)
    assert (result.cause, result.exit_code) == (Cause.TIMEOUT, 124)


@case("T7", "T18", "T96", needs=EXEC)
async def cancelling_the_caller_ends_the_command(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    running = asyncio.create_task(sandbox.exec.run("echo $$ > pid; exec sleep 60"))
    pid = await sh(sandbox, "until [ -s pid ]; do sleep 0.02; done; cat pid")
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await sh(sandbox, f"kill -0 {pid} 2>/dev/null || echo gone") == "gone"
    assert await sandbox.idle()


@case("T5", needs=EXEC)
async def cancelling_a_stream_ends_the_command(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    stream = sandbox.exec.stream("echo $$; exec sleep 60")
    pid = ""
    async for chunk in stream:
        pid = chunk.data.decode().strip()
        break
    await stream.cancel()
    result = await stream.result()
    assert result.cause is Cause.CANCELLED
    assert await sh(sandbox, f"kill -0 {pid} 2>/dev/null || echo gone") == "gone"


@case(needs=EXEC)
async def stream_tells_its_result(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    stream = sandbox.exec.stream("printf out; printf error >&2; exit 6")
    chunks = [(chunk.stream.value, chunk.data) async for chunk in stream]
    result = await stream.result()
    assert sorted(chunks) == [("stderr", b"error"), ("stdout", b"out")]
    assert (result.exit_code, result.cause, result.out.total, result.err.total) == (6, Cause.EXIT, 3, 5)
    late = sandbox.exec.stream("printf x; sleep 60", deadline_ms=300)
    assert b"".join([chunk.data async for chunk in late]) == b"x"
    assert (await late.result()).cause is Cause.TIMEOUT
    assert (await sandbox.exec.stream("exit 3").result()).exit_code == 3


@case(needs=EXEC)
async def cancellation_at_any_moment_leaves_a_working_sandbox(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for steps in range(25):
        running = asyncio.create_task(sandbox.exec.run("sleep 60", grace_ms=100))
        for _ in range(steps):
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait({running}, timeout=10)
        assert running.cancelled()
    assert (await sandbox.exec.run("echo works")).stdout == "works\n"
    assert await sandbox.idle()


@case("T13", needs=EXEC)
async def deadline_at_any_moment_has_one_of_two_outcomes(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for deadline in [*range(1, 41), *[20, 21, 22, 23, 24] * 20]:
        result = await sandbox.exec.run("sleep 0.02", deadline_ms=deadline)
        assert (result.cause, result.exit_code) in {(Cause.EXIT, 0), (Cause.TIMEOUT, 124)}
    assert await sandbox.idle()


@case("T4", needs=EXEC)
async def killing_what_supervises_a_command_ends_it(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    try:
        result = await sandbox.exec.run("echo $$ > pid; kill -9 $PPID; sleep 60", deadline_ms=5_000, grace_ms=200)
    finally:
        assert not sandbox.lost
    assert result.cause in {Cause.LOST, Cause.TIMEOUT}
    assert await sh(sandbox, 'kill -0 "$(cat pid)" 2>/dev/null || echo gone') == "gone"
    assert (await sandbox.exec.run("true")).ok
