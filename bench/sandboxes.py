"""What is measured of every provider: a warm command, the first command of a thread, output."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from b4run.sandbox import Deny, SandboxHandle, SandboxPolicy, SandboxProvider
from bench.figures import median_ms

Open = Callable[[], AbstractAsyncContextManager[SandboxProvider]]
"""Opens a provider for one figure and removes what it kept."""

POLICY = SandboxPolicy(network=Deny())
_OUTPUT_BYTES = 100 * 1024 * 1024
_PAUSE_S = 0.05
"""Between two first commands, so that the teardown of one sandbox is not counted as the start of the next."""


@asynccontextmanager
async def one_sandbox(opened: Open) -> AsyncIterator[SandboxHandle]:
    async with opened() as provider:
        yield await provider.acquire("bench", POLICY)
        await provider.destroy("bench")


async def warm_ms(opened: Open, rounds: int = 500) -> float:
    """`true` in a sandbox that runs."""
    async with one_sandbox(opened) as sandbox:

        async def once() -> None:
            if not (await sandbox.exec.run("true")).ok:
                raise RuntimeError("the command failed")

        return await median_ms(once, rounds=rounds, warmup=20)


async def first_command_ms(opened: Open, rounds: int = 41) -> float:
    """From nothing to the answer of `true`, for a new thread each time."""
    durations = []
    async with opened() as provider:
        for number in range(rounds + 2):
            start = time.perf_counter()
            sandbox = await provider.acquire(f"t-{number}", POLICY)
            await sandbox.exec.run("true")
            durations.append(time.perf_counter() - start)
            await provider.destroy(f"t-{number}")
            await asyncio.sleep(_PAUSE_S)
    return sorted(durations[2:])[rounds // 2] * 1_000


async def output_mb_per_s(opened: Open) -> float:
    """100 MiB of a command's output, read as it comes."""
    rates = []
    async with one_sandbox(opened) as sandbox:
        for _ in range(7):
            start, size = time.perf_counter(), 0
            async for chunk in (stream := sandbox.exec.stream(f"head -c {_OUTPUT_BYTES} /dev/zero")):
                size += len(chunk.data)
            await stream.result()
            if size != _OUTPUT_BYTES:
                raise RuntimeError(f"{size} bytes came instead of {_OUTPUT_BYTES}")
            rates.append(size / 1e6 / (time.perf_counter() - start))
    return sorted(rates)[3]
