"""Connections that outlive their stream, against a real guest: streams are cut at any moment, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from b4run.errors import SandboxLost
from b4run.sandbox.environment import GUEST_PATH, sandbox_environment
from b4run.sandbox.guest import GuestClient, GuestSandbox
from b4run.sandbox.guest.channel import ChannelClosed
from b4run.sandbox.guest.lasting_channel import LastingChannel
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.providers.docker import docker_sandbox
from b4run.sandbox.scope import resource_id

from ..docker_engine import IMAGE, SCOPE, needs_docker

pytestmark = needs_docker


class ExecPipe:
    """A `ByteStream` over the engine's own command, which a test can cut."""

    def __init__(self, child: asyncio.subprocess.Process) -> None:
        self.child = child

    async def receive(self) -> bytes:
        data = await self.child.stdout.read(65_536)
        if not data:
            raise ChannelClosed("cut")
        return data

    async def send(self, data) -> None:
        try:
            self.child.stdin.write(bytes(data))
            await self.child.stdin.drain()
        except (OSError, RuntimeError) as error:
            raise ChannelClosed("cut") from error

    async def close(self) -> None:
        if self.child.returncode is None:
            self.child.kill()
            await self.child.wait()


class Line:
    """Dials a container, and cuts what it dialled."""

    def __init__(self, container: str) -> None:
        self.container = container
        self.pipes: list[ExecPipe] = []
        self.gone: ChannelClosed | None = None
        self.down = False

    async def dial(self) -> ExecPipe:
        if self.down:
            raise ChannelClosed("down")
        pipe = asyncio.subprocess.PIPE
        command = ["docker", "exec", "-i", self.container, GUEST_PATH, "connect", "--lasting"]
        child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, stderr=asyncio.subprocess.DEVNULL, limit=1 << 20)
        self.pipes.append(ExecPipe(child))
        return self.pipes[-1]

    async def verdict(self) -> ChannelClosed | None:
        return self.gone

    async def cut(self) -> None:
        child = self.pipes[-1].child
        if child.returncode is None:
            child.kill()
            await child.wait()


@pytest.fixture
async def line():
    provider = docker_sandbox(scope=SCOPE, image=IMAGE)
    thread = f"lasting-{random.getrandbits(64):x}"
    await provider.acquire(thread, SandboxPolicy())
    line = Line(f"b4-sbx-{resource_id(SCOPE, thread)}")
    yield line
    for pipe in line.pipes:
        await pipe.close()
    await provider.destroy(thread)
    await provider.aclose()


async def connected(line: Line) -> GuestSandbox:
    channel = await LastingChannel.open(line.dial, line.verdict)
    client = await GuestClient.connect(channel, thread_id="t", environment=sandbox_environment())
    return GuestSandbox(client, aclose=_nothing)


async def _nothing() -> None:
    return None


async def cutting(line: Line, seed: int) -> None:
    dice = random.Random(seed)
    while True:
        await asyncio.sleep(dice.uniform(0.02, 0.25))
        await line.cut()


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_is_lost_and_nothing_is_done_twice(line, seed):
    sandbox = await connected(line)
    data = random.Random(seed).randbytes(3_000_000)
    cuts = asyncio.create_task(cutting(line, seed))
    try:
        for number in range(6):
            await sandbox.files.write("data", data)
            assert (await sandbox.files.read("data", max_size=len(data))).data == data
            result = await sandbox.exec.run(
                f"echo {number} >> log; sha256sum < data; head -c 400000 /dev/zero | tr '\\0' x", deadline_ms=60_000
            )
            digest = hashlib.sha256(data).hexdigest()
            assert result.stdout == f"{digest}  -\n" + "x" * 400_000
    finally:
        cuts.cancel()
    assert (await sandbox.files.read("log", max_size=100)).data == b"0\n1\n2\n3\n4\n5\n"
    assert len(line.pipes) > 3
    await sandbox.aclose()


async def test_a_command_goes_on_while_nobody_is_connected(line):
    sandbox = await connected(line)
    running = asyncio.create_task(sandbox.exec.run("for n in 1 2 3 4 5; do echo $n; sleep 0.3; done", deadline_ms=30_000))
    await asyncio.sleep(0.2)
    line.down = True
    await line.cut()
    await asyncio.sleep(2.5)
    assert not running.done()
    line.down = False
    assert (await running).stdout.split() == ["1", "2", "3", "4", "5"]
    await sandbox.aclose()


async def test_a_guest_that_is_gone_for_good_is_told_with_its_cause(line):
    sandbox = await connected(line)
    running = asyncio.create_task(sandbox.exec.run("sleep 60", deadline_ms=90_000))
    await asyncio.sleep(0.2)
    line.gone = ChannelClosed("its node is gone", "oom")
    await line.cut()
    with pytest.raises(SandboxLost, match="its node is gone") as lost:
        await asyncio.wait_for(running, 10)
    assert lost.value.cause == "oom"
    assert sandbox.lost
    await sandbox.aclose()


async def test_a_guest_that_was_replaced_does_not_know_the_connection(line):
    sandbox = await connected(line)
    line.down = True
    await line.cut()
    child = await asyncio.create_subprocess_exec("docker", "restart", "-t", "1", line.container, stdout=asyncio.subprocess.DEVNULL)
    await child.wait()
    line.down = False
    with pytest.raises(SandboxLost, match="does not know this connection"):
        await asyncio.wait_for(sandbox.exec.run("true", deadline_ms=5_000), 30)
    await sandbox.aclose()


async def test_closing_ends_what_runs_at_once(line):
    sandbox = await connected(line)
    running = asyncio.create_task(sandbox.exec.run("sleep 300; echo late > late", deadline_ms=400_000))
    await asyncio.sleep(0.3)
    await sandbox.aclose()
    with pytest.raises(SandboxLost):
        await running
    other = await connected(line)
    for _ in range(50):
        if "sleep 300" not in (await other.exec.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '", deadline_ms=5_000)).stdout:
            break
        await asyncio.sleep(0.1)
    else:
        raise AssertionError("its job outlived the connection")
    await other.aclose()
