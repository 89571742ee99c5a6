"""Commands in a real guest, through the public backends."""

from __future__ import annotations

import asyncio
import hashlib
import os
import resource
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from b4run.errors import CommandRefused, DeadlinePassed, JobUnknown, SandboxLost
from b4run.sandbox.contract import Cause, Stream
from b4run.sandbox.guest.client import Timing

from .real import Guest, started

MIB = 1 << 20


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


async def gone(pid: int) -> bool:
    async with asyncio.timeout(5):
        while alive(pid):
            await asyncio.sleep(0.005)
    return True


async def appears(path: Path) -> str:
    async with asyncio.timeout(5):
        while not path.exists() or not path.read_text().endswith("\n"):
            await asyncio.sleep(0.005)
    return path.read_text().strip()


async def test_a_command_and_its_figures(guest: Guest) -> None:
    result = await guest.sandbox.exec.run("printf out; printf err >&2; exit 3")
    assert (result.exit_code, result.cause, result.stdout, result.stderr) == (3, Cause.EXIT, "out", "err")
    assert 0 < result.duration_ms < 5_000
    assert 100 < result.peak_memory_kb < 1_000_000


async def test_an_argument_vector_is_taken_as_it_is(guest: Guest) -> None:
    result = await guest.sandbox.exec.run(["printf", "%s|", "a b", "$HOME", "'", b"\xff", "ü\n"])
    assert result.out.data == b"a b|$HOME|'|\xff|\xc3\xbc\n|"


async def test_folder_and_environment(guest: Guest) -> None:
    (guest.workspace / "sub").mkdir()
    result = await guest.sandbox.exec.run("pwd; echo $K; env | sort", cwd="sub", env={"K": "välue"})
    lines = result.stdout.splitlines()
    assert lines[:2] == [str(guest.workspace / "sub"), "välue"]
    names = {line.partition("=")[0] for line in lines[2:]}
    assert names - {"PWD", "OLDPWD", "SHLVL", "_"} == {"HOME", "K", "LANG", "PATH"}


async def test_merged_output(guest: Guest) -> None:
    result = await guest.sandbox.exec.run("echo a; echo b >&2; echo c", merge_stderr=True)
    assert (result.stdout, result.stderr) == ("a\nb\nc\n", "")


async def test_nothing_to_read_without_stdin(guest: Guest) -> None:
    assert (await guest.sandbox.exec.run("cat")).out.total == 0


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 64 * MIB])
async def test_stdin_arrives_whole(guest: Guest, size: int) -> None:
    data = os.urandom(MIB) * (size // MIB) if size >= MIB else os.urandom(size)
    result = await guest.sandbox.exec.run("sha256sum", stdin=data)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()


async def test_stdin_from_an_iterator(guest: Guest) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        for piece in (b"one ", b"", b"two ", bytes(300_000)):
            yield piece
            await asyncio.sleep(0)

    assert (await guest.sandbox.exec.run("wc -c", stdin=pieces())).stdout.strip() == str(8 + 300_000)


async def test_stdin_that_nobody_reads(guest: Guest) -> None:
    assert (await guest.sandbox.exec.run("exit 4", stdin=bytes(8 * MIB))).exit_code == 4
    assert (await guest.sandbox.exec.run("head -c 3", stdin=b"abc" + bytes(8 * MIB))).out.data == b"abc"


async def test_long_output_keeps_its_ends(guest: Guest) -> None:
    out = (await guest.sandbox.exec.run("printf START; head -c 20000000 /dev/zero; printf END", output_limit=1_000)).out
    assert (out.total, out.truncated, len(out.data)) == (20_000_008, True, 1_000)
    assert out.head.startswith(b"START\0")
    assert out.tail.endswith(b"\0END")


async def test_output_of_exactly_the_limit_is_whole(guest: Guest) -> None:
    out = (await guest.sandbox.exec.run("head -c 1048576 /dev/urandom | tee copy")).out
    assert (out.truncated, out.data) == (False, (guest.workspace / "copy").read_bytes())


async def test_200_mib_of_output_with_flat_memory(guest: Guest) -> None:
    await guest.sandbox.exec.run("head -c 20000000 /dev/zero")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    out = (await guest.sandbox.exec.run("head -c 209715200 /dev/zero")).out
    assert out.total == 200 * MIB
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8_192
    peak = int(Path(f"/proc/{guest.process.pid}/status").read_text().partition("VmHWM:")[2].split()[0])
    assert peak < 16_384


async def test_bytes_that_are_no_text(guest: Guest) -> None:
    result = await guest.sandbox.exec.run(r"printf '\000\377\303'; printf '\274'")
    assert result.out.data == b"\0\xff\xc3\xbc"
    assert result.stdout == "\0\ufffdü"


@pytest.mark.parametrize(
    ("command", "options", "reason"),
    [
        (["no-such-program"], {}, "no such executable"),
        (["./plain"], {}, "may not be executed"),
        ("true", {"cwd": "missing"}, "no such folder"),
        ("true", {"cwd": "plain"}, "not a folder"),
        ("true", {"cwd": "/etc"}, "outside the workspace"),
        (["true", "x" * 500_000], {}, "too long"),
    ],
)
async def test_what_cannot_start_is_refused(guest: Guest, command: str | list[str], options: dict[str, str], reason: str) -> None:
    (guest.workspace / "plain").write_text("text")
    with pytest.raises(CommandRefused, match=reason):
        await guest.sandbox.exec.run(command, **options)  # type: ignore[arg-type]
    with pytest.raises(CommandRefused, match=reason):
        await guest.sandbox.exec.stream(command, **options).result()  # type: ignore[arg-type]
    assert (await guest.sandbox.exec.run("echo on")).stdout == "on\n"


async def test_a_signal_is_no_timeout(guest: Guest) -> None:
    killed = await guest.sandbox.exec.run("kill -9 $$")
    assert (killed.exit_code, killed.cause, killed.signal) == (137, Cause.SIGNAL, 9)
    late = await guest.sandbox.exec.run("sleep 60", deadline_ms=100)
    assert (late.exit_code, late.cause) == (124, Cause.TIMEOUT)
    assert 100 <= late.duration_ms < 2_000


async def test_a_deadline_ends_the_whole_tree(guest: Guest) -> None:
    command = "setsid sh -c 'echo $$ >escaped; sleep 60' & (sh -c 'echo $$ >orphan; exec sleep 60' &) ; trap '' TERM; sleep 60; sleep 60"
    result = await guest.sandbox.exec.run(command, deadline_ms=300, grace_ms=100)
    assert (result.exit_code, result.cause) == (124, Cause.TIMEOUT)
    for name in ("escaped", "orphan"):
        assert await gone(int((guest.workspace / name).read_text()))


async def test_a_background_child_does_not_hold_the_result(guest: Guest) -> None:
    began = time.monotonic()
    result = await guest.sandbox.exec.run("sleep 60 & echo $!")
    assert time.monotonic() - began < 5
    assert result.cause is Cause.EXIT
    pid = int(result.stdout)
    assert alive(pid)
    assert not await guest.sandbox.idle()
    await guest.sandbox.exec.job(result.job).cancel(grace_ms=0)
    assert await gone(pid)
    assert await guest.sandbox.idle()


async def test_a_cancelled_task_ends_the_command(guest: Guest) -> None:
    task = asyncio.create_task(guest.sandbox.exec.run("echo $$ >pid; trap '' TERM; sleep 60 & wait; sleep 60", grace_ms=50))
    pid = int(await appears(guest.workspace / "pid"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 5)
    assert not alive(pid)
    assert not guest.client.busy


async def test_a_timeout_around_a_command(guest: Guest) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.1):
            await guest.sandbox.exec.run("sleep 60")
    assert await guest.sandbox.idle()


async def test_output_as_it_comes(guest: Guest) -> None:
    running = guest.sandbox.exec.stream("echo one; read x; echo two >&2; exit 5", stdin=waits(guest.workspace / "go"))
    chunks = aiter(running)
    first = await asyncio.wait_for(anext(chunks), 5)
    assert (first.stream, first.data) == (Stream.STDOUT, b"one\n")
    (guest.workspace / "go").write_text("\n")
    second = await asyncio.wait_for(anext(chunks), 5)
    assert (second.stream, second.data) == (Stream.STDERR, b"two\n")
    assert [chunk async for chunk in chunks] == []
    result = await running.result()
    assert (result.exit_code, result.out.total, result.err.total) == (5, 4, 4)


async def waits(path: Path) -> AsyncIterator[bytes]:
    await appears(path)
    yield b"\n"


async def test_a_slow_reader_holds_the_command(guest: Guest) -> None:
    running = guest.sandbox.exec.stream("head -c 50000000 /dev/zero; echo >done")
    got = len((await anext(aiter(running))).data)
    await asyncio.sleep(0.2)
    assert not (guest.workspace / "done").exists()
    async for chunk in running:
        got += len(chunk.data)
    assert got == 50_000_000
    assert (await running.result()).out.total == got


async def test_a_reader_that_leaves_early(guest: Guest) -> None:
    running = guest.sandbox.exec.stream("head -c 50000000 /dev/zero")
    async for _ in running:
        break
    assert (await running.result()).out.total == 50_000_000


async def test_a_cancelled_stream(guest: Guest) -> None:
    running = guest.sandbox.exec.stream("yes")
    await anext(aiter(running))
    await running.cancel()
    assert (await running.result()).cause is Cause.CANCELLED


async def test_the_life_of_a_job(guest: Guest) -> None:
    os.mkfifo(guest.workspace / "fifo")
    job = await guest.sandbox.exec.start("echo begun; read x <fifo; echo ended; echo bad >&2; exit 6")
    async with asyncio.timeout(5):
        while (part := await job.read()).total == 0:
            await asyncio.sleep(0.005)
    assert (part.data, part.offset, part.gap, part.eof) == (b"begun\n", 0, 0, False)
    assert not await guest.sandbox.idle()
    (info,) = await guest.sandbox.exec.jobs()
    assert (info.job, info.running, info.alive, info.cause) == (job.id, True, True, None)
    assert info.command.startswith("echo begun")
    with pytest.raises(DeadlinePassed):
        await job.wait(timeout_ms=20)
    (guest.workspace / "fifo").write_text("\n")
    result = await job.wait()
    assert (result.exit_code, result.cause, result.stdout, result.stderr, result.job) == (6, Cause.EXIT, "begun\nended\n", "bad\n", job.id)
    assert (await job.read(offset=6, limit=3)).data == b"end"
    assert (await job.read(Stream.STDERR)).data == b"bad\n"
    assert await job.wait() == result
    (info,) = await guest.sandbox.exec.jobs()
    assert (info.running, info.cause, info.exit_code) == (False, Cause.EXIT, 6)
    assert await guest.sandbox.idle()


async def test_a_long_log_of_a_job(guest: Guest) -> None:
    job = await guest.sandbox.exec.start("printf START; head -c 5000000 /dev/zero; printf END", output_limit=1_000)
    out = (await job.wait()).out
    assert (out.total, len(out.head), len(out.tail)) == (5_000_008, 500, 500)
    assert (out.head[:5], out.tail[-3:]) == (b"START", b"END")
    part = await job.read(offset=100_000, limit=10)
    assert (part.offset, part.gap, part.data) == (5_000_008 - 500, 5_000_008 - 500 - 100_000, bytes(10))


async def test_signals(guest: Guest) -> None:
    job = await guest.sandbox.exec.start("trap 'echo usr; exit 9' USR1; echo ready; while :; do sleep 0.01; done")
    async with asyncio.timeout(5):
        while (await job.read()).total == 0:
            await asyncio.sleep(0.005)
    assert await job.signal(signal.SIGUSR1) == 1
    result = await job.wait(timeout_ms=5_000)
    assert (result.exit_code, result.stdout) == (9, "ready\nusr\n")


async def test_a_job_that_does_not_exist(guest: Guest) -> None:
    job = guest.sandbox.exec.job(12_345)
    for call in (job.wait(), job.read(), job.signal(15), job.cancel()):
        with pytest.raises(JobUnknown):
            await call


async def test_two_commands_at_once(guest: Guest) -> None:
    os.mkfifo(guest.workspace / "fifo")
    reader, writer = await asyncio.wait_for(
        asyncio.gather(guest.sandbox.exec.run("cat fifo"), guest.sandbox.exec.run("echo hello >fifo")), 10
    )
    assert (reader.stdout, writer.ok) == ("hello\n", True)


async def test_a_killed_guest_loses_the_command_in_flight(guest: Guest) -> None:
    task = asyncio.create_task(guest.sandbox.exec.run("echo $$ >pid; sleep 60"))
    await appears(guest.workspace / "pid")
    guest.process.kill()
    with pytest.raises(SandboxLost):
        await asyncio.wait_for(task, 5)
    assert guest.sandbox.lost
    with pytest.raises(SandboxLost):
        await guest.sandbox.files.stat(".")


async def test_a_guest_that_hangs_is_lost(tmp_path: Path) -> None:
    async with started(tmp_path / "workspace", Timing(tick=0.02, ping_after=0.1, answer_within=0.2)) as guest:
        assert (await guest.sandbox.exec.run("sleep 0.5")).ok
        guest.process.send_signal(signal.SIGSTOP)
        with pytest.raises(SandboxLost, match="silent"):
            await asyncio.wait_for(guest.sandbox.exec.run("true"), 5)
        guest.process.kill()


async def test_the_end_of_the_connection_ends_every_job(guest: Guest) -> None:
    await guest.sandbox.exec.start("echo $$ >pid; trap '' TERM; setsid sleep 60; sleep 60")
    pid = int(await appears(guest.workspace / "pid"))
    await guest.sandbox.aclose()
    assert await gone(pid)


def descriptors(pid: int | str) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


async def test_1000_short_commands_leak_nothing(guest: Guest) -> None:
    for _ in range(50):
        await guest.sandbox.exec.run("true")
    host, inside, tasks = descriptors("self"), descriptors(guest.process.pid), len(asyncio.all_tasks())
    memory = int(Path(f"/proc/{guest.process.pid}/statm").read_text().split()[1])
    for _ in range(1_000):
        assert (await guest.sandbox.exec.run("true")).exit_code == 0
    assert (descriptors("self"), descriptors(guest.process.pid), len(asyncio.all_tasks())) == (host, inside, tasks)
    assert int(Path(f"/proc/{guest.process.pid}/statm").read_text().split()[1]) - memory < 64
    assert await guest.sandbox.exec.jobs() == []
