"""Rounds of a crash and what comes after it, each in processes of its own: `crash_rounds.py URL FOLDER ROUNDS`; prints a line a round.

A first process admits a thread and deletes it, and is killed at a step, or at any moment. A second one recovers, uses the thread, deletes
it, and looks for what is doubled, half made or left.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Awaitable, Callable
from pathlib import Path

from sqlalchemy import text

from b4run.sandbox import Deny, SandboxPolicy
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox
from b4run.storage import open_storage
from b4run.threads import ManagedWorkspaces, Step, WorkspaceResolver
from b4run.workspace import WorkspaceDefinition, WorkspaceSource

POLICY = SandboxPolicy(network=Deny())
DEFINITION = WorkspaceDefinition(source=WorkspaceSource(directory=".", include=("README.md", "src/main.py")), baseline="git")
MOMENTS = [*Step, "any"]
LONGEST_S = 0.15
"""How late a kill at any moment may come: longer than the whole takes."""

Use = Callable[[ManagedWorkspaces], Awaitable[None]]


async def opened(url: str, folder: Path, use: Use, die_at: Step | None = None) -> None:
    def die(step: Step) -> None:
        if step is die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    provider = bubblewrap_sandbox(scope="crashes", state_dir=folder / "state")
    async with open_storage(url) as storage:
        resolver = WorkspaceResolver(folder / "app", DEFINITION)
        managed = ManagedWorkspaces(provider, storage, resolver, policy=POLICY, on_step=die)
        try:
            await use(managed)
        finally:
            await managed.aclose()


async def whole_life(managed: ManagedWorkspaces) -> None:
    sandbox = await managed.acquire("t-1", POLICY)
    await sandbox.files.write("mine", b"x")
    await managed.destroy("t-1")


def what_follows(url: str, folder: Path) -> Use:
    def workspaces() -> list[str]:
        return [path.name for path in (folder / "state").glob("*") if path.name != "locks" and (path / "workspace").exists()]

    async def use(managed: ManagedWorkspaces) -> None:
        assert await managed.recover() == 0, "not everything could be finished"
        sandbox = await managed.acquire("t-1", POLICY)
        names = {entry.path for entry in await sandbox.files.entries()}
        assert names in ({".git", "README.md", "src"}, {".git", "README.md", "src", "mine"}), f"half made: {names}"
        result = await sandbox.exec.run("cat README.md src/main.py")
        assert result.stdout == "# hi\nprint()\n", f"not the source: {result}"
        assert len(workspaces()) == 1, f"doubled: {workspaces()}"
        await managed.destroy("t-1")
        assert workspaces() == [], f"left: {workspaces()}"

    return use


async def rows(url: str) -> list[int]:
    async with open_storage(url) as storage, storage.engines.durable.connect() as connection:
        tables = ("workspaces", "thread_sandboxes", "sources", "source_rows")
        return [int(await connection.scalar(text(f"SELECT count(*) FROM {table}")) or 0) for table in tables]


def forked(work: Callable[[], object]) -> int:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return pid


def main() -> int:
    url, folder, rounds = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    chance = random.Random(rounds)
    for number in range(rounds):
        moment = MOMENTS[number % len(MOMENTS)]
        die_at = moment if isinstance(moment, Step) else None
        crashing = forked(lambda at=die_at: asyncio.run(opened(url, folder, whole_life, at)))
        if die_at is None:
            time.sleep(chance.uniform(0, LONGEST_S))
            os.kill(crashing, signal.SIGKILL)
        _, status = os.waitpid(crashing, 0)
        # At any moment may be too late.
        killed = die_at is None or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL)
        after = forked(lambda: asyncio.run(opened(url, folder, what_follows(url, folder))))
        _, status = os.waitpid(after, 0)
        left = forked(lambda: _check_rows(url))
        _, emptied = os.waitpid(left, 0)
        good = killed and status == 0 and emptied == 0
        print(f"{number} {moment} {'good' if good else 'BAD'}", flush=True)
    return 0


def _check_rows(url: str) -> None:
    found = asyncio.run(rows(url))
    assert found == [0, 0, 0, 0], f"rows left: {found}"


if __name__ == "__main__":
    sys.exit(main())
