"""The embedded provider, and the memory of its guest."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from b4run.sandbox import SandboxProvider, bubblewrap_sandbox
from bench import sandboxes
from bench.figures import Figure


@asynccontextmanager
async def opened() -> AsyncIterator[SandboxProvider]:
    with tempfile.TemporaryDirectory() as state:
        provider = bubblewrap_sandbox(scope="bench", state_dir=state)
        try:
            yield provider
        finally:
            await provider.aclose()


async def guest_rss_kb() -> float:
    """Resident memory of the guest's main process after some commands."""
    async with sandboxes.one_sandbox(opened) as sandbox:
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
    Figure("exec.bubblewrap.warm_ms", partial(sandboxes.warm_ms, opened), goal=1.5, floor="floor.fork_exec_ms", floor_goal=2.0),
    Figure(
        "acquire.bubblewrap.first_command_ms",
        partial(sandboxes.first_command_ms, opened),
        goal=12.0,
        floor="floor.bwrap_ms",
        floor_goal=3.0,
    ),
    Figure("output.bubblewrap.mb_per_s", partial(sandboxes.output_mb_per_s, opened), goal=400.0, more_is_better=True),
    Figure("inspect.bubblewrap.10k_files_s", partial(sandboxes.inspect_s, opened), goal=1.0),
    Figure("guest.rss_kb", guest_rss_kb, goal=2_000.0),
)
