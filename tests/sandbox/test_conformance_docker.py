"""Docker keeps the whole contract."""

from __future__ import annotations

import asyncio

from b4run.sandbox.contract import SandboxHandle
from b4run.sandbox.providers.docker import docker_sandbox
from b4run.sandbox.scope import resource_id
from b4run.sandbox.testing import run_provider_conformance

from .docker_engine import IMAGE, SCOPE, docker, needs_docker


async def kill_guest(sandbox: SandboxHandle) -> None:
    container = f"b4-sbx-{resource_id(SCOPE, sandbox.thread_id)}"
    await asyncio.to_thread(docker, "kill", container)


TestDocker = needs_docker(
    run_provider_conformance(name="docker", make_provider=lambda: docker_sandbox(scope=SCOPE, image=IMAGE), kill_guest=kill_guest)
)
