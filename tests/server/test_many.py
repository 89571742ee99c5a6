"""Two hundred threads at once: none loses a word, none keeps its slot."""

from __future__ import annotations

import asyncio

import httpx

from bench.server import AGENT, CHUNKS, STREAMS, stream


async def test_two_hundred_streams_lose_nothing(serve):
    server = await serve({"app/fix/agent.py": AGENT}, model=False)
    async with httpx.AsyncClient(base_url=server.url, timeout=120, limits=httpx.Limits(max_connections=None)) as http:
        counts = await asyncio.gather(*(stream(http, f"t-{number}") for number in range(STREAMS)))
    assert counts == [CHUNKS] * STREAMS
    assert server.service.runs.active == server.service.slots.held == 0
    threads = (await server.http.get("/threads", params={"limit": 1_000})).json()["threads"]
    assert {thread["status"] for thread in threads} == {"idle"}
    assert len(threads) == STREAMS
