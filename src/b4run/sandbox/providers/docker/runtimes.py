"""Which kind of runtime an engine's runtime is."""

from __future__ import annotations

from typing import Any

from b4run.sandbox.providers.docker.engine import Engine
from b4run.sandbox.providers.docker.launch import Runtime

_GVISOR = "runsc"


async def find_runtime(engine: Engine, name: str | None) -> Runtime:
    """Return the runtime of that name, or the engine's default. One that the engine does not know is refused by it at the start."""
    info: dict[str, Any] = await engine.get("tell about itself", "info")
    known = name or str(info.get("DefaultRuntime") or "")
    entry = (info.get("Runtimes") or {}).get(known) or {}
    program = str(entry.get("path") or entry.get("runtimeType") or known)
    return Runtime(name, gvisor=_GVISOR in program.rpartition("/")[2] or known == _GVISOR)
