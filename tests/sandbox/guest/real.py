"""A real guest, started as a plain subprocess: nothing confines it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from b4run.sandbox.guest.binary import guest_binary
from b4run.sandbox.guest.client import GuestClient, Timing
from b4run.sandbox.guest.handle import GuestSandbox
from b4run.sandbox.guest.stream_channel import SocketChannel


@dataclass
class Guest:
    sandbox: GuestSandbox
    client: GuestClient
    process: asyncio.subprocess.Process
    workspace: Path


@asynccontextmanager
async def started(workspace: Path, timing: Timing | None = None) -> AsyncIterator[Guest]:
    workspace.mkdir()
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(guest_binary(), "serve", "--root", workspace, "--stream", "0", stdin=theirs, env={})
    environment = {"PATH": os.environ["PATH"], "HOME": str(workspace), "LANG": "C.UTF-8"}
    client = await GuestClient.connect(SocketChannel(ours), thread_id="t-1", environment=environment, timing=timing)

    async def end() -> None:
        async with asyncio.timeout(10):
            await process.wait()

    sandbox = GuestSandbox(client, aclose=end)
    try:
        yield Guest(sandbox, client, process, workspace)
    finally:
        await sandbox.aclose()
