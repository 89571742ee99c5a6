"""The Docker provider beside what the engine itself offers. Left out where no engine answers.

`B4_TEST_DOCKER_IMAGE` names the image (default `python:3.12-bookworm`), which must be on the engine.
"""

from __future__ import annotations

import asyncio
import functools
import os
import statistics
import subprocess
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial

from aiodocker import Docker

from b4run.sandbox import SandboxProvider, docker_sandbox
from bench import sandboxes
from bench.figures import Figure, median_ms

IMAGE = os.environ.get("B4_TEST_DOCKER_IMAGE", "python:3.12-bookworm")
LABEL = "b4.bench"


def cli(*arguments: str) -> str:
    """Return what the `docker` command prints."""
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=60, check=True).stdout.strip()


@functools.cache
def absence(runtime: str | None = None) -> str | None:
    """Return why there is nothing to measure, or None."""
    try:
        runtimes = cli("info", "--format", "{{range $name, $_ := .Runtimes}}{{$name}} {{end}}").split()
        cli("image", "inspect", "--format", "{{.Id}}", IMAGE)
    except (OSError, subprocess.SubprocessError):
        return f"no Docker Engine with the image {IMAGE} answers"
    return None if runtime is None or runtime in runtimes else f"the engine has no runtime {runtime}"


@asynccontextmanager
async def opened(runtime: str | None = None) -> AsyncIterator[SandboxProvider]:
    provider = docker_sandbox(scope=f"bench-{uuid.uuid4().hex[:8]}", image=IMAGE, runtime=runtime)
    try:
        yield provider
    finally:
        await provider.aclose()


@contextmanager
def labelled() -> Iterator[str]:
    """A value of `LABEL` for containers of one measurement, which removes them all, however it ends."""
    value = uuid.uuid4().hex
    try:
        yield value
    finally:
        remove(value)


def remove(value: str) -> None:
    """Remove every container with this value of `LABEL`, at once: one that ignores SIGTERM would be waited for."""
    if names := cli("ps", "--all", "--quiet", "--filter", f"label={LABEL}={value}").split():
        cli("rm", "--force", *names)


async def run_ms() -> float:
    """`docker run --rm IMAGE true`."""
    with labelled() as value:

        async def once() -> None:
            cli("run", "--rm", "--network", "none", "--label", f"{LABEL}={value}", IMAGE, "true")

        return await median_ms(once, rounds=15)


@contextmanager
def _container() -> Iterator[str]:
    with labelled() as value:
        yield cli("run", "-d", "--network", "none", "--label", f"{LABEL}={value}", IMAGE, "sleep", "600")


async def exec_ms() -> float:
    """`docker exec CONTAINER true`, by the command."""
    with _container() as name:

        async def once() -> None:
            cli("exec", name, "true")

        return await median_ms(once, rounds=25)


async def exec_mb_per_s() -> float:
    """Output of `docker exec CONTAINER head`, read as it comes."""
    with _container() as name:

        def once() -> float:
            start, size = time.perf_counter(), 0
            command = ["docker", "exec", name, "head", "-c", str(sandboxes.OUTPUT_BYTES), "/dev/zero"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
                assert process.stdout is not None
                while data := os.read(process.stdout.fileno(), 1 << 20):
                    size += len(data)
            if process.returncode != 0 or size != sandboxes.OUTPUT_BYTES:
                raise RuntimeError(f"{size} bytes came instead of {sandboxes.OUTPUT_BYTES}")
            return size / 1e6 / (time.perf_counter() - start)

        return statistics.median([await asyncio.to_thread(once) for _ in range(7)])


async def aiodocker_exec_ms() -> float:
    """The same through aiodocker: create, start, read to the end, ask for the code."""
    with _container() as name:
        async with Docker() as engine:
            container = await engine.containers.get(name)

            async def once() -> None:
                running = await container.exec(["true"])
                async with running.start() as stream:
                    while await stream.read_out() is not None:
                        pass
                if (await running.inspect())["ExitCode"] != 0:
                    raise RuntimeError("the command failed")

            return await median_ms(once, rounds=25)


_gvisor = partial(opened, "runsc")

FIGURES = (
    Figure("floor.docker_run_ms", run_ms, absence=absence),
    Figure("peer.docker_exec_ms", exec_ms, absence=absence),
    Figure("peer.aiodocker_exec_ms", aiodocker_exec_ms, absence=absence),
    Figure("peer.docker_exec_mb_per_s", exec_mb_per_s, absence=absence),
    Figure(
        "exec.docker.warm_ms",
        partial(sandboxes.warm_ms, opened),
        goal=2.0,
        floor="peer.docker_exec_ms",
        floor_goal=1 / 25,
        absence=absence,
    ),
    Figure(
        "acquire.docker.first_command_ms",
        partial(sandboxes.first_command_ms, opened, 11),
        floor="floor.docker_run_ms",
        floor_goal=1.1,
        absence=absence,
    ),
    Figure(
        "output.docker.mb_per_s",
        partial(sandboxes.output_mb_per_s, opened),
        goal=250.0,
        floor="peer.docker_exec_mb_per_s",
        floor_goal=1.0,
        more_is_better=True,
        absence=absence,
    ),
    Figure("inspect.10k_files_s", partial(sandboxes.inspect_s, opened), goal=1.0, absence=absence),
    Figure("exec.runsc.warm_ms", partial(sandboxes.warm_ms, _gvisor, 100), absence=partial(absence, "runsc")),
)
