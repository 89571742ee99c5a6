"""Running a command's coroutine, and moving bytes between it and the process's own streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import CancelledError
from typing import Any, TypeVar

Result = TypeVar("Result")

_LINE = 65_536
_STDIN_CHUNK = 262_144
_STDIN_CHUNKS_AHEAD = 4


def run_async(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` to its end; Ctrl-C and SIGTERM cancel it, so that it releases what it holds, and raise `KeyboardInterrupt`."""

    async def guarded() -> Result:
        task = asyncio.ensure_future(work)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await task

    try:
        return asyncio.run(guarded())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None


async def read_line() -> str | None:
    """Return the next line typed at the terminal, without stopping the event loop; None when the input has ended."""
    loop = asyncio.get_running_loop()
    typed = asyncio.Event()
    loop.add_reader(0, typed.set)
    try:
        await typed.wait()
    finally:
        loop.remove_reader(0)
    # A terminal gives one line to a read, and what Python buffered of it nobody would see here.
    data = os.read(0, _LINE)
    return data.decode(errors="replace").rstrip("\n") if data else None


async def write_all(descriptor: int, data: bytes) -> None:
    """Write to one of the process's streams without stopping the event loop. Raises: BrokenPipeError."""

    def write() -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]

    await asyncio.to_thread(write)


def piped_stdin() -> AsyncIterator[bytes] | None:
    """Return what is piped into this process; None on a terminal, where nothing is passed on."""
    return None if sys.stdin is None or sys.stdin.isatty() else _read_stdin()


async def _read_stdin() -> AsyncIterator[bytes]:
    chunks: asyncio.Queue[bytes] = asyncio.Queue(_STDIN_CHUNKS_AHEAD)
    loop = asyncio.get_running_loop()

    def pump() -> None:
        # A thread of its own: a read that never returns must not hold up the end of the process.
        with contextlib.suppress(CancelledError, RuntimeError):
            while True:
                data = os.read(0, _STDIN_CHUNK)
                asyncio.run_coroutine_threadsafe(chunks.put(data), loop).result()
                if not data:
                    return

    threading.Thread(target=pump, name="stdin", daemon=True).start()
    while data := await chunks.get():
        yield data
