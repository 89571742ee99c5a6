"""Sandboxes as containers of a Docker Engine, with runc, gVisor or another runtime. Needs the extra `b4run[docker]`."""

from __future__ import annotations

from b4run.sandbox.providers.docker.provider import DockerProvider, docker_sandbox

__all__ = ["DockerProvider", "docker_sandbox"]
