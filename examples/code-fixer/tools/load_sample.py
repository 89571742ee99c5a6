"""A tool of this app, beside the five that every agent has."""

from pathlib import Path
from typing import Literal

from b4run.agents import ToolContext

SAMPLES = Path(__file__).parents[1] / "samples"


async def load_sample(name: Literal["roman"], ctx: ToolContext) -> str:
    """Put a sample project with failing tests into the workspace.

    Args:
        name: Which sample.
    """
    files = [path for path in sorted((SAMPLES / name).iterdir()) if path.is_file()]
    for path in files:
        await ctx.files.write(path.name, path.read_bytes())
    return f"Wrote {', '.join(path.name for path in files)}"
