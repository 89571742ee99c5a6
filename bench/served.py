"""A server process whose event loop is watched: `python -m bench.served FOLDER`; prints its URL, then on a line of input the lags."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from b4run.app import open_app
from b4run.server import open_service
from b4run.server.serving import bind, listening

_SLEEP_S = 0.005


async def main() -> None:
    lags: list[float] = []

    async def watch() -> None:
        while True:
            before = time.perf_counter()
            await asyncio.sleep(_SLEEP_S)
            lags.append((time.perf_counter() - before - _SLEEP_S) * 1_000)

    async with open_app(sys.argv[1]) as app, open_service(app, drain_s=1) as service:
        sock = bind("127.0.0.1", 0)
        async with listening(service, sock):
            watching = asyncio.create_task(watch())
            print(f"http://127.0.0.1:{sock.getsockname()[1]}", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
            watching.cancel()
            print(json.dumps(lags), flush=True)
            await asyncio.to_thread(sys.stdin.readline)


if __name__ == "__main__":
    asyncio.run(main())
