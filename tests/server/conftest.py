"""Servers of real apps on a real port, with SQLite and PostgreSQL behind them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import httpx
import pytest

from b4run.app import open_app
from b4run.sandbox.testing import fake_sandbox
from b4run.server import Service, open_service
from b4run.server.serving import bind, listening
from b4run.testing import script

from ..databases import BOTH, database

CONFIG = "config = {}\n"
AGENT = 'from b4run.agents import Agent\nagent = Agent(model="openai:none", prompt="Help.")\n'
OWNED = "from b4run.access import owned_threads\npolicy = owned_threads()\n"
BY_HEADER = """
from b4run.access import Principal, Rejected

async def authenticate(request):
    name = request.headers.get("x-user")
    if name == "nobody":
        return Rejected(401)
    return Principal(name) if name else None
"""
ROUTE = "/fix#agent"


@dataclass
class Served:
    """A server under test: its address, a client, and what is behind it."""

    url: str
    http: httpx.AsyncClient
    service: Service

    async def create(self, **body: Any) -> str:
        answer = await self.http.post("/threads", json=body)
        assert answer.status_code == 200, answer.text
        return str(answer.json()["thread_id"])

    async def stream(self, method: str, path: str, *, headers: Any = None, **body: Any) -> list[tuple[str, Any]]:
        """All events of a stream, as pairs of their name and their data."""
        async with self.http.stream(method, path, json=body or None, headers=headers) as answer:
            assert answer.status_code == 200, await answer.aread()
            return [event async for event in events(answer)]


async def events(answer: httpx.Response) -> AsyncIterator[tuple[str, Any]]:
    name = ""
    async for line in answer.aiter_lines():
        if line.startswith("event: "):
            name = line.removeprefix("event: ")
        elif line.startswith("data: "):
            yield name, json.loads(line.removeprefix("data: "))


def code_of(answer: httpx.Response) -> tuple[int, str]:
    """Status and code of a refusal, whose envelope is checked."""
    error = answer.json()["error"]
    assert set(error) <= {"kind", "message", "details", "code"}, error
    assert error["kind"] in ("request_error", "execution_error") and error["message"]
    return answer.status_code, error["details"]["code"]


@pytest.fixture(params=BOTH)
def database_url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    with database(request.param, tmp_path_factory.mktemp("database")) as url:
        yield url


@pytest.fixture
def make_app(tmp_path: Path) -> Callable[..., Path]:
    def make(files: dict[str, str] | None = None) -> Path:
        for name, text in ({"b4_config.py": CONFIG, "app/fix/agent.py": AGENT} | (files or {})).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        return tmp_path

    return make


@pytest.fixture
async def serve(make_app: Callable[..., Path], database_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Any]:
    """Serve an app of these files; several calls with `root` serve the same one from several services."""
    monkeypatch.setenv("B4_DATABASE_URL", database_url)
    stack = AsyncExitStack()

    @asynccontextmanager
    async def _served(root: Path, model: Any, provider: Any, settings: dict[str, Any]) -> AsyncIterator[Served]:
        async with open_app(root, model=model, provider=provider) as app, open_service(app, **settings) as service:
            sock = bind("127.0.0.1", 0)
            url = f"http://127.0.0.1:{sock.getsockname()[1]}"
            async with listening(service, sock), httpx.AsyncClient(base_url=url, timeout=30) as http:
                yield Served(url, http, service)

    async def start(files: Any = None, *, model: Any = None, provider: Any = None, root: Path | None = None, **settings: Any) -> Served:
        folder = make_app(files) if root is None else root
        # False: the app's own.
        used = script().user("go").replies("done").model() if model is None else model or None
        settings = {"drain_s": 0.5} | settings
        return await stack.enter_async_context(_served(folder, used, fake_sandbox() if provider is None else provider, settings))

    async with stack:
        yield start


async def until(condition: Callable[[], Any], seconds: float = 5.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(seconds):
        while True:
            found = condition()
            if asyncio.iscoroutine(found):
                found = await found
            if found:
                return
            await asyncio.sleep(0.01)
