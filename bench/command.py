"""The `b4` command itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from bench.figures import Figure, median_ms

_B4 = Path(sys.executable).with_name("b4")


async def help_ms() -> float:
    """`b4 --help`, which must not load what it does not need."""

    async def once() -> None:
        subprocess.run([_B4, "--help"], check=True, stdout=subprocess.DEVNULL)

    return await median_ms(once, rounds=25)


FIGURES = (Figure("cli.help_ms", help_ms, floor="floor.python_ms", floor_goal=4.0),)
