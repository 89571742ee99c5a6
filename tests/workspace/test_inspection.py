"""What an inspection admits and refuses, on a fake thread whose files are exactly known."""

from __future__ import annotations

from typing import Any

import pytest

from b4run.errors import FileRefused, InspectionRefused, ReaderUnsupported
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.testing import fake_sandbox
from b4run.sandbox.testing.memory import MemoryTree
from b4run.workspace import Inspection, inspect_workspace, with_workspace_reader


class Thread:
    """A thread with files of the test's."""

    def __init__(self) -> None:
        self.provider = fake_sandbox()
        self.tree: MemoryTree = self.provider.tree("t-1")

    async def write(self, **files: bytes) -> None:
        handle = await self.provider.acquire("t-1", SandboxPolicy())
        for path, data in files.items():
            await handle.files.write(path.replace("__", "/").replace("_dot_", "."), data)

    async def inspect(self, **options: Any) -> Inspection:
        return await with_workspace_reader(self.provider, "t-1", lambda reader: inspect_workspace(reader, **options))

    async def refusal(self, **options: Any) -> InspectionRefused:
        with pytest.raises(InspectionRefused) as caught:
            await self.inspect(**options)
        return caught.value


@pytest.fixture
def thread() -> Thread:
    return Thread()


async def test_files_folders_and_excluded_roots_are_counted(thread: Thread) -> None:
    await thread.write(a__b=b"x\n", c="\ufeffé".encode(), _dot_git__config=b"\xff\x00not looked at")
    found = await thread.inspect(exclude_root_directories=[".git"])
    assert dict(found.files) == {"a/b": "x\n", "c": "\ufeffé"}
    assert (found.total_bytes, found.entries) == (7, 4)


async def test_an_excluded_name_deeper_down_is_inspected(thread: Thread) -> None:
    await thread.write(a__skip__f=b"1", skip__f=b"2")
    assert dict((await thread.inspect(exclude_root_directories=["skip"])).files) == {"a/skip/f": "1"}


async def test_expected_links_need_their_exact_target(thread: Thread) -> None:
    await thread.write(a=b"1")
    thread.tree.symlink("/opt/deps", "node_modules")
    found = await thread.inspect(expected_root_symlinks={"node_modules": "/opt/deps"})
    assert (dict(found.symlinks), found.entries) == ({"node_modules": "/opt/deps"}, 2)
    for links in ({}, {"node_modules": "/opt/other"}, {"node_modules": "/opt/deps", "missing": "/x"}, {"a": "/x"}):
        assert (await thread.refusal(expected_root_symlinks=links)).kind == "refused"


async def test_a_link_below_the_root_is_never_expected(thread: Thread) -> None:
    await thread.write(d__f=b"")
    thread.tree.symlink("f", "d/link")
    assert (await thread.refusal(expected_root_symlinks={"link": "f"})).fields["path"] == "d/link"


@pytest.mark.parametrize(("data", "says"), [(b"a\0b", "NUL"), (b"ok\xff", "byte 2"), (b"\xc3", "byte 0"), (b"\xed\xa0\x80", "byte 0")])
async def test_what_is_not_text_is_refused(thread: Thread, data: bytes, says: str) -> None:
    await thread.write(d__f=data)
    refusal = await thread.refusal()
    assert (refusal.kind, refusal.fields["path"]) == ("refused", "d/f")
    assert says in refusal.message


@pytest.mark.parametrize("mode", [0o755, 0o744, 0o654, 0o645])
async def test_any_execute_bit_is_refused(thread: Thread, mode: int) -> None:
    await thread.write(f=b"")
    thread.tree.chmod(mode, "f")
    assert "executable" in (await thread.refusal()).message


async def test_anything_but_files_folders_and_links_is_refused(thread: Thread) -> None:
    thread.tree.fifo("pipe")
    assert (await thread.refusal()).fields["path"] == "pipe"


@pytest.mark.parametrize("name", ["bad-\udcff", "new\nline", "tab\t", "del\x7f"])
async def test_names_that_are_not_plain_text_are_refused(thread: Thread, name: str) -> None:
    handle = await thread.provider.acquire("t-1", SandboxPolicy())
    await handle.files.write(name, b"")
    assert (await thread.refusal()).kind == "refused"


async def test_limits_are_inclusive(thread: Thread) -> None:
    await thread.write(a=b"12", b=b"345")
    exact = {"max_entries": 2, "max_file_bytes": 3, "max_total_bytes": 5}
    assert (await thread.inspect(**exact)).total_bytes == 5
    for name in exact:
        assert (await thread.refusal(**exact | {name: exact[name] - 1})).kind == "refused"


async def test_nothing_is_within_limits_of_nothing(thread: Thread) -> None:
    empty = await thread.inspect(max_entries=0, max_file_bytes=0, max_total_bytes=0)
    assert (dict(empty.files), empty.entries) == ({}, 0)


async def test_an_excluded_name_must_be_a_folder_if_it_is_there(thread: Thread) -> None:
    await thread.write(a=b"")
    assert (await thread.refusal(exclude_root_directories=["a"])).fields["path"] == "a"
    assert (await thread.inspect(exclude_root_directories=["none"])).entries == 1


@pytest.mark.parametrize(
    ("root", "absence"),
    [("none", "absent"), ("d/none", "absent"), ("f", "not_directory"), ("f/x", "not_directory"), ("link", "not_directory")],
)
async def test_a_root_that_is_missing_says_how(thread: Thread, root: str, absence: str) -> None:
    await thread.write(d__x=b"", f=b"")
    thread.tree.symlink("d", "link")
    refusal = await thread.refusal(root=root)
    assert (refusal.kind, refusal.fields["root"], refusal.fields["absence"]) == ("root_missing", root, absence)


@pytest.mark.parametrize(
    "options",
    [{"root": root} for root in ("", "/", "/a", "a/", "a//b", ".", "./a", "a/..", "..", "a\\b", "a\nb", "a" * 1_025)]
    + [{name: value} for name in ("max_entries", "max_file_bytes", "max_total_bytes") for value in (-1, 33_554_433, True, 1.0)]
    + [{"max_entries": 10_001}, {"max_file_bytes": 16_777_217}]
    + [{"exclude_root_directories": value} for value in (".git", ["a/b"], [".."], [""], ["x\0"])]
    + [{"expected_root_symlinks": value} for value in ({"a/b": "x"}, {"a": ""}, {"..": "x"})]
    + [{"exclude_root_directories": ["a"], "expected_root_symlinks": {"a": "x"}}],
)
async def test_bad_options_are_refused_before_anything_is_read(thread: Thread, options: dict[str, Any]) -> None:
    thread.tree.fifo("pipe")
    assert (await thread.refusal(**options)).kind == "invalid_options"


async def test_what_moves_meanwhile_is_changed(thread: Thread) -> None:
    await thread.write(f=b"1")

    class Moving:
        """A reader under which a file grows."""

        async def stat(self, path: str, *, follow: bool = True) -> Any: ...

        async def read_tree(self, path: str = ".", **limits: Any) -> Any:
            raise FileRefused(kind="changed", path="f", reason="The file was changed in the meantime")

    with pytest.raises(InspectionRefused) as caught:
        await inspect_workspace(Moving())
    assert (caught.value.kind, caught.value.fields["path"]) == ("changed", "f")


async def test_a_readers_own_failure_passes_as_it_is(thread: Thread) -> None:
    await thread.write(f=b"1")
    thread.tree.chmod(0, "f")
    with pytest.raises(FileRefused) as caught:
        await thread.inspect()
    assert caught.value.kind == "denied"


async def test_the_reader_is_closed_whatever_happens() -> None:
    closed = []

    class Reader:
        async def aclose(self) -> None:
            closed.append(True)
            raise OSError("not removed")

    class Provider:
        async def open_workspace_reader(self, thread_id: str, *, run_as_non_root: bool) -> Reader:
            assert (thread_id, run_as_non_root) == ("t-1", False)
            return Reader()

    async def fail(_: Reader) -> None:
        raise ValueError("the use failed")

    async def succeed(_: Reader) -> int:
        return 7

    with pytest.raises(ValueError, match="the use failed") as caught:
        await with_workspace_reader(Provider(), "t-1", fail, run_as_non_root=False)
    assert caught.value.__notes__ == ["The reader was not removed either: not removed"]
    with pytest.raises(OSError, match="not removed"):
        await with_workspace_reader(Provider(), "t-1", succeed, run_as_non_root=False)
    assert len(closed) == 2


async def test_a_provider_without_readers_is_named() -> None:
    class Provider:
        name = "mine"

    with pytest.raises(ReaderUnsupported, match="'mine'"):
        await with_workspace_reader(Provider(), "t-1", inspect_workspace)
