"""Files in a real guest, through the public backend."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator

import pytest

from b4run.errors import FileRefused
from b4run.sandbox.contract import FileKind

from .real import Guest

MIB = 1 << 20


async def refused(call: object) -> str:
    with pytest.raises(FileRefused) as caught:
        await call  # type: ignore[misc]
    return caught.value.kind


async def test_write_read_stat(guest: Guest) -> None:
    files = guest.sandbox.files
    written = await files.write("a/b.txt", b"x\r\ny")
    assert (written.path, written.kind, written.mode, written.size) == ("a/b.txt", FileKind.FILE, 0o644, 4)
    content = await files.read("a/b.txt")
    assert (content.data, content.size, content.version) == (b"x\r\ny", 4, written.version)
    assert (await files.read("a/b.txt", offset=1, limit=2)).data == b"\r\n"
    found = await files.stat(str(guest.workspace / "a/b.txt"))
    assert (found.path, found.version, found.mtime_ns) == ("b.txt", written.version, (guest.workspace / "a/b.txt").stat().st_mtime_ns)


async def test_a_replaced_file_keeps_its_mode(guest: Guest) -> None:
    path = guest.workspace / "run.sh"
    path.write_text("old")
    path.chmod(0o755)
    assert (await guest.sandbox.files.write("run.sh", b"new")).mode == 0o755
    assert (await guest.sandbox.files.write("run.sh", b"new", mode=0o600)).mode == 0o600
    assert (path.read_text(), path.stat().st_mode & 0o7777) == ("new", 0o600)


async def test_a_file_that_changed_is_not_replaced(guest: Guest) -> None:
    files = guest.sandbox.files
    first = await files.write("a", b"one")
    (guest.workspace / "a").write_text("two")
    assert await refused(files.write("a", b"three", expect=first.version)) == "changed"
    assert await refused(files.write("a", b"three", create=True)) == "exists"
    assert (guest.workspace / "a").read_text() == "two"
    current = (await files.read("a")).version
    assert (await files.write("a", b"three", expect=current)).size == 5


async def test_large_content_both_ways(guest: Guest) -> None:
    files, data = guest.sandbox.files, os.urandom(MIB) * 20
    assert (await files.write("big", data)).size == len(data)
    assert (await files.read("big")).data == data
    assert b"".join([piece async for piece in files.read_stream("big", offset=5)]) == data[5:]

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), 700_000):
            yield data[start : start + 700_000]

    assert (await files.write("copy", pieces())).size == len(data)
    assert (guest.workspace / "copy").read_bytes() == data


async def test_a_write_that_is_given_up_leaves_nothing(guest: Guest) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"half"
        raise LookupError("mine")

    with pytest.raises(LookupError):
        await guest.sandbox.files.write("a", broken())
    assert os.listdir(guest.workspace) == []
    assert (await guest.sandbox.files.write("a", b"whole")).size == 5


async def test_a_reader_that_leaves_early(guest: Guest) -> None:
    (guest.workspace / "big").write_bytes(bytes(20 * MIB))
    pieces = guest.sandbox.files.read_stream("big")
    assert len(await anext(pieces)) > 0
    await pieces.aclose()  # type: ignore[attr-defined]
    assert not guest.client.busy
    assert await refused(anext(guest.sandbox.files.read_stream("none"))) == "not_found"


async def test_lines(guest: Guest) -> None:
    (guest.workspace / "text").write_bytes(b"1\n2\r\n3\n4")
    files = guest.sandbox.files
    lines = await files.read_lines("text", first=2, last=3)
    assert (lines.data, lines.first, lines.last, lines.total, lines.size) == (b"2\r\n3\n", 2, 3, 4, 8)
    lines = await files.read_lines("text", first=4, last=99)
    assert (lines.data, lines.last) == (b"4", 4)
    assert await refused(files.read_lines("text", first=5)) == "bad_range"
    assert await refused(files.read_lines("text", limit=3)) == "too_large"


async def test_sizes_are_bounded(guest: Guest) -> None:
    (guest.workspace / "a").write_bytes(bytes(11))
    with pytest.raises(FileRefused) as caught:
        await guest.sandbox.files.read("a", max_size=10)
    assert (caught.value.kind, caught.value.fields["size"]) == ("too_large", 11)
    assert len((await guest.sandbox.files.read("a", max_size=None)).data) == 11


async def test_names_of_any_bytes(guest: Guest) -> None:
    files, name = guest.sandbox.files, "new\nline \udcff ü"
    await files.write(name, b"x")
    assert (await files.list()).names == [name]
    assert (await files.stat(name)).path == name
    assert os.listdir(os.fsencode(guest.workspace)) == [os.fsencode(name)]


async def test_listing(guest: Guest) -> None:
    for name in ("b", "a", "Z", ".h"):
        (guest.workspace / name).touch()
    files = guest.sandbox.files
    page = await files.list(limit=3)
    assert (page.names, page.more) == ([".h", "Z", "a"], True)
    page = await files.list(after="a")
    assert (page.names, page.more) == (["b"], False)
    (guest.workspace / "d").mkdir()
    (guest.workspace / "l").symlink_to("nowhere")
    kinds = {entry.path: (entry.kind, entry.target) for entry in await files.entries()}
    assert (kinds["d"], kinds["l"]) == ((FileKind.DIRECTORY, None), (FileKind.SYMLINK, "nowhere"))
    assert await refused(files.list("a")) == "not_directory"


async def test_100000_entries(guest: Guest) -> None:
    folder = guest.workspace / "many"
    folder.mkdir()
    for number in range(100_000):
        os.close(os.open(folder / f"{number:06}", os.O_CREAT | os.O_WRONLY))
    page = await guest.sandbox.files.list("many", limit=100_000)
    assert (len(page.names), page.names[0], page.names[-1], page.more) == (100_000, "000000", "099999", False)
    walked = await guest.sandbox.files.walk("many")
    assert len(walked) == 100_000
    assert await refused(guest.sandbox.files.walk("many", limit=99_999)) == "too_many"


async def test_walk(guest: Guest) -> None:
    (guest.workspace / "d/e").mkdir(parents=True)
    (guest.workspace / "d/e/f").touch()
    (guest.workspace / "g").symlink_to("d")
    (guest.workspace / "skip").mkdir()
    (guest.workspace / "skip/x").touch()
    walked = await guest.sandbox.files.walk(exclude=["skip"])
    assert [entry.path for entry in walked] == ["d", "d/e", "d/e/f", "g"]


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("../secret", "outside"),
        ("/etc/passwd", "outside"),
        ("absolute", "outside"),
        ("up", "outside"),
        ("through/secret", "outside"),
        ("loop", "loop"),
    ],
)
async def test_nothing_leads_out(guest: Guest, path: str, kind: str) -> None:
    (guest.workspace.parent / "secret").write_text("s")
    (guest.workspace / "absolute").symlink_to("/etc/passwd")
    (guest.workspace / "up").symlink_to("../secret")
    (guest.workspace / "through").symlink_to("..")
    (guest.workspace / "loop").symlink_to("loop")
    files = guest.sandbox.files
    for call in (
        files.read(path),
        files.stat(path),
        files.write(path, b"x", parents=False) if path not in ("absolute", "up", "loop") else files.read(path),
    ):
        assert await refused(call) == kind
    assert (guest.workspace.parent / "secret").read_text() == "s"


async def test_the_way_out_that_was_allowed(guest: Guest) -> None:
    secret = guest.workspace.parent / "secret"
    secret.write_text("s")
    (guest.workspace / "up").symlink_to("../secret")
    real = await guest.sandbox.files.real_path("up")
    assert (real.path, real.exists, real.inside) == (str(secret), True, False)
    assert (await guest.sandbox.files.read(real.path, beyond=True)).data == b"s"
    missing = await guest.sandbox.files.real_path("x/../new")
    assert (missing.exists, missing.inside) == (False, True)


async def test_nothing_blocks_on_what_is_no_file(guest: Guest) -> None:
    os.mkfifo(guest.workspace / "fifo")
    files = guest.sandbox.files
    async with asyncio.timeout(5):
        assert await refused(files.read("fifo")) == "not_regular"
        assert (await files.stat("fifo")).kind is FileKind.FIFO
        assert await refused(files.read(".")) == "is_directory"
        assert await refused(files.write(".", b"")) in ("is_directory", "exists", "invalid")


async def test_folders_removal_renaming(guest: Guest) -> None:
    files = guest.sandbox.files
    assert await files.mkdir("a/b") is True
    assert await files.mkdir("a/b") is False
    assert await refused(files.mkdir("a/b", parents=False)) == "exists"
    await files.write("a/b/c", b"")
    assert await refused(files.remove("a")) in ("not_empty", "is_directory")
    await files.rename("a/b/c", "a/d")
    await files.write("e", b"")
    assert await refused(files.rename("a/d", "e", replace=False)) == "exists"
    assert await refused(files.rename("none", "e")) == "not_found"
    assert await files.remove("a", recursive=True) == 3
    assert (await files.list()).names == ["e"]
    assert await refused(files.remove("none")) == "not_found"
