"""Bubblewrap keeps the whole contract."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from b4run.sandbox import SandboxHandle, bubblewrap_sandbox
from b4run.sandbox.testing import run_provider_conformance


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative paths of the provider lead below a folder that only its owner may enter."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.chdir(closed)


async def kill_guest(sandbox: SandboxHandle) -> None:
    """Kill the first process of the only sandbox that this process runs, from the host."""
    (guest,) = _guests()
    watched = os.pidfd_open(guest)
    ended = asyncio.Event()
    asyncio.get_running_loop().add_reader(watched, ended.set)
    try:
        os.kill(guest, signal.SIGKILL)
        await asyncio.wait_for(ended.wait(), 10)
    finally:
        asyncio.get_running_loop().remove_reader(watched)
        os.close(watched)


def _guests() -> Iterator[int]:
    """Processes below this one that are the first of a PID namespace."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, KeyError):
                fields = _status(int(entry))
                if fields["NSpid"].split()[1:] == ["1"] and fields["Name"] == "b4-guest" and os.getpid() in _ancestors(int(entry)):
                    yield int(entry)


def _ancestors(pid: int) -> Iterator[int]:
    while pid > 1:
        pid = int(_status(pid)["PPid"])
        yield pid


def _status(pid: int) -> dict[str, str]:
    lines = Path("/proc", str(pid), "status").read_text().splitlines()
    return {key: value.strip() for key, _, value in (line.partition(":") for line in lines)}


TestBubblewrap = run_provider_conformance(
    name="bubblewrap", make_provider=lambda: bubblewrap_sandbox(scope="conformance", state_dir="state"), kill_guest=kill_guest
)
