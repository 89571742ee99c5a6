"""What is measured of every provider: a warm command, the first command of a thread, output."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

from b4run.sandbox import Deny, SandboxHandle, SandboxPolicy, SandboxProvider, WorkspaceReader
from b4run.workspace import inspect_workspace, with_workspace_reader
from bench.figures import median_ms

Open = Callable[[], AbstractAsyncContextManager[SandboxProvider]]
"""Opens a provider for one figure and removes what it kept."""

POLICY = SandboxPolicy(network=Deny())
OUTPUT_BYTES = 100 * 1024 * 1024
PAUSE_S = 0.05
"""Between two first commands, so that the teardown of one sandbox is not counted as the start of the next."""


@asynccontextmanager
async def one_sandbox(opened: Open) -> AsyncIterator[SandboxHandle]:
    async with opened() as provider:
        try:
            yield await provider.acquire("bench", POLICY)
        finally:
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
    started, ended = itertools.count(), itertools.count()
    async with opened() as provider:

        async def once() -> None:
            sandbox = await provider.acquire(f"t-{next(started)}", POLICY)
            if not (await sandbox.exec.run("true")).ok:
                raise RuntimeError("the command failed")

        async def after() -> None:
            await provider.destroy(f"t-{next(ended)}")
            await asyncio.sleep(PAUSE_S)

        return await median_ms(once, rounds=rounds, warmup=2, after=after)


async def output_mb_per_s(opened: Open) -> float:
    """100 MiB of a command's output, read as it comes."""
    rates = []
    async with one_sandbox(opened) as sandbox:
        for _ in range(7):
            start, size = time.perf_counter(), 0
            async for chunk in (stream := sandbox.exec.stream(f"head -c {OUTPUT_BYTES} /dev/zero")):
                size += len(chunk.data)
            await stream.result()
            if size != OUTPUT_BYTES:
                raise RuntimeError(f"{size} bytes came instead of {OUTPUT_BYTES}")
            rates.append(size / 1e6 / (time.perf_counter() - start))
    return sorted(rates)[3]


async def inspect_s(opened: Open, rounds: int = 7) -> float:
    """The inspection of 10,000 entries, some 9,900 of them small text files, over an open reader."""
    folders, files = 100, 99
    script = (
        f"i=0; while [ $i -lt {folders} ]; do mkdir d$i; j=0;"
        f" while [ $j -lt {files} ]; do echo some text of file $i/$j > d$i/f$j; j=$((j+1)); done; i=$((i+1)); done"
    )
    async with opened() as provider:
        try:
            sandbox = await provider.acquire("bench", POLICY)
            if not (await sandbox.exec.run(script, deadline_ms=60_000)).ok:
                raise RuntimeError("the command failed")
            return await with_workspace_reader(provider, "bench", partial(_inspect_s, files=folders * files, rounds=rounds))
        finally:
            await provider.destroy("bench")


async def _inspect_s(reader: WorkspaceReader, *, files: int, rounds: int) -> float:
    async def once() -> None:
        if len((await inspect_workspace(reader)).files) != files:
            raise RuntimeError("not every file came")

    return await median_ms(once, rounds=rounds, warmup=1) / 1_000
