"""What the fake adds to the contract: answers, fault hooks, a look at its files."""

from __future__ import annotations

import asyncio

import pytest

from b4run.errors import CommandRefused, FileRefused, SandboxLost
from b4run.sandbox import Cause, SandboxHandle, SandboxPolicy
from b4run.sandbox.testing import Answer, FakeCommand, MemoryTree, fake_sandbox
from b4run.sandbox.testing.commands import AnswerCommand


async def sandbox_with(answer: AnswerCommand) -> SandboxHandle:
    return await fake_sandbox(answer).acquire("t", SandboxPolicy(env={"FROM": "policy"}))


async def test_command_without_an_answer_prints_nothing() -> None:
    sandbox = await fake_sandbox().acquire("t", SandboxPolicy())
    result = await sandbox.exec.run("anything")
    assert (result.exit_code, result.cause, result.stdout, result.stderr) == (0, Cause.EXIT, "", "")


async def test_answer_sees_the_command_and_changes_files() -> None:
    def answer(command: FakeCommand) -> Answer:
        command.files.put("out", command.stdin + command.env["FROM"].encode() + command.env["MORE"].encode())
        return Answer(stdout=" ".join([*command.argv, command.cwd]), stderr=b"\xff", exit_code=3)

    sandbox = await sandbox_with(answer)
    await sandbox.files.mkdir("d")
    result = await sandbox.exec.run("build it", cwd="d", env={"MORE": "!"}, stdin=b"in ")
    assert (result.stdout, result.err.data, result.exit_code) == ("/bin/sh -c build it d", b"\xff", 3)
    assert (await sandbox.files.read("out")).data == b"in policy!"
    assert (await sandbox.exec.run(["a", b"\xff"], env={"MORE": ""})).out.data == b"a \xff ."


async def test_answer_may_be_a_string_a_signal_or_cut() -> None:
    sandbox = await sandbox_with(lambda command: Answer(signal=9) if command.argv == ["die"] else "0123456789")
    died = await sandbox.exec.run(["die"])
    assert (died.cause, died.signal, died.exit_code) == (Cause.SIGNAL, 9, 137)
    cut = await sandbox.exec.run("x", output_limit=4)
    assert (cut.out.head, cut.out.tail, cut.out.total) == (b"01", b"89", 10)


async def test_deadline_and_cancellation_end_an_answer_that_waits() -> None:
    began = asyncio.Event()

    async def answer(_: FakeCommand) -> Answer:
        began.set()
        return await asyncio.Future[Answer]()

    sandbox = await sandbox_with(answer)
    result = await sandbox.exec.run("x", deadline_ms=10)
    assert (result.cause, result.exit_code) == (Cause.TIMEOUT, 124)
    job = await sandbox.exec.start("x")
    assert not await sandbox.idle()
    await job.cancel()
    assert (await job.wait()).cause is Cause.CANCELLED
    began.clear()
    running = asyncio.create_task(sandbox.exec.run("x"))
    await began.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await sandbox.idle()


async def test_job_list_and_log() -> None:
    sandbox = await sandbox_with(lambda command: Answer(stdout="out", stderr="err", exit_code=2))
    job = await sandbox.exec.start(["make", "all"])
    await job.wait()
    assert [(info.job, info.exit_code, info.command) for info in await sandbox.exec.jobs()] == [(job.id, 2, "make all")]
    part = await job.read(offset=1, limit=1)
    assert (part.data, part.total, part.eof) == (b"u", 3, False)
    assert await job.signal(9) == 0


async def test_cwd_must_be_a_folder() -> None:
    sandbox = await sandbox_with(lambda command: "")
    with pytest.raises(CommandRefused, match="not_found"):
        await sandbox.exec.run("x", cwd="none")


async def test_error_of_an_answer_is_the_callers() -> None:
    def answer(_: FakeCommand) -> Answer:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await (await sandbox_with(answer)).exec.run("x")


async def test_loss_ends_calls_under_way() -> None:
    began = asyncio.Event()

    async def answer(_: FakeCommand) -> Answer:
        began.set()
        return await asyncio.Future[Answer]()

    provider = fake_sandbox(answer)
    sandbox = await provider.acquire("t", SandboxPolicy())
    running = asyncio.create_task(sandbox.exec.run("x"))
    await began.wait()
    provider.lose("t")
    with pytest.raises(SandboxLost):
        await running
    assert (await provider.acquire("t", SandboxPolicy())).instance != sandbox.instance


async def test_hooks_may_refuse_and_the_log_tells_what_was_done() -> None:
    provider = fake_sandbox()

    async def refuse(thread_id: str) -> None:
        raise PermissionError(thread_id)

    provider.on_destroy = refuse
    await provider.acquire("t", SandboxPolicy())
    with pytest.raises(PermissionError, match="t"):
        await provider.destroy("t")
    assert provider.log == [("acquire", "t")]
    assert not provider.handle("t").lost


def test_tree_can_be_prepared_and_looked_at() -> None:
    provider = fake_sandbox(outside={"/etc/hosts": b"127.0.0.1 localhost\n"})
    tree = provider.tree("t")
    tree.put("a", b"1")
    tree.symlink("a", "b")
    assert tree.content("b") == b"1"
    tree.put("b", b"22")
    assert tree.content("a") == b"22"
    assert tree.find("/etc/hosts", beyond=True).data == b"127.0.0.1 localhost\n"
    with pytest.raises(FileRefused, match="/etc/hosts"):
        tree.find("/etc/hosts")


async def test_content_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("b4run.sandbox.testing.memory.MAX_CONTENT", 100)
    sandbox = await fake_sandbox().acquire("t", SandboxPolicy())
    await sandbox.files.write("a", b"x" * 60)
    with pytest.raises(FileRefused) as caught:
        await sandbox.files.write("b", b"x" * 41)
    assert caught.value.kind == "no_space"
    await sandbox.files.write("a", b"x" * 100)
    with pytest.raises(FileRefused):
        MemoryTree().put("b", b"x" * 101)
