"""Writing: in one step or not at all, with modes kept, and never over what changed in between."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from b4run.sandbox.contract import Capability
from b4run.sandbox.testing.trial import Trial, case, chmod, contents, pieces, refused, sh


@case()
async def folders_are_made_on_the_way(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a/b/c.txt", b"x")
    assert (await files.read("a/b/c.txt")).data == b"x"
    async with refused("not_found"):
        await files.write("n/o/c.txt", b"x", parents=False)
    await files.write("a/b/d.txt", b"x", parents=False)


@case("T61")
async def modes_are_kept_and_set(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    assert (await files.write("plain", b"")).mode == 0o644
    assert (await files.write("tool", b"", mode=0o755)).mode == 0o755
    await files.write("tool", b"changed")
    assert (await files.stat("tool")).mode == 0o755
    await files.write("tool", b"changed", mode=0o600)
    assert (await files.stat("tool")).mode == 0o600


@case("T61")
async def mode_given_by_a_command_is_kept(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("run.sh", b"#!/bin/sh\n")
    await chmod(sandbox, 0o751, "run.sh")
    await sandbox.files.write("run.sh", b"#!/bin/sh\necho\n")
    assert (await sandbox.files.stat("run.sh")).mode == 0o751


@case("T64")
async def line_ends_stay_as_they_are(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    data = b"\xef\xbb\xbfone\r\ntwo\nthree\r"
    await files.write("a", data)
    assert (await files.read("a")).data == data
    assert (await files.read_lines("a")).data == data


@case("T63")
async def nothing_is_left_beside_the_file(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for number in range(20):
        await sandbox.files.write("d/a", str(number).encode())
    assert await contents(sandbox, "d") == ["a"]


@case("T50")
async def content_can_come_in_pieces(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    parts = [bytes([number]) * 70_000 for number in range(30)]
    entry = await files.write("a", pieces(*parts))
    assert entry.size == 2_100_000
    assert (await files.read("a")).data == b"".join(parts)
    await files.write("empty", pieces())
    assert (await files.read("empty")).data == b""


@case("T62", "T63")
async def broken_off_content_changes_nothing(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("a", b"before")

    async def broken() -> AsyncIterator[bytes]:
        yield b"after" * 50_000
        raise ConnectionResetError("the source broke off")

    for path in ("a", "new"):
        with pytest.raises(ConnectionResetError):
            await sandbox.files.write(path, broken())
    assert (await sandbox.files.read("a")).data == b"before"
    assert await contents(sandbox) == ["a"]


@case("T63")
async def concurrent_writes_never_mix(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    versions = [bytes([65 + number]) * 300_000 for number in range(12)]
    writes = asyncio.gather(*(sandbox.files.write("a", version) for version in versions))
    await writes
    assert (await sandbox.files.read("a")).data in versions
    assert await contents(sandbox) == ["a"]


@case("T63")
async def reader_sees_old_or_new(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    versions = [bytes([65 + number]) * 200_000 for number in range(8)]
    await files.write("a", versions[0])

    async def write_all() -> None:
        for version in versions:
            await files.write("a", version)

    writing = asyncio.create_task(write_all())
    while not writing.done():
        assert (await files.read("a")).data in versions
    await writing


@case()
async def create_refuses_what_exists(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a", b"1", create=True)
    async with refused("exists"):
        await files.write("a", b"2", create=True)
    assert (await files.read("a")).data == b"1"


@case()
async def edit_of_a_changed_file_is_refused(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a", b"one")
    seen = await files.read("a")
    await files.write("a", b"two")
    async with refused("changed"):
        await files.write("a", b"three", expect=seen.version)
    assert (await files.read("a")).data == b"two"
    again = await files.read("a")
    written = await files.write("a", b"three", expect=again.version)
    assert (await files.read("a")).version == written.version
    async with refused("changed"):
        await files.write("a", b"four", expect=again.version)


@case()
async def edit_of_a_removed_file_is_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    version = (await sandbox.files.write("a", b"one")).version
    await sandbox.files.remove("a")
    async with refused("changed"):
        await sandbox.files.write("a", b"two", expect=version)
    assert await contents(sandbox) == []


@case()
async def versions_stay_while_nobody_writes(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    written = await files.write("a", b"one")
    await files.write("b", b"other")
    assert (await files.stat("a")).version == (await files.read("a")).version == written.version
    assert (await files.entries("."))[0].version == written.version


@case(needs=(Capability.EXEC,))
async def edit_of_a_file_changed_by_a_command_is_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for change in ("printf x >> a", "printf eno > a", "printf eno > b && mv b a", "printf eno > a && touch -r old a"):
        await sandbox.files.write("a", b"one")
        await sh(sandbox, "touch -r a old")
        version = (await sandbox.files.read("a")).version
        await sh(sandbox, change)
        async with refused("changed"):
            await sandbox.files.write("a", b"two", expect=version)


@case(needs=(Capability.EXEC,))
async def commands_and_files_see_the_same(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("bin/hello", b"#!/bin/sh\necho hello $1\n", mode=0o755)
    assert await sh(sandbox, "bin/hello you && rm bin/hello && printf made > bin/new") == "hello you"
    assert await contents(sandbox, "bin") == ["new"]
    assert (await sandbox.files.read("bin/new")).data == b"made"


@case("T70", needs=(Capability.EXEC,))
async def files_belong_to_the_user_of_the_commands(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("d/a", b"x", mode=0o600)
    assert await sh(sandbox, "[ -O d/a ] && [ -O d ] && printf y >> d/a && rm d/a && rmdir d && echo mine") == "mine"
