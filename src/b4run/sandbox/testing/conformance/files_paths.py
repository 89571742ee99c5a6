"""Paths: spellings of one place, and what leads out without any link."""

from __future__ import annotations

from b4run.sandbox.testing.trial import Trial, case, contents, refused

OUTSIDE = ["..", "../x", "a/../../x", "/", "/etc/passwd", "/workspace/../etc/passwd", "/workspacex", "/proc/self/environ", "//etc"]


@case()
async def spellings_of_one_place(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a/b", b"x")
    for path in ("./a/b", "a//b", "a/./b", "a/../a/b", "/workspace/a/b", "/workspace//a/b", "/workspace/a/../a/b"):
        assert (await files.read(path)).data == b"x"
        assert (await files.write(path, b"x")).size == 1
    for path in (".", "./", "/workspace", "/workspace/", "a/.."):
        assert (await files.list(path)).names == ["a"]


@case("T51", "T55")
async def what_leads_out_is_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    files = sandbox.files
    await files.mkdir("a")
    await files.write("f", b"")
    for path in OUTSIDE:
        async with refused("outside"):
            await files.read(path)
        async with refused("outside"):
            await files.read_lines(path)
        async with refused("outside"):
            await files.write(path, b"x")
        async with refused("outside"):
            await files.list(path)
        async with refused("outside"):
            await files.entries(path)
        async with refused("outside"):
            await files.walk(path)
        async with refused("outside"):
            await files.stat(path)
        async with refused("outside"):
            await files.mkdir(path)
        async with refused("outside"):
            await files.remove(path, recursive=True)
        async with refused("outside"):
            await files.rename("f", path)
        async with refused("outside"):
            await files.rename(path, "g")
        async with refused("outside"):
            [piece async for piece in files.read_stream(path)]
    assert await contents(sandbox) == ["a", "f"]


@case()
async def real_path_tells_where_it_leads(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("a/b", b"x")
    for path, real, exists, inside in [
        ("a/b", "/workspace/a/b", True, True),
        (".", "/workspace", True, True),
        ("a/../a//b", "/workspace/a/b", True, True),
        ("a/new/er", "/workspace/a/new/er", False, True),
        ("/tmp", "/tmp", True, False),
        ("../tmp", "/tmp", True, False),
        ("/none/such", "/none/such", False, False),
    ]:
        answer = await files.real_path(path)
        assert (answer.path, answer.exists, answer.inside) == (real, exists, inside)


@case()
async def beyond_reaches_what_was_authorised(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("/tmp/outside.txt", b"x", beyond=True)
    assert (await files.read("/tmp/outside.txt", beyond=True)).data == b"x"
    assert (await files.read_lines("/tmp/outside.txt", beyond=True)).data == b"x"
    assert (await files.stat("/tmp/outside.txt", beyond=True)).size == 1
    assert "outside.txt" in (await files.list("/tmp", beyond=True)).names
    async with refused("outside"):
        await files.read("/tmp/outside.txt")


@case()
async def trailing_slash_means_a_folder(trial: Trial) -> None:
    files = (await trial.sandbox()).files
    await files.write("d/f", b"")
    assert (await files.list("d/")).names == ["f"]
    async with refused("not_directory"):
        await files.read("d/f/")
