"""Listing: in byte order, by pages, everything once, and errors are errors."""

from __future__ import annotations

from b4run.sandbox.contract import Capability, FileKind
from b4run.sandbox.testing.trial import Trial, case, contents, refused, symlink


@case()
async def names_come_in_byte_order(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for name in ("b", "a", "B", "é", "a.b", "a-b", "10", "9"):
        await sandbox.files.write(name, b"")
    assert await contents(sandbox) == ["10", "9", "B", "a", "a-b", "a.b", "b", "é"]


@case("T67")
async def pages_continue_behind_a_name(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    for number in range(7):
        await files.write(f"d/{number}", b"")
    first = await files.list("d", limit=3)
    second = await files.list("d", after=first.names[-1], limit=3)
    third = await files.list("d", after=second.names[-1], limit=3)
    assert [list(page.names) for page in (first, second, third)] == [["0", "1", "2"], ["3", "4", "5"], ["6"]]
    assert [page.more for page in (first, second, third)] == [True, True, False]
    assert not (await files.list("d", limit=7)).more
    assert (await files.list("d", after="35")).names == ["4", "5", "6"]
    assert (await files.list("d", after="6")).names == []


@case()
async def entries_tell_each_file(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("f", b"123", mode=0o600)
    await sandbox.files.mkdir("d")
    await symlink(sandbox, "none", "l")
    entries = {entry.path: entry for entry in await sandbox.files.entries()}
    assert {name: entry.kind for name, entry in entries.items()} == {
        "d": FileKind.DIRECTORY,
        "f": FileKind.FILE,
        "l": FileKind.SYMLINK,
    }
    assert (entries["f"].size, entries["f"].mode, entries["l"].target) == (3, 0o600, "none")


@case("T68")
async def failed_listing_is_an_error(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("f", b"")
    async with refused("not_found"):
        await files.list("none")
    async with refused("not_directory"):
        await files.list("f")
    async with refused("not_found"):
        await files.walk("none")


@case()
async def walk_goes_depth_first(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for path in ("b/c/1", "b/2", "a", "b.x", "skip/x", "b/skip/y"):
        await sandbox.files.write(path, b"")
    assert [entry.path for entry in await sandbox.files.walk()] == [
        *("a", "b", "b/2", "b/c", "b/c/1", "b/skip", "b/skip/y", "b.x", "skip", "skip/x")
    ]
    assert [entry.path for entry in await sandbox.files.walk("b")] == ["2", "c", "c/1", "skip", "skip/y"]
    paths = [entry.path for entry in await sandbox.files.walk(exclude=["skip", "a"])]
    assert paths == ["b", "b/2", "b/c", "b/c/1", "b/skip", "b/skip/y", "b.x"]


@case("T58")
async def walk_is_bounded(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    for number in range(5):
        await files.write(f"d/{number}", b"")
    assert len(await files.walk(limit=6)) == 6
    async with refused("too_many"):
        await files.walk(limit=5)


@case("T67", needs=(Capability.EXEC,), limit_s=300)
async def hundred_thousand_entries(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    made = await sandbox.exec.run(
        "mkdir many && cd many && i=0; while [ $i -lt 100000 ]; do : > file-$i; i=$((i+1)); done", deadline_ms=200_000
    )
    assert made.ok
    names: list[str] = []
    page = await sandbox.files.list("many", limit=30_000)
    while page.more:
        names += page.names
        page = await sandbox.files.list("many", after=page.names[-1], limit=30_000)
    names += page.names
    assert names == sorted(f"file-{number}" for number in range(100_000))
    assert (await sandbox.files.list("many", limit=100_000)).more is False
    assert len(await sandbox.files.walk(limit=100_001)) == 100_001
    async with refused("too_many"):
        await sandbox.files.walk(limit=100_000)
