"""Symbolic links that stay inside, FIFOs and modes: what they are, and that nothing blocks on them."""

from __future__ import annotations

import asyncio

from b4run.sandbox.contract import Capability, FileKind
from b4run.sandbox.testing.trial import Trial, case, chmod, contents, mkfifo, refused, sh, symlink


@case("T61")
async def links_inside_are_followed(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    files = sandbox.files
    await files.write("real/a", b"a")
    await symlink(sandbox, "real", "folder")
    await symlink(sandbox, "real/a", "file")
    await symlink(sandbox, "/workspace/real/a", "absolute")
    await symlink(sandbox, "../file", "real/back")
    for path in ("folder/a", "file", "absolute", "real/back", "folder/back"):
        assert (await files.read(path)).data == b"a"
        assert (await files.stat(path)).kind is FileKind.FILE
        real = await files.real_path(path)
        assert (real.path, real.inside) == ("/workspace/real/a", True)
    assert (await files.list("folder")).names == ["a", "back"]


@case("T61")
async def write_through_a_link_changes_its_target(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("real/a", b"before")
    await symlink(sandbox, "real/a", "file")
    await symlink(sandbox, "real", "folder")
    await sandbox.files.write("file", b"after")
    await sandbox.files.write("folder/b", b"new")
    assert (await sandbox.files.read("real/a")).data == b"after"
    assert (await sandbox.files.stat("file", follow=False)).kind is FileKind.SYMLINK
    assert await contents(sandbox, "real") == ["a", "b"]


@case()
async def link_itself_is_told_removed_and_moved(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("real/a", b"a")
    await symlink(sandbox, "real", "l")
    entry = await sandbox.files.stat("l", follow=False)
    assert (entry.kind, entry.target) == (FileKind.SYMLINK, "real")
    await sandbox.files.rename("l", "m")
    assert (await sandbox.files.stat("m", follow=False)).target == "real"
    assert await sandbox.files.remove("m", recursive=True) == 1
    assert (await sandbox.files.read("real/a")).data == b"a"


@case()
async def removing_a_folder_does_not_follow_its_links(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("keep/a", b"a")
    await sandbox.files.mkdir("d")
    await symlink(sandbox, "../keep", "d/l")
    assert await sandbox.files.remove("d", recursive=True) == 2
    assert await contents(sandbox, "keep") == ["a"]


@case()
async def walk_does_not_follow_links(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("d/a", b"a")
    await symlink(sandbox, "..", "d/up")
    assert [(entry.path, entry.kind.value) for entry in await sandbox.files.walk()] == [
        ("d", "directory"),
        ("d/a", "file"),
        ("d/up", "symlink"),
    ]


@case()
async def dangling_link_inside_is_not_found(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await symlink(sandbox, "none", "l")
    async with refused("not_found"):
        await sandbox.files.read("l")
    async with refused("not_found"):
        await sandbox.files.stat("l")
    async with refused("exists"):
        await sandbox.files.mkdir("l", parents=False)
    assert await contents(sandbox) == ["l"]


@case()
async def circle_of_links_is_told(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await symlink(sandbox, "b", "a")
    await symlink(sandbox, "a", "b")
    async with refused("loop"):
        await sandbox.files.read("a")
    async with refused("loop"):
        await sandbox.files.list("a/x")


@case("T51")
async def fifo_never_blocks(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await mkfifo(sandbox, "fifo")
    assert (await sandbox.files.stat("fifo")).kind is FileKind.FIFO
    async with asyncio.timeout(10):
        async with refused("not_regular"):
            await sandbox.files.read("fifo")
        async with refused("not_regular"):
            await sandbox.files.read_lines("fifo")
        async with refused("not_regular"):
            await sandbox.files.write("fifo", b"x")
    assert (await sandbox.files.entries())[0].kind is FileKind.FIFO
    assert await sandbox.files.remove("fifo") == 1


@case(needs=(Capability.EXEC,))
async def device_is_no_regular_file(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    async with asyncio.timeout(10):
        async with refused("not_regular"):
            await sandbox.files.read("/dev/zero", beyond=True)
        async with refused("not_regular"):
            await sandbox.files.write("/dev/null", b"x", beyond=True)


@case(needs=(Capability.EXEC,))
async def modes_refuse_what_they_should(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("d/secret", b"x")
    await chmod(sandbox, 0o000, "d/secret")
    async with refused("denied"):
        await sandbox.files.read("d/secret")
    await chmod(sandbox, 0o555, "d")
    async with refused("denied"):
        await sandbox.files.write("d/new", b"x")
    async with refused("denied"):
        await sandbox.files.remove("d/secret")
    await chmod(sandbox, 0o755, "d")
    assert await sh(sandbox, "cd d && echo *") == "secret"
