"""Docker with gVisor keeps the whole contract."""

from __future__ import annotations

import os

import pytest

from b4run.sandbox.providers.docker import docker_sandbox
from b4run.sandbox.testing import run_provider_conformance

from .docker_engine import IMAGE, SCOPE, docker, needs_docker
from .test_conformance_docker import kill_guest

RUNTIME = os.environ.get("B4_TEST_GVISOR_RUNTIME", "runsc")


@pytest.fixture(autouse=True, scope="module")
def runtime() -> None:
    if RUNTIME not in docker("info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}").split():
        if os.environ.get("B4_TEST_SMOKE_E2E"):
            pytest.fail(f"the engine has no runtime {RUNTIME!r}")
        pytest.skip(f"the engine has no runtime {RUNTIME!r}; with B4_TEST_SMOKE_E2E=1 this is a failure")


TestGvisor = needs_docker(
    run_provider_conformance(
        name="gvisor", make_provider=lambda: docker_sandbox(scope=SCOPE, image=IMAGE, runtime=RUNTIME), kill_guest=kill_guest
    )
)
