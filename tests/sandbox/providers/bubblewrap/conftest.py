"""Providers on a state directory that no other user can reach, and what tests look for on the host."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from b4run.sandbox.policy import Deny, SandboxPolicy
from b4run.sandbox.providers.bubblewrap import BubblewrapProvider, bubblewrap_sandbox
from b4run.sandbox.providers.bubblewrap.cgroups import discover
from b4run.sandbox.scope import resource_id

DENY = SandboxPolicy(network=Deny())


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    """Below a folder that only its owner may enter, as in a home directory."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    return closed / "sandboxes"


@pytest.fixture
def scope() -> str:
    """Unlike any other, so that what is found on the host is this test's."""
    return f"test-{secrets.token_hex(8)}"


@pytest.fixture
async def make_provider(state_dir: Path, scope: str) -> AsyncIterator[Callable[..., BubblewrapProvider]]:
    """Make providers on the same state directory; at the end each is closed and every thread destroyed."""
    made: list[BubblewrapProvider] = []

    def make(**options: object) -> BubblewrapProvider:
        made.append(bubblewrap_sandbox(**({"scope": scope, "state_dir": state_dir} | options)))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for provider in made:
        await provider.aclose()
    for provider in made[:1]:
        for record in await provider.list_sandboxes():
            if record.thread_id is not None:
                await provider.destroy(record.thread_id)


@pytest.fixture
def provider(make_provider: Callable[..., BubblewrapProvider]) -> BubblewrapProvider:
    return make_provider()


@pytest.fixture
async def sandbox(provider: BubblewrapProvider):
    return await provider.acquire("t-1", DENY)


@pytest.fixture
def our_groups(scope: str) -> Callable[[], set[str]]:
    """Lists the control groups of the thread `t-1`, which lie below this process's own."""
    prefix = f"b4-{resource_id(scope, 't-1')}"

    def groups() -> set[str]:
        found = set()
        for home in discover().values():
            with contextlib.suppress(OSError):
                found |= {str(home.parent / name) for name in os.listdir(home.parent) if name.startswith(prefix)}
        return found

    return groups


@pytest.fixture
def processes_of() -> Callable[[int], list[int]]:
    """Lists the processes on the host whose real user is the one given."""

    def processes(uid: int) -> list[int]:
        return [pid for pid, real in _users() if real == uid]

    return processes


def _users() -> Iterator[tuple[int, int]]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with contextlib.suppress(OSError, StopIteration):
                status = Path("/proc", entry, "status").read_text()
                yield int(entry), int(next(line for line in status.splitlines() if line.startswith("Uid:")).split()[1])
