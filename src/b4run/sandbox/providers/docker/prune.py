"""Removing what crashes and upgrades left on an engine. Threads' volumes and running containers stay."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from typing import Any

from b4run.errors import B4Error, SandboxUnavailable
from b4run.sandbox.contract import Leftover
from b4run.sandbox.providers.docker.engine import Engine, EngineRefused
from b4run.sandbox.providers.docker.guest_volume import present_volume
from b4run.sandbox.providers.docker.images import find_image
from b4run.sandbox.providers.docker.names import LABEL_GUEST, LABEL_OWNED_IMAGE, LABEL_READER, LABEL_SANDBOX, LABEL_SCOPE

_HELPER_SECONDS = 600
"""After which nobody is still working with a helper container: each call to the engine is bounded by less."""
_CONFLICT = 409


async def prune(engine: Engine, scope: str) -> list[Leftover]:
    """Return what was removed. Raises: SandboxUnavailable: something was not; the rest was."""
    removed: list[Leftover] = []
    failures: list[str] = []
    for kind, found in (("reader", _readers), ("helper", _helpers), ("container", _without_files), ("guest", _guests), ("image", _images)):
        async for name in found(engine, scope):
            try:
                if await _remove(engine, kind, name):
                    removed.append(Leftover(kind, name))
            except B4Error as error:
                failures.append(f"{kind} {name} ({error.message})")
    if failures:
        raise SandboxUnavailable(thread_id=scope, reason=f"{len(removed)} were removed; not {'; '.join(failures)}")
    return removed


async def _remove(engine: Engine, kind: str, name: str) -> bool:
    """Remove one; False when somebody came to use it meanwhile."""
    try:
        if kind == "guest":
            await engine.remove_volume(name)
        elif kind == "image":
            await engine.remove_image(name)
        else:
            await engine.remove_container(name)
    except EngineRefused as refusal:
        if refusal.status == _CONFLICT:
            return False
        raise
    return True


async def _readers(engine: Engine, scope: str) -> AsyncIterator[str]:
    """Readers that do not run: one that does has an opener, and goes with it."""
    for container in await engine.list_containers({"label": [f"{LABEL_SCOPE}={scope}", LABEL_READER]}, running=False):
        if _is_old(container) and container["State"] != "running":
            yield _name(container)


async def _helpers(engine: Engine, scope: str) -> AsyncIterator[str]:
    """Containers that were to carry a guest or become an image, of whatever scope: they are never started."""
    for label in (LABEL_GUEST, LABEL_OWNED_IMAGE):
        for container in await engine.list_containers({"label": [label]}, running=False):
            if LABEL_SANDBOX not in container["Labels"] and LABEL_READER not in container["Labels"] and _is_old(container):
                yield _name(container)


async def _without_files(engine: Engine, scope: str) -> AsyncIterator[str]:
    filters = {"label": [f"{LABEL_SCOPE}={scope}", LABEL_SANDBOX]}
    kept = {volume["Labels"][LABEL_SANDBOX] for volume in await engine.list_volumes(filters)}
    for container in await engine.list_containers(filters, running=False):
        if container["Labels"][LABEL_SANDBOX] not in kept:
            yield _name(container)


async def _guests(engine: Engine, scope: str) -> AsyncIterator[str]:
    present = present_volume()
    for volume in await engine.list_volumes({"label": [LABEL_GUEST], "dangling": ["true"]}):
        if volume["Name"] != present:
            yield volume["Name"]


async def _images(engine: Engine, scope: str) -> AsyncIterator[str]:
    for image in await engine.list_images({"label": [LABEL_OWNED_IMAGE]}):
        if await find_image(engine, image["Labels"][LABEL_OWNED_IMAGE]) is None:
            yield image["Id"]


def _name(container: dict[str, Any]) -> str:
    return str(container["Names"][0]).removeprefix("/")


def _is_old(container: dict[str, Any]) -> bool:
    return time.time() - float(container["Created"]) > _HELPER_SECONDS
