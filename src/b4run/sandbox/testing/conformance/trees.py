"""Process trees: nothing of a command outlives its end by force, whatever it did to hide; what was left on purpose lives on."""

from __future__ import annotations

import asyncio
import time

from b4run.errors import CommandRefused
from b4run.sandbox.contract import Capability, Cause, SandboxHandle, Stream
from b4run.sandbox.policy import SandboxPolicy, Security
from b4run.sandbox.testing.trial import Trial, case, sh

EXEC = (Capability.EXEC,)

HIDERS = {
    "child": "tick &",
    "session": "(setsid sh -c '. ./tick' &)",
    "double-fork": "( (tick &) & )",
    "double-session": "setsid sh -c '(setsid sh -c \". ./tick\" &) & exit' &",
    "ignores-term": "(trap '' TERM HUP INT; tick) &",
    "closed-descriptors": "(setsid sh -c 'exec <&- >&- 2>&-; . ./tick' &)",
    "no-hangup": "(trap '' HUP; setsid sh -c '. ./tick') & ",
}
"""Ways for a process to get away from its parent; `tick` writes on for ever."""

TICK = "while :; do echo x >> ticks; sleep 0.05; done"


async def _hide(sandbox: SandboxHandle, hider: str) -> str:
    """Return a command that starts a hidden process, waits for its first sign, then waits itself."""
    await sandbox.files.write("tick", TICK.encode())
    await sandbox.files.write("ticks", b"")
    return f"tick() {{ . ./tick; }}; {hider}\nuntil [ -s ticks ]; do sleep 0.02; done; echo started; exec sleep 60"


async def _still(sandbox: SandboxHandle) -> bool:
    """Whether nobody writes ticks any more."""
    before = await sh(sandbox, "wc -c < ticks; sleep 0.25; wc -c < ticks")
    first, second = before.split()
    return first == second


@case("T6", "T9", "T13", needs=EXEC, limit_s=120)
async def timeout_ends_whatever_hides(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for name, hider in HIDERS.items():
        result = await sandbox.exec.run(await _hide(sandbox, hider), deadline_ms=1_000, grace_ms=200)
        assert (result.cause, result.exit_code, result.stdout) == (Cause.TIMEOUT, 124, "started\n"), name
        assert await _still(sandbox), name
    assert await sandbox.idle()


@case("T6", "T18", needs=EXEC, limit_s=120)
async def cancel_ends_whatever_hides(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for name, hider in HIDERS.items():
        job = await sandbox.exec.start(await _hide(sandbox, hider))
        await sh(sandbox, "until [ -s ticks ]; do sleep 0.02; done")
        await job.cancel(grace_ms=200)
        assert (await job.wait()).cause is Cause.CANCELLED, name
        assert await _still(sandbox), name


@case("T6", "T96", needs=EXEC)
async def cancelled_caller_leaves_nothing_behind(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    running = asyncio.create_task(sandbox.exec.run(await _hide(sandbox, HIDERS["double-session"]), grace_ms=200))
    await sh(sandbox, "until [ -s ticks ]; do sleep 0.02; done")
    running.cancel()
    await asyncio.wait({running}, timeout=10)
    assert running.cancelled()
    assert await _still(sandbox)


@case("T1", "T2", needs=EXEC)
async def background_child_holding_stdout_does_not_hold_the_caller(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for command in ("sleep 60 & echo hi", "(sleep 60 &) ; echo hi", "setsid sleep 60 & echo hi", "sleep 60 2>&1 & echo hi"):
        began = time.monotonic()
        result = await sandbox.exec.run(command, deadline_ms=20_000)
        assert time.monotonic() - began < 2, command
        assert (result.stdout, result.exit_code, result.cause) == ("hi\n", 0, Cause.EXIT)


@case("T12", "T22", needs=EXEC)
async def background_child_lives_on_and_is_found(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run("while :; do echo x >> ticks; sleep 0.05; done & echo $!", deadline_ms=500)
    pid = result.stdout.strip()
    await asyncio.sleep(0.7)
    assert not await _still(sandbox)
    assert [(info.job, info.running, info.alive) for info in await sandbox.exec.jobs() if info.alive] == [(result.job, False, True)]
    await sh(sandbox, f"kill {pid}")
    assert await _still(sandbox)


@case("T20", needs=EXEC)
async def no_zombies_are_left(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sh(sandbox, "i=0; while [ $i -lt 50 ]; do (sleep 0.01 & ) ; (setsid sleep 0.01 &); i=$((i+1)); done")
    count = "n=0; for f in /proc/[0-9]*/stat; do read -r line < $f 2>/dev/null && case $line in *') Z '*) n=$((n+1));; esac; done; echo $n"
    deadline = time.monotonic() + 10
    while await sh(sandbox, count) != "0":
        assert time.monotonic() < deadline, "zombies stay"
        await asyncio.sleep(0.1)


@case("T114", needs=(Capability.EXEC, Capability.PIDS_LIMIT), limit_s=120)
async def fork_bomb_is_ended_by_its_deadline(trial: Trial) -> None:
    sandbox = await trial.sandbox(SandboxPolicy(security=Security(pids_limit=64)))
    bomb = "b() { b & b & wait; }; b 2>/dev/null & exec sleep 60"
    result = await sandbox.exec.run(bomb, deadline_ms=1_500, grace_ms=300)
    assert (result.cause, result.exit_code) == (Cause.TIMEOUT, 124)
    assert await _works_again(sandbox)


@case("T114", needs=(Capability.EXEC, Capability.PIDS_LIMIT), limit_s=120)
async def fork_bomb_left_behind_is_ended_by_cancel(trial: Trial) -> None:
    sandbox = await trial.sandbox(SandboxPolicy(security=Security(pids_limit=64)))
    result = await sandbox.exec.run("b() { b | b & }; b 2>/dev/null; exit 0", deadline_ms=10_000)
    assert result.cause is Cause.EXIT
    await sandbox.exec.job(result.job).cancel(grace_ms=200)
    assert await _works_again(sandbox)


@case("T114", needs=(Capability.EXEC, Capability.PIDS_LIMIT), limit_s=120)
async def full_sandbox_refuses_a_command_and_recovers(trial: Trial) -> None:
    sandbox = await trial.sandbox(SandboxPolicy(security=Security(pids_limit=64)))
    crowd = "i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; wait"
    full = await sandbox.exec.start(crowd)
    async with asyncio.timeout(20):
        while b"fork" not in (await full.read(Stream.STDERR)).data:
            await asyncio.sleep(0.05)
    try:
        more = await sandbox.exec.run(crowd, deadline_ms=10_000)
    except CommandRefused:
        pass
    else:
        assert more.exit_code != 0
        await sandbox.exec.job(more.job).cancel(grace_ms=200)
    await sandbox.files.write("a", b"files work meanwhile")
    await full.cancel(grace_ms=200)
    assert await _works_again(sandbox)


async def _works_again(sandbox: SandboxHandle) -> bool:
    assert not sandbox.lost
    many = await sandbox.exec.run("i=0; while [ $i -lt 30 ]; do sleep 0.1 & i=$((i+1)); done; wait; echo works", deadline_ms=20_000)
    return many.stdout == "works\n"
