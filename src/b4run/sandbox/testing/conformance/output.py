"""Output: every byte or an exact count of what is missing, in flat memory."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from b4run.sandbox.contract import Capability, Stream
from b4run.sandbox.testing.trial import Trial, at_rest, case, sh

EXEC = (Capability.EXEC,)
MIB = 1_048_576
FLAT = 48 * MIB
"""How much this process may grow while 200 MiB go through it."""


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@asynccontextmanager
async def flat_memory() -> AsyncIterator[None]:
    """Fail if this process grows by more than `FLAT` at any moment of the block."""
    before = resident_bytes()
    highest = before

    async def watch() -> None:
        nonlocal highest
        while True:
            highest = max(highest, resident_bytes())
            await asyncio.sleep(0.005)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
    assert highest - before < FLAT, f"grew by {(highest - before) / MIB:.0f} MiB"


@case("T35", "T36", needs=EXEC, limit_s=120)
async def two_hundred_mebibytes_in_flat_memory(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    async with flat_memory():
        result = await sandbox.exec.run("head -c 209715200 /dev/zero", deadline_ms=100_000)
    assert (result.exit_code, result.out.total) == (0, 200 * MIB)
    assert result.out.truncated
    assert len(result.out.data) == MIB


@case("T50", needs=EXEC, limit_s=120, alone=True)
async def two_hundred_mebibytes_as_a_stream(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    stream = sandbox.exec.stream("head -c 209715200 /dev/zero; echo end >&2")
    total = 0
    errors = b""
    async with flat_memory():
        async for chunk in stream:
            if chunk.stream is Stream.STDOUT:
                total += len(chunk.data)
            else:
                errors += chunk.data
    assert (total, errors) == (200 * MIB, b"end\n")
    assert (await stream.result()).out.total == 200 * MIB


@case("T35", needs=EXEC)
async def slow_reader_holds_the_command_back(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    stream = sandbox.exec.stream("echo 0 > at; i=0; while [ $i -lt 400 ]; do head -c 100000 /dev/zero; i=$((i+1)); echo $i > at; done")
    async for _ in stream:
        break
    progress = -1
    while progress != (progress := int((await sandbox.files.read("at")).data or b"0")):
        await asyncio.sleep(0.3)
    assert progress < 400
    await stream.cancel()


@case("T39", needs=EXEC)
async def head_and_tail_are_kept(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run("printf START; head -c 3000000 /dev/zero; printf END")
    assert result.out.total == 3_000_008
    assert (len(result.out.head), len(result.out.tail)) == (524_288, 524_288)
    assert result.out.head.startswith(b"START\0")
    assert result.out.tail.endswith(b"\0END")
    assert f"{3_000_008 - 1_048_576} bytes left out" in result.stdout


@case("T39", "T49", needs=EXEC)
async def limit_is_the_callers(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run("printf 0123456789abcdef; printf 0123456789 >&2", output_limit=10)
    assert (result.out.head, result.out.tail, result.out.total) == (b"01234", b"bcdef", 16)
    assert (result.err.data, result.err.truncated) == (b"0123456789", False)


@case("T40", needs=EXEC)
async def exactly_the_limit_is_whole(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for size in (1, 262_143, 262_144, 262_145, 1_048_575, 1_048_576):
        result = await sandbox.exec.run(f"head -c {size} /dev/zero | tr '\\0' x")
        assert (result.out.data, result.out.truncated) == (b"x" * size, False)


@case(needs=EXEC)
async def no_newline_needed(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    assert (await sandbox.exec.run("printf abc")).out.data == b"abc"
    result = await sandbox.exec.run("head -c 900000 /dev/zero | tr '\\0' y")
    assert result.out.data == b"y" * 900_000


@case("T33", needs=EXEC)
async def invalid_utf8_is_kept_and_shown(trial: Trial) -> None:
    result = await (await trial.sandbox()).exec.run(r"printf '\377\376ok\303'; printf '\200' >&2")
    assert (result.out.data, result.err.data) == (b"\xff\xfeok\xc3", b"\x80")
    assert (result.stdout, result.stderr) == ("\ufffd\ufffdok\ufffd", "\ufffd")


@case("T31", "T32", needs=EXEC)
async def character_split_in_two_writes(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    command = r"printf '\342\202'; sleep 0.2; printf '\254 \360\237'; sleep 0.2; printf '\230\200'"
    assert (await sandbox.exec.run(command)).stdout == "€ \U0001f600"
    stream = sandbox.exec.stream(command)
    assert b"".join([chunk.data async for chunk in stream]).decode() == "€ \U0001f600"


@case("T31", "T65", needs=EXEC)
async def characters_across_chunks_and_cuts(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    text = "x" + "€" * 300_000
    await sandbox.files.write("text", text.encode())
    assert (await sandbox.exec.run("cat text")).stdout == text
    for shift in range(4):
        cut = await sandbox.exec.run(f"head -c {shift} /dev/zero | tr '\\0' x; cat text text")
        assert cut.out.truncated
        assert "\ufffd" not in cut.stdout


@case("T48", needs=EXEC)
async def nul_bytes_are_bytes(trial: Trial) -> None:
    result = await (await trial.sandbox()).exec.run(r"printf 'a\000b\000\000'; printf '\000' >&2")
    assert (result.out.data, result.err.data) == (b"a\0b\0\0", b"\0")
    assert result.stdout == "a\0b\0\0"


@case(needs=EXEC)
async def streams_are_apart_or_merged(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    command = "echo out; echo err >&2; echo out2"
    apart = await sandbox.exec.run(command)
    assert (apart.stdout, apart.stderr) == ("out\nout2\n", "err\n")
    merged = await sandbox.exec.run(command, merge_stderr=True)
    assert (merged.stdout, merged.stderr) == ("out\nerr\nout2\n", "")


@case("T42", needs=EXEC)
async def both_streams_full_do_not_block(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run("head -c 5000000 /dev/zero >&2 & head -c 5000000 /dev/zero; wait", deadline_ms=30_000)
    assert (result.exit_code, result.out.total, result.err.total) == (0, 5_000_000, 5_000_000)


@case("T40", "T46", needs=EXEC)
async def random_bytes_arrive_unchanged(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sh(sandbox, "head -c 5000000 /dev/urandom > random")
    expected = (await sh(sandbox, "sha256sum random")).split()[0]
    content = await sandbox.files.read("random")
    assert hashlib.sha256(content.data).hexdigest() == expected
    digest = hashlib.sha256()
    async for chunk in sandbox.exec.stream("cat random"):
        digest.update(chunk.data)
    assert digest.hexdigest() == expected
    assert (await sandbox.exec.run("head -c 900000 random")).out.data == content.data[:900_000]


@case("T1", "T23", needs=EXEC)
async def result_has_the_last_byte_and_the_log_what_follows(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    wait = "until [ -e {} ]; do sleep 0.02; done"
    result = await sandbox.exec.run(f"({wait.format('go')}; printf later; {wait.format('stop')}) & printf now")
    assert result.out.data == b"now"
    job = sandbox.exec.job(result.job)
    assert (await job.read()).data == b"now"
    await sandbox.files.write("go", b"")
    async with asyncio.timeout(20):
        while (await job.read(offset=3)).data != b"later":
            await asyncio.sleep(0.02)
    await sandbox.files.write("stop", b"")
    await at_rest(sandbox)


@case("T23", needs=EXEC, limit_s=120)
async def quick_commands_never_lose_output(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for number in range(200):
        result = await sandbox.exec.run(f"printf {number}; printf e >&2")
        assert (result.out.data, result.err.data) == (str(number).encode(), b"e")
