"""Limits that are observed from inside, with the counters of the host."""

from __future__ import annotations

import asyncio

import pytest

from b4run.sandbox.contract import Capability, Cause
from b4run.sandbox.policy import Deny, Resources, SandboxPolicy, Security

ALLOCATE = "import sys; block = bytearray(int(sys.argv[1]) * 2**20); print(len(block) // 2**20)"


@pytest.fixture
def needs(provider):
    def check(capability: Capability) -> None:
        if capability not in provider.capabilities:
            pytest.skip(f"this user has no {capability}")

    return check


async def test_memory_is_bounded_for_all_processes_together_and_the_cause_is_told(provider, needs):
    needs(Capability.MEMORY_LIMIT)
    sandbox = await provider.acquire("t-1", SandboxPolicy(network=Deny(), resources=Resources(memory_mb=128)))
    assert (await sandbox.exec.run(["python3", "-c", ALLOCATE, "48"])).stdout == "48\n"
    result = await sandbox.exec.run(["python3", "-c", ALLOCATE, "256"], deadline_ms=20_000)
    assert (result.exit_code, result.cause) == (137, Cause.OOM)
    result = await sandbox.exec.run("kill -9 $$")
    assert (result.exit_code, result.cause) == (137, Cause.SIGNAL), "a kill of another kind is not blamed on memory"
    assert (await sandbox.exec.run("echo alive")).stdout == "alive\n"


async def test_private_folders_count_as_memory(provider, needs):
    needs(Capability.MEMORY_LIMIT)
    sandbox = await provider.acquire("t-1", SandboxPolicy(network=Deny(), resources=Resources(memory_mb=64)))
    result = await sandbox.exec.run("head -c 100M /dev/zero > /tmp/fill", deadline_ms=20_000)
    assert not result.ok
    assert (await sandbox.exec.run("echo alive")).stdout == "alive\n"


async def test_a_fork_bomb_stops_at_the_limit_and_the_sandbox_goes_on(provider, needs):
    needs(Capability.PIDS_LIMIT)
    sandbox = await provider.acquire("t-1", SandboxPolicy(network=Deny(), security=Security(pids_limit=64)))
    code = (
        "import os, sys\nmade = 0\ntry:\n  while made < 500:\n    if os.fork() == 0:\n      os.pause() if hasattr(os, 'pause') else __import__('signal').pause()\n"
        "    made += 1\nexcept OSError: pass\nprint(made, flush=True)\nos.killpg(0, 9)"
    )
    result = await sandbox.exec.run(["python3", "-c", code], deadline_ms=20_000)
    assert 32 <= int(result.stdout) < 64
    assert (await sandbox.exec.run("echo alive", deadline_ms=10_000)).stdout == "alive\n"


async def test_the_share_of_a_cpu_is_bounded(provider, needs):
    needs(Capability.CPU_LIMIT)
    sandbox = await provider.acquire("t-1", SandboxPolicy(network=Deny(), resources=Resources(cpus=0.25)))
    code = "import time\nend = time.monotonic() + 1.5\nwhile time.monotonic() < end: pass\nprint(time.process_time())"
    spinners = await asyncio.gather(*(sandbox.exec.run(["python3", "-c", code], deadline_ms=20_000) for _ in range(2)))
    used = sum(float(result.stdout) for result in spinners)
    assert 0.1 < used < 0.25 * 1.5 * 1.5 + 0.1


async def test_no_core_is_dumped(provider):
    sandbox = await provider.acquire("t-1", SandboxPolicy(network=Deny()))
    assert (await sandbox.exec.run("ulimit -c; ulimit -Hc")).stdout == "0\n0\n"
