"""Probes: whether the process is there, and whether it can serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from b4run.server.refusals import NO_STORE
from b4run.server.service import Service

CHECK_SECONDS = 5.0

logger = logging.getLogger("b4run.server")


async def healthz(request: Request) -> Response:
    """Alive, whatever becomes of the stores."""
    return JSONResponse({"status": "ready"}, headers=NO_STORE)


async def readyz(request: Request) -> Response:
    """Asks every store; names those that fail, without a word of where they are."""
    service: Service = request.app.state.service
    checks: dict[str, Callable[[], Awaitable[Any]]] = {
        "threads": lambda: service.app.storage.threads.list(limit=1),
        "checkpoints": lambda: service.app.checkpoints.aget_tuple({"configurable": {"thread_id": "readyz", "checkpoint_ns": ""}}),
        "permissions": lambda: service.app.storage.grants.list("readyz"),
    }
    results = await asyncio.gather(*(_check(name, check) for name, check in checks.items()))
    found: dict[str, Mapping[str, Any]] = dict(zip(checks, results, strict=True))
    if service.deletion.failing:
        found["deletions"] = {"status": "ok", "unfinished": len(service.deletion.failing)}
    if service.closing:
        found["server"] = {"status": "shutting_down"}
    ready = all(check["status"] == "ok" for check in found.values())
    return JSONResponse({"status": "ready" if ready else "not_ready", "checks": found}, 200 if ready else 503, headers=NO_STORE)


async def _check(name: str, check: Callable[[], Awaitable[Any]]) -> Mapping[str, Any]:
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await check()
    except Exception as error:  # noqa: BLE001 - whatever a store raises, the others are told, too
        logger.warning("a store does not answer", extra={"event": "server.not_ready", "store": name, "reason": str(error)})
        return {"status": "failed"}
    return {"status": "ok"}
