"""Reading, whole and in parts; stat, mkdir, remove, rename."""

from __future__ import annotations

import pytest

from b4run.errors import FileRefused
from b4run.sandbox.contract import FileKind
from b4run.sandbox.testing.trial import Trial, case, contents, refused

EVERY_BYTE = bytes(range(256))


@case()
async def write_and_read_back(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    for data in (b"", b"text\n", EVERY_BYTE, b"\r\n\n\r", "héllo €\U0001f600".encode(), b"\xff\xfe\x00"):
        await files.write("a", data)
        content = await files.read("a")
        assert (content.data, content.size) == (data, len(data))


@case("T62")
async def megabytes_arrive_whole(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    data = EVERY_BYTE * 20_000 + b"end"
    entry = await files.write("big", data)
    assert entry.size == len(data)
    assert (await files.read("big")).data == data


@case()
async def read_a_range(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a", b"0123456789")
    for offset, limit, expected in [(0, 4, b"0123"), (8, 4, b"89"), (10, 4, b""), (50, 4, b""), (3, 0, b""), (2, None, b"23456789")]:
        content = await files.read("a", offset=offset, limit=limit)
        assert (content.data, content.size) == (expected, 10)


@case("T38")
async def read_over_its_bound_is_refused(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a", b"x" * 1_001)
    assert (await files.read("a", max_size=1_001)).size == 1_001
    with pytest.raises(FileRefused) as caught:
        await files.read("a", max_size=1_000)
    assert (caught.value.kind, caught.value.fields["size"]) == ("too_large", 1_001)


@case("T50")
async def read_as_a_stream(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    data = EVERY_BYTE * 12_000
    await files.write("a", data)
    assert b"".join([piece async for piece in files.read_stream("a")]) == data
    assert b"".join([piece async for piece in files.read_stream("a", offset=3_000_000)]) == data[3_000_000:]


@case()
async def missing_things_are_not_found(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    for path in ("none", "none/below"):
        async with refused("not_found"):
            await files.read(path)
        async with refused("not_found"):
            await files.stat(path)
        async with refused("not_found"):
            await files.read_lines(path)
        async with refused("not_found"):
            await files.remove(path)
        async with refused("not_found"):
            await files.rename(path, "other")
    async with refused("not_found"):
        [piece async for piece in files.read_stream("none")]


@case()
async def folders_are_no_files(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("d/f", b"x")
    async with refused("is_directory"):
        await files.read("d")
    async with refused("is_directory"):
        await files.write("d", b"x")
    async with refused("not_directory"):
        await files.write("d/f/g", b"x")
    async with refused("not_directory"):
        await files.read("d/f/g")
    assert (await files.read("d/f")).data == b"x"


@case()
async def stat_tells_kind_size_and_mode(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("f", b"12345", mode=0o640)
    await files.mkdir("d", mode=0o700)
    file, folder, root = await files.stat("f"), await files.stat("d"), await files.stat(".")
    assert (file.kind, file.size, file.mode, file.target) == (FileKind.FILE, 5, 0o640, None)
    assert (folder.kind, folder.mode) == (FileKind.DIRECTORY, 0o700)
    assert root.kind is FileKind.DIRECTORY
    assert file.version == (await files.read("f")).version


@case()
async def lines_of_a_file(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a", b"one\r\ntwo\n\nfour")
    for first, last, data, end in [
        (1, 1, b"one\r\n", 1),
        (2, 3, b"two\n\n", 3),
        (4, 4, b"four", 4),
        (3, None, b"\nfour", 4),
        (2, 99, b"two\n\nfour", 4),
    ]:
        lines = await files.read_lines("a", first=first, last=last)
        assert (lines.data, lines.first, lines.last, lines.total) == (data, first, end, 4)


@case()
async def lines_beyond_the_end_are_refused(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a", b"one\ntwo\n")
    with pytest.raises(FileRefused) as caught:
        await files.read_lines("a", first=3)
    assert (caught.value.kind, caught.value.fields["total"]) == ("bad_range", 2)


@case("T34")
async def lines_over_their_bound_are_refused(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a", b"x" * 999 + b"\n" + b"y\n")
    async with refused("too_large"):
        await files.read_lines("a", limit=500)
    assert (await files.read_lines("a", first=2, limit=500)).data == b"y\n"


@case()
async def mkdir_and_what_is_there_already(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    assert await files.mkdir("a/b/c")
    assert not await files.mkdir("a/b/c")
    async with refused("exists"):
        await files.mkdir("a/b/c", parents=False)
    async with refused("not_found"):
        await files.mkdir("x/y", parents=False)
    await files.write("f", b"")
    async with refused("exists"):
        await files.mkdir("f")


@case()
async def remove_files_and_folders(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    for path in ("a", "d/x", "d/e/y", "d/e/z"):
        await files.write(path, b"")
    assert await files.remove("a") == 1
    async with refused("not_empty"):
        await files.remove("d")
    assert await files.remove("d", recursive=True) == 5
    assert (await files.list()).names == []


@case()
async def workspace_itself_stays(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("a", b"")
    for path in (".", "/workspace"):
        with pytest.raises(FileRefused):
            await sandbox.files.remove(path, recursive=True)
        with pytest.raises(FileRefused):
            await sandbox.files.rename(path, "other")
    assert await contents(sandbox) == ["a"]


@case()
async def rename_moves_and_replaces(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a", b"a", mode=0o755)
    await files.write("b", b"b")
    async with refused("exists"):
        await files.rename("a", "b", replace=False)
    assert (await files.read("b")).data == b"b"
    await files.rename("a", "b")
    assert ((await files.read("b")).data, (await files.stat("b")).mode) == (b"a", 0o755)
    await files.mkdir("d")
    await files.rename("b", "d/c", replace=False)
    await files.rename("d", "e")
    assert (await files.read("e/c")).data == b"a"
    async with refused("not_found"):
        await files.rename("e/c", "none/c")
