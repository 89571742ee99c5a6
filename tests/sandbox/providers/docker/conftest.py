"""A provider on a real engine; what a test made is removed after it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from b4run.sandbox.providers.docker import DockerProvider, docker_sandbox

from ...docker_engine import IMAGE, docker

Make = Callable[..., DockerProvider]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Make providers of one scope of this test's; at the end its containers and volumes are removed."""
    scope = f"test-{uuid.uuid4().hex[:12]}"
    made: list[DockerProvider] = []

    def provider(**options: Any) -> DockerProvider:
        made.append(docker_sandbox(**{"scope": scope, "image": IMAGE} | options))
        return made[-1]

    yield provider
    for one in made:
        await one.aclose()
    for kind in ("container", "volume"):
        found = docker(kind, "ls", "-q", *(["-a"] if kind == "container" else []), "--filter", f"label=b4.sandbox.scope={scope}").split()
        if found:
            docker(kind, "rm", "-f", *found)
