"""The engine that tests use: whatever `DOCKER_HOST` or the current context name. Images must be on it; tests pull nothing."""

from __future__ import annotations

import functools
import os
import subprocess

import pytest

IMAGE = os.environ.get("B4_TEST_DOCKER_IMAGE", "python:3.12-bookworm")
BUSYBOX = os.environ.get("B4_TEST_DOCKER_BUSYBOX", "busybox:stable-musl")
SCOPE = "b4-tests"


@functools.cache
def absence() -> str | None:
    """Return why there is no engine to test with, or None."""
    try:
        for arguments in (("version",), ("image", "inspect", IMAGE), ("image", "inspect", BUSYBOX)):
            docker(*arguments)
    except subprocess.CalledProcessError as error:
        return f"`docker {' '.join(arguments)}` fails: {error.stderr.strip()[-200:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the docker command does not work ({type(error).__name__})"
    return None


def docker(*arguments: str) -> str:
    """Run the engine's own command, for what only it can do."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=True).stdout.strip()


needs_docker = pytest.mark.skipif(
    absence() is not None and not os.environ.get("B4_TEST_SMOKE_E2E"), reason=f"{absence()}; with B4_TEST_SMOKE_E2E=1 this is a failure"
)


@functools.cache
def runtimes() -> frozenset[str]:
    """Return the runtimes that the engine has."""
    if absence() is not None:
        return frozenset()
    return frozenset(docker("info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}").split())


needs_gvisor = pytest.mark.skipif(
    "runsc" not in runtimes() and not os.environ.get("B4_TEST_SMOKE_E2E"),
    reason=f"the engine has no runtime `runsc` ({absence() or 'it answers'}); with B4_TEST_SMOKE_E2E=1 this is a failure",
)
