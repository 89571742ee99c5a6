"""Other sandboxes for agents on the same engine and image, without network. Left out unless `pip install 'b4run[bench]'` brought them.

Each is used as its documentation says, but for the end: the containers are removed by label, since both peers wait ten seconds
for a process that ignores SIGTERM, and llm-sandbox passes over what it could not remove.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

from bench import docker
from bench.figures import Figure, median_ms
from bench.sandboxes import PAUSE_S

_OPENAI_AGENTS = "agents.sandbox.sandboxes.docker"
_LLM_SANDBOX = "llm_sandbox.docker"
_CALL_S = 30
"""What one call of docker-py may take. It does not bound the output of a command; the deadline of the figure does."""


def absence(module: str) -> str | None:
    """Return why the peer cannot be measured, or None."""
    try:
        importlib.import_module(module)
    except ImportError as error:
        return f"there is no module {error.name} (pip install 'b4run[bench]')"
    return docker.absence()


@contextmanager
def _engine() -> Iterator[tuple[Any, str]]:
    """A client of docker-py, and a value of the label to give to containers, which removes them."""
    with docker.labelled() as value, closing(importlib.import_module("docker").from_env(timeout=_CALL_S)) as client:
        client.images.get(docker.IMAGE)  # raises where a peer would pull
        yield client, value


def _check(ok: bool) -> None:
    if not ok:
        raise RuntimeError("the command failed")


async def _started(client: Any, value: str) -> Any:
    peer = importlib.import_module(_OPENAI_AGENTS)
    options = peer.DockerSandboxClientOptions(image=docker.IMAGE, network_mode="none", labels={docker.LABEL: value})
    session = await peer.DockerSandboxClient(client).create(options=options)
    await session.start()
    return session


async def openai_agents_exec_ms() -> float:
    """`session.exec("true")` of the OpenAI Agents SDK, a shell included."""
    with _engine() as (client, value):
        session = await _started(client, value)

        async def once() -> None:
            _check((await session.exec("true")).ok())

        return await median_ms(once, rounds=25)


async def openai_agents_first_ms() -> float:
    """From nothing to the answer of `true`, for a new session each time."""
    with _engine() as (client, value):

        async def once() -> None:
            session = await _started(client, value)
            _check((await session.exec("true")).ok())

        async def after() -> None:
            docker.remove(value)
            await asyncio.sleep(PAUSE_S)

        return await median_ms(once, rounds=11, warmup=2, after=after)


async def llm_sandbox_exec_ms() -> float:
    """`session.execute_command("true")` of llm-sandbox, without a shell, in a thread since it blocks."""
    with _engine() as (client, value):
        session = importlib.import_module(_LLM_SANDBOX).SandboxDockerSession(
            client=client,
            image=docker.IMAGE,
            skip_environment_setup=True,  # it would ask a package index for a newer pip
            runtime_configs={"network_mode": "none", "labels": {docker.LABEL: value}, "command": ["sleep", "600"]},
        )
        session.open()

        async def once() -> None:
            _check((await asyncio.to_thread(session.execute_command, "true")).exit_code == 0)

        return await median_ms(once, rounds=25)


FIGURES = (
    Figure("peer.openai_agents_exec_ms", openai_agents_exec_ms, absence=partial(absence, _OPENAI_AGENTS)),
    Figure("peer.openai_agents_first_ms", openai_agents_first_ms, absence=partial(absence, _OPENAI_AGENTS)),
    Figure("peer.llm_sandbox_exec_ms", llm_sandbox_exec_ms, absence=partial(absence, _LLM_SANDBOX)),
)
