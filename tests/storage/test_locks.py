"""Locks between tasks, storages and processes, on both databases."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from b4run.errors import DeadlinePassed
from b4run.storage import Storage, open_storage

from ..databases import BOTH, database


@pytest.fixture(params=BOTH)
def url(request: pytest.FixtureRequest, tmp_path: Path):  # type: ignore[no-untyped-def]
    with database(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def storage(url: str) -> AsyncIterator[Storage]:
    async with open_storage(url) as opened:
        yield opened


async def test_one_at_a_time_within_a_process_and_between_storages(storage: Storage, url: str) -> None:
    inside = most = turns = 0

    async def work(of: Storage) -> None:
        nonlocal inside, most, turns
        async with of.locks.hold("x", deadline_s=20):
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0.002)
            inside -= 1
            turns += 1

    async with open_storage(url) as other:
        await asyncio.gather(*(work(of) for of in (storage, other) for _ in range(10)))
    assert (most, turns) == (1, 20)


async def test_fifty_names_at_once_need_no_fifty_connections(storage: Storage) -> None:
    async def work(number: int) -> None:
        async with storage.locks.hold(f"n-{number}", deadline_s=10):
            await asyncio.sleep(0.05)
            await storage.grants.list()

    async with asyncio.timeout(20):
        await asyncio.gather(*(work(number) for number in range(50)))


async def test_who_waits_too_long_is_told_and_holds_nothing(storage: Storage, url: str) -> None:
    async with open_storage(url) as other, other.locks.hold("x", deadline_s=1):
        for of in (storage, other):
            with pytest.raises(DeadlinePassed, match="works on x"):
                async with of.locks.hold("x", deadline_s=0.1):
                    pass
        async with storage.locks.hold("y", deadline_s=1):
            pass
    async with storage.locks.hold("x", deadline_s=1):
        pass


async def test_a_cancelled_wait_holds_nothing(storage: Storage, url: str) -> None:
    async with open_storage(url) as other:
        for delay in (0, 0.001, 0.003, 0.01, 0.03):
            async with other.locks.hold("x", deadline_s=1):

                async def wait() -> None:
                    async with storage.locks.hold("x", deadline_s=10):
                        await asyncio.sleep(10)

                task = asyncio.create_task(wait())
                await asyncio.sleep(delay)
            await asyncio.sleep(delay)
            task.cancel()
            await asyncio.wait({task})
            async with other.locks.hold("x", deadline_s=2):
                pass


HOLDER = """
import asyncio, sys
from b4run.storage import open_storage
async def main():
    async with open_storage(sys.argv[1]) as storage, storage.locks.hold("x", deadline_s=5):
        print("held", flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_killed_holder_gives_it_up(storage: Storage, url: str) -> None:
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]}
    with subprocess.Popen([sys.executable, "-c", HOLDER, url], stdout=subprocess.PIPE, env=environment) as holder:
        assert holder.stdout is not None
        assert await asyncio.to_thread(holder.stdout.readline) == b"held\n"
        with pytest.raises(DeadlinePassed):
            async with storage.locks.hold("x", deadline_s=0.1):
                pass
        holder.send_signal(signal.SIGKILL)
        async with storage.locks.hold("x", deadline_s=10):
            pass


async def test_locks_leave_no_file(storage: Storage, url: str, tmp_path: Path) -> None:
    for name in ("x", "y"):
        async with storage.locks.hold(name, deadline_s=1):
            pass
    assert list(tmp_path.rglob("locks/*")) == []
