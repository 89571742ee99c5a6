"""Docker with gVisor keeps the whole contract."""

from __future__ import annotations

from b4run.sandbox.providers.docker import docker_sandbox
from b4run.sandbox.testing import run_provider_conformance

from .docker_engine import IMAGE, SCOPE, needs_gvisor
from .test_conformance_docker import kill_guest

TestGvisor = needs_gvisor(
    run_provider_conformance(
        name="gvisor", make_provider=lambda: docker_sandbox(scope=SCOPE, image=IMAGE, runtime="runsc"), kill_guest=kill_guest
    )
)
