"""Symbolic links that lead out: refused whatever their shape, and whenever they appear."""

from __future__ import annotations

import asyncio

from b4run.errors import FileRefused
from b4run.sandbox.contract import Capability, FileKind, SandboxHandle
from b4run.sandbox.testing.trial import Trial, case, contents, refused, sh, symlink

SHAPES = {
    "absolute": "/etc/passwd",
    "relative": "../etc/passwd",
    "root": "/",
    "up": "..",
    "dangling": "/tmp/not-there",
    "dangling-relative": "../tmp/not-there",
    "device": "/dev/zero",
    "process": "/proc/self/environ",
}


async def _refuses_file(sandbox: SandboxHandle, path: str) -> None:
    files = sandbox.files
    async with refused("outside"):
        await files.read(path)
    async with refused("outside"):
        await files.read_lines(path)
    async with refused("outside"):
        await files.write(path, b"x")
    async with refused("outside"):
        await files.stat(path)
    async with refused("outside"):
        [piece async for piece in files.read_stream(path)]


async def _refuses_folder(sandbox: SandboxHandle, path: str) -> None:
    files = sandbox.files
    for action in (files.list, files.entries, files.walk):
        async with refused("outside"):
            await action(path)
    below = f"{path}/below"
    await _refuses_file(sandbox, below)
    async with refused("outside"):
        await files.mkdir(below)
    async with refused("outside"):
        await files.remove(below, recursive=True)
    async with refused("outside"):
        await files.rename("file", below)
    async with refused("outside"):
        await files.rename(below, "other")


@case("T51", "T56")
async def links_out_are_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for name, target in SHAPES.items():
        await symlink(sandbox, target, name)
        await _refuses_file(sandbox, name)
        entry = await sandbox.files.stat(name, follow=False)
        assert (entry.kind, entry.target) == (FileKind.SYMLINK, target)
        assert not (await sandbox.files.real_path(name)).inside
    assert await contents(sandbox) == sorted(SHAPES)


@case("T51")
async def folders_linked_out_are_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("file", b"")
    for name, target in {"absolute": "/tmp", "relative": "../tmp", "up": "..", "self": "/workspace/../tmp"}.items():
        await symlink(sandbox, target, name)
        await _refuses_folder(sandbox, name)
    assert "below" not in (await sandbox.files.list("/tmp", beyond=True)).names


@case("T51")
async def chain_of_links_is_followed_to_its_end(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.mkdir("d")
    await symlink(sandbox, "../../tmp", "d/out")
    await symlink(sandbox, "d/out", "one")
    await symlink(sandbox, "one", "two")
    await _refuses_file(sandbox, "two/x")
    await symlink(sandbox, "/workspace/one", "three")
    await _refuses_file(sandbox, "three/x")


@case("T51")
async def dangling_link_out_creates_nothing(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await symlink(sandbox, "/tmp/made-by-write", "l")
    async with refused("outside"):
        await sandbox.files.write("l", b"x")
    async with refused("outside"):
        await sandbox.files.write("l", b"x", create=True)
    assert "made-by-write" not in (await sandbox.files.list("/tmp", beyond=True)).names
    assert (await sandbox.files.stat("l", follow=False)).kind is FileKind.SYMLINK


@case("T51")
async def beyond_follows_no_link(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("/tmp/target", b"x", beyond=True)
    await symlink(sandbox, "/tmp/target", "/workspace/l")
    for path in ("/workspace/l", "/workspace/l/x"):
        async with refused("loop"):
            await sandbox.files.read(path, beyond=True)


@case("T51")
async def removing_a_link_out_removes_the_link(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("/tmp/target/a", b"x", beyond=True)
    await symlink(sandbox, "/tmp/target", "l")
    assert await sandbox.files.remove("l", recursive=True) == 1
    assert (await sandbox.files.list("/tmp/target", beyond=True)).names == ["a"]


SWAP = """
mkdir -p /tmp/outside d && ln -s /tmp/outside evil
while [ ! -e stop ]; do mv d good && mv evil d && mv d evil && mv good d; done
"""


@case("T51", needs=(Capability.EXEC,), limit_s=120)
async def folder_swapped_for_a_link_while_writing(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    job = await sandbox.exec.start(SWAP)
    await sh(sandbox, "until [ -L evil ] || [ -L d ]; do sleep 0.01; done")
    outcomes = await asyncio.gather(*(_swapped(sandbox, number) for number in range(400)))
    await sandbox.files.write("stop", b"")
    assert (await job.wait(timeout_ms=20_000)).exit_code == 0
    assert await sh(sandbox, "cd /tmp/outside && echo *") == "*"
    assert "written" in outcomes
    assert set(outcomes) <= {"written", "outside", "not_found", "changed", "io", "loop", "exists"}


async def _swapped(sandbox: SandboxHandle, number: int) -> str:
    try:
        await sandbox.files.write(f"d/{number}", b"x", parents=number % 2 == 0)
        if number % 5 == 0:
            await sandbox.files.remove(f"d/{number}")
    except FileRefused as error:
        return error.kind
    return "written"


@case("T51", needs=(Capability.EXEC,), limit_s=120)
async def file_swapped_for_a_link_while_reading_and_writing(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("/tmp/secret", b"secret", beyond=True)
    await sandbox.files.write("f", b"public")
    swap = "ln -s /tmp/secret l; while [ ! -e stop ]; do mv f g && mv l f && mv f l && mv g f; done"
    job = await sandbox.exec.start(swap)
    for _ in range(400):
        try:
            assert (await sandbox.files.read("f")).data in (b"public", b"")
            await sandbox.files.write("f", b"public")
        except FileRefused as error:
            assert error.kind in {"outside", "not_found", "changed", "io"}, error
    await sandbox.files.write("stop", b"")
    await job.wait(timeout_ms=20_000)
    assert (await sandbox.files.read("/tmp/secret", beyond=True)).data == b"secret"
