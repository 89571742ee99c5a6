"""Standard input: whole, or at once at its end."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator

import pytest

from b4run.sandbox.contract import Capability
from b4run.sandbox.testing.trial import Trial, case, pieces

EXEC = (Capability.EXEC,)


@case("T24", needs=EXEC)
async def without_stdin_reading_ends_at_once(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for command in ("cat", "wc -c", "cat <&0", "sh -c 'cat'"):
        result = await sandbox.exec.run(command, deadline_ms=10_000)
        assert result.ok, command
    result = await sandbox.exec.run("read line", deadline_ms=10_000)
    assert result.exit_code == 1
    job = await sandbox.exec.start("cat")
    assert (await job.wait(timeout_ms=10_000)).ok


@case(needs=EXEC)
async def bytes_arrive_unchanged(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for data in (b"", b"x", bytes(range(256)) * 100, b"no newline", b"\0"):
        assert (await sandbox.exec.run("cat", stdin=data)).out.data == data


@case("T43", "T44", needs=EXEC, limit_s=120)
async def sixty_four_mebibytes_by_digest(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    data = hashlib.shake_256(b"b4").digest(1_048_576) * 64
    result = await sandbox.exec.run("sha256sum", stdin=data, deadline_ms=100_000)
    assert result.stdout.split()[0] == hashlib.sha256(data).hexdigest()
    result = await sandbox.exec.run("wc -c", stdin=data, deadline_ms=100_000)
    assert result.stdout.strip() == str(len(data))


@case("T50", needs=EXEC)
async def pieces_arrive_in_order(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    parts = [str(number).encode() * number for number in range(400)]
    assert (await sandbox.exec.run("cat", stdin=pieces(*parts))).out.data == b"".join(parts)
    stream = sandbox.exec.stream("cat", stdin=pieces(*parts))
    assert b"".join([chunk.data async for chunk in stream]) == b"".join(parts)


@case("T42", needs=EXEC)
async def command_that_does_not_read(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    data = b"x" * 8_388_608
    assert (await sandbox.exec.run("true", stdin=data, deadline_ms=20_000)).ok
    assert (await sandbox.exec.run("head -c 5", stdin=data, deadline_ms=20_000)).out.data == b"xxxxx"
    assert (await sandbox.exec.run("exec <&-; sleep 0.1; echo closed", stdin=data, deadline_ms=20_000)).stdout == "closed\n"


@case(needs=EXEC)
async def endless_stdin_ends_with_the_command(trial: Trial) -> None:
    sandbox = await trial.sandbox()

    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"y\n" * 1_000
            await asyncio.sleep(0)

    assert (await sandbox.exec.run("head -c 4", stdin=endless(), deadline_ms=20_000)).out.data == b"y\ny\n"


@case(needs=EXEC)
async def broken_source_is_told_and_ends_the_command(trial: Trial) -> None:
    sandbox = await trial.sandbox()

    async def broken() -> AsyncIterator[bytes]:
        yield b"part"
        raise ConnectionResetError("the source broke off")

    with pytest.raises(ConnectionResetError):
        await sandbox.exec.run("cat > got; sleep 60", stdin=broken())
    assert await sandbox.idle()
    assert (await sandbox.exec.run("true")).ok


@case("T24", needs=EXEC)
async def conversation_over_stdin(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    heard: asyncio.Queue[bytes] = asyncio.Queue()

    async def answers() -> AsyncIterator[bytes]:
        yield b"one\n"
        assert await heard.get() == b"got one\n"
        yield b"two\n"
        assert await heard.get() == b"got two\n"

    stream = sandbox.exec.stream("while read -r line; do echo got $line; done; echo end", stdin=answers())
    said = []
    async with asyncio.timeout(20):
        async for chunk in stream:
            said.append(chunk.data)
            heard.put_nowait(chunk.data)
    assert said == [b"got one\n", b"got two\n", b"end\n"]
