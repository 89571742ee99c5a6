"""Acquire, release, destroy and list: repeated, raced, by several processes, and after a crash of each part."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from b4run.errors import PolicyConflict, SandboxHeld, SandboxLost
from b4run.sandbox.guest import guest_binary
from b4run.sandbox.policy import Deny, Resources, SandboxPolicy
from b4run.sandbox.scope import resource_id

DENY = SandboxPolicy(network=Deny())


async def until(condition, seconds: float = 10) -> None:
    """Wait for what another process does; there is no event to wait for."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        await asyncio.sleep(0.01)


async def test_acquire_is_idempotent_and_shares_the_compute(provider):
    first, second = await asyncio.gather(provider.acquire("t-1", DENY), provider.acquire("t-1", DENY))
    assert first.instance == second.instance
    assert (await first.exec.run("echo here")).stdout == "here\n"


async def test_other_launch_settings_are_refused_until_released(provider):
    await provider.acquire("t-1", DENY)
    other = SandboxPolicy(network=Deny(), resources=Resources(memory_mb=128))
    with pytest.raises(PolicyConflict, match="resources"):
        await provider.acquire("t-1", other)
    await provider.acquire("t-1", SandboxPolicy(network=Deny(), resources=Resources(timeout_ms=5_000)))
    await provider.release("t-1")
    await provider.acquire("t-1", other)


async def test_release_ends_the_processes_and_keeps_the_files(provider, our_groups):
    sandbox = await provider.acquire("t-1", DENY)
    await sandbox.exec.start("exec sleep 4242")
    await sandbox.exec.run("printf x > kept")
    await sandbox.exec.run("touch /tmp/gone")
    await provider.release("t-1")
    await provider.release("t-1")
    assert our_groups() == set()
    assert not _running("4242")
    with pytest.raises(SandboxLost):
        await sandbox.exec.run("true")
    again = await provider.acquire("t-1", DENY)
    assert again.instance != sandbox.instance
    assert (await again.exec.run("cat kept; ls /tmp")).stdout == "x"


def _running(argument: str) -> bool:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if argument.encode() in Path("/proc", entry, "cmdline").read_bytes().split(b"\0"):
                    return True
            except OSError:
                continue
    return False


async def test_destroy_removes_the_files_and_the_name_starts_empty(provider, state_dir, scope):
    sandbox = await provider.acquire("t-1", DENY)
    await sandbox.exec.run("mkdir -p a/b && echo x > a/b/c && chmod 0 a/b && chmod 500 a")
    await asyncio.gather(provider.destroy("t-1"), provider.destroy("t-1"))
    name = resource_id(scope, "t-1")
    assert [path.name for path in state_dir.iterdir() if name in path.name] == []
    assert not (state_dir / "locks" / name).exists()
    again = await provider.acquire("t-1", DENY)
    assert (await again.exec.run("ls -A")).stdout == ""


async def test_destroying_what_never_was_is_fine(provider):
    await provider.destroy("never")
    await provider.release("never")


async def test_an_interrupted_removal_is_finished_by_the_next(provider, state_dir, scope):
    await (await provider.acquire("t-1", DENY)).exec.run("printf x > old")
    await provider.release("t-1")
    name = resource_id(scope, "t-1")
    (state_dir / name).rename(state_dir / f".gone-{name}-0123")
    assert await provider.list_sandboxes() == []
    await provider.destroy("t-1")
    assert list(state_dir.glob(".gone-*")) == []


async def test_threads_of_a_scope_are_listed(provider, make_provider, scope):
    await (await provider.acquire("t-1", DENY)).exec.run("head -c 50000 /dev/zero > file")
    other = make_provider(scope="other")
    await other.acquire("t-1", DENY)
    await provider.acquire("t-2", DENY)
    await provider.release("t-2")
    records = {record.thread_id: record for record in await provider.list_sandboxes()}
    assert sorted(records) == ["t-1", "t-2"]
    assert (records["t-1"].running, records["t-2"].running) == (True, False)
    assert records["t-1"].resource_id == resource_id(scope, "t-1")
    assert records["t-1"].workspace_bytes is not None
    assert 50_000 <= records["t-1"].workspace_bytes <= 100_000
    await other.destroy("t-1")


async def test_a_second_provider_is_told_who_holds_it(provider, make_provider):
    await provider.acquire("t-1", DENY)
    second = make_provider()
    with pytest.raises(SandboxHeld, match="another provider of this process"):
        await second.acquire("t-1", DENY)
    with pytest.raises(SandboxHeld):
        await second.destroy("t-1")
    await provider.release("t-1")
    await second.acquire("t-1", DENY)


@pytest.mark.parametrize("victim", ["b4-guest", "bwrap"])
async def test_a_sandbox_that_was_killed_is_replaced_on_the_same_files(provider, our_groups, victim):
    sandbox = await provider.acquire("t-1", DENY)
    await sandbox.exec.run("printf x > kept")
    waiting = asyncio.create_task(sandbox.exec.run("exec sleep 4343"))
    await until(lambda: _running("4343"))
    victims = _descendants(os.getpid(), victim)
    assert victims
    for pid in victims:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    with pytest.raises(SandboxLost):
        await asyncio.wait_for(waiting, 10)
    assert sandbox.lost
    again = await provider.acquire("t-1", DENY)
    assert (await again.exec.run("cat kept")).stdout == "x"
    assert not _running("4343")
    await provider.release("t-1")
    assert our_groups() == set()


def _descendants(root: int, name: str) -> list[int]:
    children: dict[int, list[int]] = {}
    names: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                before, _, after = Path("/proc", entry, "stat").read_text().rpartition(")")
            except OSError:
                continue
            names[int(entry)] = before.partition("(")[2]
            children.setdefault(int(after.split()[1]), []).append(int(entry))
    found, pending = [], [root]
    while pending:
        for child in children.get(pending.pop(), []):
            pending.append(child)
            if names[child] == name:
                found.append(child)
    return found


SUPERVISOR = """
import asyncio, sys
from b4run.sandbox.guest import guest_binary
from b4run.sandbox.policy import Deny, Resources, SandboxPolicy
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox

async def main():
    provider = bubblewrap_sandbox(scope=sys.argv[2], state_dir=sys.argv[1])
    sandbox = await provider.acquire("t-1", SandboxPolicy(network=Deny(), resources=Resources(memory_mb=64)))
    await sandbox.exec.run("printf x > kept")
    await sandbox.exec.start("setsid sleep 4444 & exec sleep 4444")
    print("ready", flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def _supervisor(state_dir: Path, scope: str) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR, str(state_dir), scope],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"]},
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"ready\n"
    return child


async def test_a_killed_supervisor_leaves_no_process_mount_or_control_group(state_dir, our_groups, provider, scope):
    mounts = Path("/proc/self/mountinfo").read_text()
    with _supervisor(state_dir, scope) as supervisor:
        with pytest.raises(SandboxHeld, match=f"process {supervisor.pid} holds it"):
            await provider.acquire("t-1", DENY)
        assert _running("4444")
        supervisor.kill()
    await until(lambda: not _running("4444"))
    await until(lambda: our_groups() == set())
    assert Path("/proc/self/mountinfo").read_text() == mounts
    sandbox = await provider.acquire("t-1", DENY)
    assert (await sandbox.exec.run("cat kept")).stdout == "x"


async def _leave_everything_behind(state_dir, scope):
    """A supervisor and its launcher die at the same moment, so that nobody removes what they made."""
    with _supervisor(state_dir, scope) as supervisor:
        launcher = guest_binary().name[:15]  # the kernel cuts a process's name here
        everything = [supervisor.pid, *(pid for name in (launcher, "b4-guest", "bwrap") for pid in _descendants(supervisor.pid, name))]
        assert len(everything) >= 4
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in everything:
                with suppress(ProcessLookupError):
                    os.kill(pid, number)
    await until(lambda: not _running("4444"))


async def test_control_groups_of_a_killed_supervisor_and_launcher_are_swept(state_dir, our_groups, provider, scope):
    await _leave_everything_behind(state_dir, scope)
    assert our_groups()
    await provider.acquire("t-1", DENY)
    await provider.release("t-1")
    assert our_groups() == set()


async def test_prune_removes_what_crashes_left_and_no_thread(state_dir, our_groups, provider, make_provider, scope):
    await _leave_everything_behind(state_dir, scope)
    groups = our_groups()
    assert groups
    await provider.acquire("t-2", DENY)
    await provider.acquire("gone", DENY)
    await provider.release("gone")
    name = resource_id(scope, "gone")
    (state_dir / name).rename(state_dir / f".gone-{name}-0123")
    damaged = state_dir / resource_id(scope, "damaged")
    damaged.mkdir()
    (state_dir / "locks" / damaged.name).write_text("{")
    removed = await make_provider().prune()
    assert {leftover.name for leftover in removed if leftover.kind == "control group"} == {Path(group).name for group in groups}
    assert [leftover.name for leftover in removed if leftover.kind == "files"] == [f".gone-{name}-0123"]
    assert our_groups() == set()
    assert await provider.prune() == []
    assert damaged.exists()
    assert (await (await provider.acquire("t-2", DENY)).exec.run("echo alive")).stdout == "alive\n"
    assert (await (await provider.acquire("t-1", DENY)).exec.run("cat kept")).stdout == "x"
    damaged.rmdir()


async def test_a_cancelled_acquire_leaves_nothing_behind(provider, our_groups):
    for delay in (0, 0.001, 0.003, 0.006):
        task = asyncio.create_task(provider.acquire("t-1", DENY))
        await asyncio.sleep(delay)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await provider.release("t-1")
        assert our_groups() == set()
    assert (await (await provider.acquire("t-1", DENY)).exec.run("echo fine")).stdout == "fine\n"


async def test_fifty_rounds_leak_no_descriptor_process_or_group(provider, our_groups):
    async def round_trip() -> None:
        await (await provider.acquire("t-1", DENY)).exec.run("true")
        await provider.release("t-1")

    await round_trip()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        await round_trip()
    assert len(os.listdir("/proc/self/fd")) == before
    assert our_groups() == set()
    assert _descendants(os.getpid(), "b4-guest") + _descendants(os.getpid(), "bwrap") == []


async def test_an_interrupt_at_the_terminal_does_not_reach_the_sandbox(provider):
    sandbox = await provider.acquire("t-1", DENY)
    job = await sandbox.exec.start("exec sleep 4545")
    groups = {os.getpgid(pid) for name in ("b4-guest", "bwrap", "sleep") for pid in _descendants(os.getpid(), name)}
    assert len(groups) >= 2
    assert os.getpgid(0) not in groups
    await job.cancel()
