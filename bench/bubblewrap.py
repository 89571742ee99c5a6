"""The embedded provider: a warm command, the first command of a thread, output, memory."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from b4run.sandbox import Deny, SandboxHandle, SandboxPolicy, bubblewrap_sandbox, open_sandbox
from bench.figures import Figure, median_ms

_OUTPUT_BYTES = 100 * 1024 * 1024
_PAUSE_S = 0.05
"""Between two first commands, so that the teardown of one sandbox is not counted as the start of the next."""


@asynccontextmanager
async def _sandbox() -> AsyncIterator[SandboxHandle]:
    with tempfile.TemporaryDirectory() as state:
        provider = bubblewrap_sandbox(scope="bench", state_dir=state)
        async with open_sandbox(provider, thread_id="bench", policy=SandboxPolicy(network=Deny())) as sandbox:
            yield sandbox
        await provider.destroy("bench")


async def warm_ms() -> float:
    """`true` in a sandbox that runs."""
    async with _sandbox() as sandbox:

        async def once() -> None:
            if not (await sandbox.exec.run("true")).ok:
                raise RuntimeError("the command failed")

        return await median_ms(once, rounds=500, warmup=20)


async def first_command_ms() -> float:
    """From nothing to the answer of `true`, for a new thread each time."""
    numbers = itertools.count()
    policy = SandboxPolicy(network=Deny())
    durations = []
    with tempfile.TemporaryDirectory() as state:
        provider = bubblewrap_sandbox(scope="bench", state_dir=state)
        for _ in range(43):
            thread = f"t-{next(numbers)}"
            start = time.perf_counter()
            sandbox = await provider.acquire(thread, policy)
            await sandbox.exec.run("true")
            durations.append(time.perf_counter() - start)
            await provider.destroy(thread)
            await asyncio.sleep(_PAUSE_S)
        await provider.aclose()
    return sorted(durations[3:])[20] * 1_000


async def output_mb_per_s() -> float:
    """100 MiB of a command's output, read as it comes."""
    rates = []
    async with _sandbox() as sandbox:
        for _ in range(7):
            start, size = time.perf_counter(), 0
            async for chunk in (stream := sandbox.exec.stream(f"head -c {_OUTPUT_BYTES} /dev/zero")):
                size += len(chunk.data)
            await stream.result()
            if size != _OUTPUT_BYTES:
                raise RuntimeError(f"{size} bytes came instead of {_OUTPUT_BYTES}")
            rates.append(size / 1e6 / (time.perf_counter() - start))
    return sorted(rates)[3]


async def guest_rss_kb() -> float:
    """Resident memory of the guest's main process after some commands."""
    async with _sandbox() as sandbox:
        for _ in range(10):
            await sandbox.exec.run("true")
        return float(_rss_of_guest())


def _rss_of_guest() -> int:
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            text, words = status.read_text(), (status.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        inner = next((line.split() for line in text.splitlines() if line.startswith("NSpid:")), [])
        if inner[-1:] == ["1"] and len(inner) > 2 and words[1:2] == [b"serve"]:
            return int(next(line for line in text.splitlines() if line.startswith("VmRSS:")).split()[1])
    raise RuntimeError("no guest was found on this host")


FIGURES = (
    Figure("exec.bubblewrap.warm_ms", warm_ms, goal=1.5, floor="floor.fork_exec_ms", floor_goal=2.0),
    Figure("acquire.bubblewrap.first_command_ms", first_command_ms, goal=12.0, floor="floor.bwrap_ms", floor_goal=3.0),
    Figure("output.bubblewrap.mb_per_s", output_mb_per_s, goal=400.0, more_is_better=True),
    Figure("guest.rss_kb", guest_rss_kb, goal=2_000.0),
)
