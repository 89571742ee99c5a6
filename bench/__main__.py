"""`python -m bench [--json FILE] [--only PREFIX…]`: measure, print a table, write a flat JSON object."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path

from bench import bubblewrap, command, docker, floors, peers, server, workspaces
from bench.figures import Figure

FIGURES = (*floors.FIGURES, *bubblewrap.FIGURES, *docker.FIGURES, *workspaces.FIGURES, *server.FIGURES, *peers.FIGURES, *command.FIGURES)
_FIGURE_S = 180.0
"""What one figure may take; what does not answer is not waited for longer."""


def chosen(prefixes: list[str]) -> list[Figure]:
    """Return the figures asked for, and the floors that they are compared with."""
    wanted = [figure for figure in FIGURES if not prefixes or any(figure.name.startswith(prefix) for prefix in prefixes)]
    names = {figure.name for figure in wanted} | {figure.floor for figure in wanted}
    return [figure for figure in FIGURES if figure.name in names]


def row(figure: Figure, values: Mapping[str, float]) -> str:
    """Return one line of the table."""
    value = values[figure.name]
    parts = [f"{figure.name:<40}{value:>12,.2f}"]
    than = "≥" if figure.more_is_better else "≤"
    if figure.goal is not None:
        parts.append(f"goal {than} {figure.goal:,.1f}")
    if figure.floor is not None and figure.floor_goal is not None:
        parts.append(f"{value / values[figure.floor]:.3g} × {figure.floor} (goal {than} {figure.floor_goal:g})")
    return "   ".join(parts)


async def measure(figures: list[Figure]) -> dict[str, float]:
    """Measure one after the other, telling which on stderr."""
    values: dict[str, float] = {}
    for figure in figures:
        if (absence := figure.absence()) is not None:
            sys.stderr.write(f"leaving out {figure.name}: {absence}\n")
            continue
        sys.stderr.write(f"measuring {figure.name}\n")
        async with asyncio.timeout(_FIGURE_S):
            values[figure.name] = round(await figure.measure(), 3)
    return values


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures as one flat object")
    parser.add_argument("--only", nargs="+", default=[], metavar="PREFIX", help="measure only figures whose names start so")
    options = parser.parse_args()
    figures = chosen(options.only)
    if not figures:
        parser.error(f"no figure starts with {' or '.join(options.only)}; there are {', '.join(f.name for f in FIGURES)}")
    values = asyncio.run(measure(figures))
    for figure in (figure for figure in figures if figure.name in values):
        sys.stdout.write(row(figure, values) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps(values, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
