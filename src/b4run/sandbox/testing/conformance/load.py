"""Many commands: nothing is left of them, inside or here."""

from __future__ import annotations

import asyncio
import gc
import os

from b4run.sandbox.contract import Capability, SandboxHandle
from b4run.sandbox.testing.conformance.output import MIB, resident_bytes
from b4run.sandbox.testing.trial import Trial, case, sh

EXEC = (Capability.EXEC,)

COUNT = "set -- /proc/[0-9]*; n=0; for f in /proc/[0-9]*/status; do while read -r k v u; do [ $k = VmRSS: ] && n=$((n+v)); done < $f; done"


RESERVE = 1
RESERVE_KB = 2_048
"""A guest may have the process for the next command ready, or not yet, at the moment that is looked at; and what it holds at most."""


async def _inside(sandbox: SandboxHandle) -> tuple[int, int]:
    """Return how many processes the sandbox has and how many kB they hold."""
    processes, kilobytes = (await sh(sandbox, f"{{ {COUNT}; }} 2>/dev/null; echo $# $n")).split()
    return int(processes), int(kilobytes)


@case("T20", "T37", needs=EXEC, limit_s=180, alone=True)
async def thousand_short_commands_leave_nothing(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for _ in range(50):
        await sandbox.exec.run("true")
    inside = await _inside(sandbox)
    gc.collect()
    descriptors, memory, tasks = len(os.listdir("/proc/self/fd")), resident_bytes(), len(asyncio.all_tasks())
    for number in range(1_000):
        result = await sandbox.exec.run(f"echo {number}")
        assert result.stdout == f"{number}\n"
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    assert len(asyncio.all_tasks()) == tasks
    assert resident_bytes() - memory < 8 * MIB
    after = await _inside(sandbox)
    assert after[0] <= inside[0] + RESERVE
    assert after[1] - inside[1] < 1_024 + RESERVE * RESERVE_KB


@case("T20", needs=EXEC, limit_s=180, alone=True)
async def failing_commands_leave_nothing(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sh(sandbox, "true")
    inside = await _inside(sandbox)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        await sandbox.exec.run("sleep 60 & (setsid sleep 60 &); sleep 60", deadline_ms=20, grace_ms=10)
        await sandbox.exec.run("head -c 2000000 /dev/zero; kill -9 $$")
    assert len(os.listdir("/proc/self/fd")) <= descriptors
    after = await _inside(sandbox)
    assert after[0] <= inside[0] + RESERVE
    assert await sandbox.exec.jobs() == []


@case("T95", limit_s=180, alone=True)
async def sandboxes_made_and_removed_leave_nothing_here(trial: Trial) -> None:
    thread = trial.thread()
    await (await trial.sandbox(thread_id=thread)).files.write("a", b"a")
    await trial.provider.destroy(thread)
    descriptors = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        await (await trial.sandbox(thread_id=thread)).files.write("a", b"a")
        await trial.provider.destroy(thread)
    assert len(os.listdir("/proc/self/fd")) <= descriptors
