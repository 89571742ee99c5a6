"""Why a container's guest is gone, as the engine tells it."""

from __future__ import annotations

import asyncio

from b4run.errors import B4Error
from b4run.sandbox.guest.channel import ChannelClosed
from b4run.sandbox.providers.docker.engine import Engine

_SETTLE_SECONDS = 1.0
"""That the engine gets to notice what its runtime knows already."""
_LOOK_SECONDS = 0.05
_ANSWER_SECONDS = 5.0


async def explain_end(engine: Engine, container: str, memory_mb: int | None) -> ChannelClosed:
    """Return what happened to the container, within some seconds; never raises."""
    try:
        async with asyncio.timeout(_ANSWER_SECONDS):
            return await _look(engine, container, memory_mb)
    except (B4Error, TimeoutError):
        return ChannelClosed("the engine does not answer, and the connection to the guest has ended")


async def _look(engine: Engine, container: str, memory_mb: int | None) -> ChannelClosed:
    until = asyncio.get_running_loop().time() + _SETTLE_SECONDS
    while True:
        found = await engine.find("look up a container", f"containers/{container}/json")
        if found is None:
            return ChannelClosed("its container was removed")
        state = found["State"]
        if not state["Running"]:
            break
        if asyncio.get_running_loop().time() > until:
            return ChannelClosed("the connection to its guest has ended")
        await asyncio.sleep(_LOOK_SECONDS)
    if state.get("OOMKilled") and memory_mb is not None:
        return ChannelClosed(f"its memory limit of {memory_mb} MiB was passed", "oom")
    return ChannelClosed(f"its container ended with exit code {state['ExitCode']}")
