"""What the machine itself costs, without b4run."""

from __future__ import annotations

import os
import shutil
import sys

from b4run.sandbox.providers.bubblewrap.bwrap import find_bubblewrap
from b4run.sandbox.providers.bubblewrap.hostfiles import program_mounts
from bench.figures import Figure, median_ms

_TRUE = shutil.which("true") or "/bin/true"


def _run(program: str, *arguments: str) -> None:
    pid = os.posix_spawn(program, [program, *arguments], {"PATH": "/usr/bin:/bin"})
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{program} failed with status {status}")


async def fork_exec_ms() -> float:
    """Start /bin/true and wait for it."""

    async def once() -> None:
        _run(_TRUE)

    return await median_ms(once, rounds=300)


async def bwrap_ms() -> float:
    """A bare bubblewrap around /bin/true: the same namespaces and the same view of the host's programs, nothing else."""
    arguments = ["--unshare-all", *program_mounts(), "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    bwrap = find_bubblewrap().path

    async def once() -> None:
        _run(bwrap, *arguments, _TRUE)

    return await median_ms(once, rounds=50)


async def python_ms() -> float:
    """A bare interpreter."""

    async def once() -> None:
        _run(sys.executable, "-c", "pass")

    return await median_ms(once, rounds=25)


FIGURES = (
    Figure("floor.fork_exec_ms", fork_exec_ms),
    Figure("floor.bwrap_ms", bwrap_ms),
    Figure("floor.python_ms", python_ms),
)
