"""200 threads that stream at once: how late the server's event loop is meanwhile, and whether anything is lost."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

import httpx

from bench.figures import Figure

STREAMS = 200
CHUNKS = 100
ROOT = Path(__file__).parents[1]
CONFIG = "config = {}\n"
AGENT = f'''
import asyncio

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

from b4run.agents import Agent


class Talker(BaseChatModel):
    """Says a word each 50 ms."""

    @property
    def _llm_type(self):
        return "talker"

    def _generate(self, messages, stop=None, run_manager=None, **_):
        return ChatResult(generations=[ChatGeneration(message=AIMessage("x"))])

    async def _astream(self, messages, stop=None, run_manager=None, **_):
        for number in range({CHUNKS}):
            await asyncio.sleep(0.05)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"word{{number}} "))

    def bind_tools(self, tools, **_):
        return self


agent = Agent(model=Talker(), prompt="Talk.")
'''


async def lag_p99_ms() -> float:
    """The 99th percentile of how much later than asked a 5 ms sleep returns in a server process that streams to all of them.

    Raises:
        RuntimeError: a stream did not end with everything that its run told.
    """
    with tempfile.TemporaryDirectory() as folder:
        write_app(Path(folder))
        command = [sys.executable, "-m", "bench.served", folder]
        server = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        assert server.stdin is not None and server.stdout is not None
        try:
            url = (await server.stdout.readline()).decode().strip()
            async with httpx.AsyncClient(base_url=url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:
                counts = await asyncio.gather(*(stream(http, f"t-{number}") for number in range(STREAMS)))
            if counts != [CHUNKS] * STREAMS:
                raise RuntimeError(f"{sum(count != CHUNKS for count in counts)} of {STREAMS} streams lost something")
            server.stdin.write(b"\n")
            lags = sorted(json.loads(await server.stdout.readline()))
        finally:
            server.stdin.close()
            await asyncio.wait_for(server.wait(), 30)
    return float(lags[int(len(lags) * 0.99)])


def write_app(folder: Path) -> None:
    """Write an app whose agent talks for five seconds."""
    (folder / "app" / "fix").mkdir(parents=True)
    (folder / "b4_config.py").write_text(CONFIG)
    (folder / "app" / "fix" / "agent.py").write_text(AGENT)


async def stream(http: httpx.AsyncClient, thread: str) -> int:
    """Follow one run to its end; return how many pieces it told, or -1 when it did not end well."""
    chunks, last = 0, ""
    async with http.stream("POST", f"/threads/{thread}/runs/stream", json={"route": "/fix#agent", "input": "hi"}) as answer:
        async for line in answer.aiter_lines():
            chunks += line == "event: chunk"
            last = line if line.startswith("data: ") else last
    return chunks if '{"output":"word0' in last else -1


FIGURES = (Figure("server.stream_200.loop_lag_p99_ms", lag_p99_ms, goal=50.0),)
