"""Engines that are elsewhere: by `DOCKER_HOST`, by context, by `url`. A relay over TCP stands for another machine: no path is shared."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from b4run.errors import SandboxUnavailable
from b4run.sandbox import Deny, SandboxPolicy, docker_sandbox
from b4run.workspace import with_workspace_reader

from ...docker_engine import IMAGE, docker, needs_docker
from .conftest import Make

POLICY = SandboxPolicy(network=Deny())


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    kind, _, rest = address.partition("://")
    if kind == "unix":
        return await asyncio.open_unix_connection(rest)
    host, _, port = rest.rpartition(":")
    return await asyncio.open_connection(host, int(port))


used: list[str] = []
"""The relays that a connection came to."""


@pytest.fixture
async def relay() -> AsyncIterator[str]:
    """The address of a relay to the engine."""
    address = os.environ.get("DOCKER_HOST") or docker("context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
    tasks: set[asyncio.Task[None]] = set()

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(65_536):
                writer.write(data)
                await writer.drain()
            if writer.can_write_eof():
                writer.write_eof()
        except ConnectionError:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        used.append(told)
        engine_reader, engine_writer = await _connect(address)
        both = [asyncio.create_task(pump(reader, engine_writer)), asyncio.create_task(pump(engine_reader, writer))]
        tasks.update(both)
        await asyncio.wait(both)
        writer.close()
        engine_writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    told = f"tcp://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    yield told
    server.close()
    for task in tasks:
        task.cancel()


@pytest.fixture(params=["DOCKER_HOST", "current context", "DOCKER_CONTEXT", "context", "url"])
def options(request: pytest.FixtureRequest, relay: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The engine is named in one way, and options that go with it are returned."""
    meta = tmp_path / ".docker" / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest()
    meta.mkdir(parents=True)
    content = {"Name": "far", "Metadata": {}, "Endpoints": {"docker": {"Host": relay, "SkipTLSVerify": False}}}
    (meta / "meta.json").write_text(json.dumps(content))
    current = {"currentContext": "far"} if request.param == "current context" else {}
    (tmp_path / ".docker" / "config.json").write_text(json.dumps(current))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_CONFIG", raising=False)
    for name, value in (("DOCKER_HOST", relay), ("DOCKER_CONTEXT", "far")):
        monkeypatch.delenv(name, raising=False)
        if request.param == name:
            monkeypatch.setenv(name, value)
    return {"context": {"context": "far"}, "url": {"url": relay}}.get(request.param, {})


@needs_docker
async def test_an_engine_elsewhere_is_used_in_full(make: Make, relay: str, options: dict[str, str]) -> None:
    provider = make(**options)
    sandbox = await provider.acquire("t-1", POLICY)
    size = 3_000_000
    result = await sandbox.exec.run(f"head -c {size} /dev/zero | tee zeros | wc -c")
    assert (result.exit_code, result.stdout.strip()) == (0, str(size))

    async def read(reader: object) -> int:
        return len((await reader.read("zeros")).data)  # type: ignore[attr-defined]

    assert await with_workspace_reader(provider, "t-1", read) == size
    assert relay in used
    assert [record.thread_id for record in await provider.list_sandboxes()] == ["t-1"]
    await provider.destroy("t-1")


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [("DOCKER_HOST", "tcp://127.0.0.1:9", "did not answer"), ("DOCKER_HOST", "nonsense", "did not"), ("DOCKER_CONTEXT", "nope", "'nope'")],
)
async def test_an_engine_that_is_not_there_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, value: str, reason: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    monkeypatch.setenv(name, value)
    provider = docker_sandbox(scope="nowhere", image=IMAGE)
    with pytest.raises(SandboxUnavailable, match=f"{reason}.*DOCKER_HOST"):
        await provider.acquire("t-1", POLICY)
    await provider.aclose()
