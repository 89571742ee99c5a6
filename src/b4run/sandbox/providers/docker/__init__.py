"""Sandboxes as containers of a Docker Engine, with runc, gVisor or another runtime. Needs the extra `b4run[docker]`."""

from __future__ import annotations

try:
    import aiodocker as _  # noqa: F401 - looked for here, so that its absence is told in one place
except ImportError as error:
    raise ImportError("docker_sandbox needs the package aiodocker: pip install 'b4run[docker]'") from error

from b4run.sandbox.providers.docker.provider import DockerProvider, docker_sandbox

__all__ = ["DockerProvider", "docker_sandbox"]
