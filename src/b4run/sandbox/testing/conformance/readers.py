"""Readers: a second view of a thread's files that can change nothing and leaves the sandbox alone."""

from __future__ import annotations

from typing import Any

import pytest

from b4run.errors import FileRefused, InspectionRefused, ReaderClosed, WorkspaceMissing
from b4run.sandbox.contract import Capability, FileKind, ReaderProvider, WorkspaceReader
from b4run.sandbox.testing.trial import Trial, case, chmod, refused, sh, symlink
from b4run.workspace import inspect_workspace, with_workspace_reader

READER = (Capability.READER,)

MUTATIONS = ("write", "mkdir", "remove", "rename", "exec", "run", "start")


async def _reader(trial: Trial, thread_id: str) -> WorkspaceReader:
    assert isinstance(trial.provider, ReaderProvider)
    return await trial.provider.open_workspace_reader(thread_id)


@case("T82", needs=READER)
async def reader_sees_what_the_thread_produced(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sandbox.files.write("a/b/c.txt", b"one\ntwo\n")
    await sandbox.files.write("latin-\udce9", b"\xff\x00")
    await symlink(sandbox, "a/b/c.txt", "link")
    reader = await _reader(trial, thread)
    try:
        assert (reader.thread_id, reader.workspace_root) == (thread, sandbox.workspace_root)
        assert (await reader.read("a/b/c.txt")).data == b"one\ntwo\n"
        assert (await reader.read("link")).data == b"one\ntwo\n"
        assert (await reader.read_lines("a/b/c.txt", first=2)).data == b"two\n"
        assert b"".join([piece async for piece in reader.read_stream("latin-\udce9")]) == b"\xff\x00"
        assert list((await reader.list()).names) == ["a", "latin-\udce9", "link"]
        assert [entry.path for entry in await reader.entries("a")] == ["b"]
        assert [entry.path for entry in await reader.walk()] == ["a", "a/b", "a/b/c.txt", "latin-\udce9", "link"]
        assert (await reader.stat("link", follow=False)).kind is FileKind.SYMLINK
        assert (await reader.real_path("link")).path == f"{reader.workspace_root}/a/b/c.txt"
        await sandbox.files.write("later", b"seen too")
        assert (await reader.read("later")).data == b"seen too"
    finally:
        await reader.aclose()


@case(needs=READER)
async def reader_has_nothing_to_write_or_run_with(trial: Trial) -> None:
    thread = trial.thread()
    await (await trial.sandbox(thread_id=thread)).files.write("a", b"")
    reader = await _reader(trial, thread)
    try:
        assert [name for name in MUTATIONS if hasattr(reader, name)] == []
    finally:
        await reader.aclose()


@case(needs=READER)
async def thread_without_files_has_no_reader(trial: Trial) -> None:
    thread = trial.thread()
    with pytest.raises(WorkspaceMissing):
        await _reader(trial, thread)
    await (await trial.sandbox(thread_id=thread)).files.write("a", b"")
    await trial.provider.destroy(thread)
    with pytest.raises(WorkspaceMissing):
        await _reader(trial, thread)
    # Looking made nothing: the thread starts empty.
    assert list((await (await trial.sandbox(thread_id=thread)).files.list()).names) == []


@case("T82", needs=READER)
async def reader_leaves_the_sandbox_as_it_is(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sandbox.files.write("a", b"before")
    for _ in range(3):
        reader = await _reader(trial, thread)
        assert (await reader.read("a")).data == b"before"
        await reader.aclose()
    assert not sandbox.lost
    assert (await trial.sandbox(thread_id=thread)).instance == sandbox.instance
    await sandbox.files.write("a", b"after")
    assert (await sandbox.files.read("a")).data == b"after"
    assert (await sandbox.exec.run("true")).exit_code == 0


@case("T82", needs=READER)
async def released_thread_is_read_without_compute(trial: Trial) -> None:
    thread = trial.thread()
    await (await trial.sandbox(thread_id=thread)).files.write("a", b"kept")
    await trial.provider.release(thread)
    reader = await _reader(trial, thread)
    assert (await reader.read("a")).data == b"kept"
    await reader.aclose()


@case(needs=READER)
async def closed_reader_refuses_up_front(trial: Trial) -> None:
    thread = trial.thread()
    await (await trial.sandbox(thread_id=thread)).files.write("a", b"")
    reader = await _reader(trial, thread)
    await reader.aclose()
    await reader.aclose()
    for call in (
        reader.read("a"),
        reader.list(),
        reader.walk(),
        reader.stat("a"),
        reader.read_tree(),
        anext(aiter(reader.read_stream("a"))),
    ):
        with pytest.raises(ReaderClosed):
            await call


@case("T51", "T53", needs=READER)
async def reader_stays_in_the_workspace(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await symlink(sandbox, "/etc/passwd", "out")
    reader = await _reader(trial, thread)
    try:
        for path in ("out", "/etc/passwd", "../etc/passwd"):
            async with refused("outside"):
                await reader.read(path)
    finally:
        await reader.aclose()


@case(needs=READER)
async def tree_comes_with_its_contents(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    big = bytes(range(256)) * 2_000
    for path, data in (("a/x", b"1"), ("a/y", b""), ("b", big), ("skipped/inside", b"not read"), ("z", b"last")):
        await sandbox.files.write(path, data)
    reader = await _reader(trial, thread)
    try:
        tree = await reader.read_tree(skip=["skipped"])
        assert [entry.path for entry in tree.entries] == ["a", "a/x", "a/y", "b", "skipped", "z"]
        assert dict(tree.contents) == {"a/x": b"1", "a/y": b"", "b": big, "z": b"last"}
        refusals: tuple[tuple[dict[str, Any], str, str], ...] = (
            ({"max_file_bytes": len(big) - 1}, "too_large", "b"),
            ({"max_total_bytes": len(big) + 4}, "too_large", "z"),
            ({"max_entries": 5}, "too_many", "."),
        )
        for limits, kind, path in refusals:
            with pytest.raises(FileRefused) as caught:
                await reader.read_tree(skip=["skipped"], **limits)
            assert (caught.value.kind, caught.value.fields["path"]) == (kind, path)
        exact = await reader.read_tree(skip=["skipped"], max_file_bytes=len(big), max_total_bytes=len(big) + 5, max_entries=6)
        assert len(exact.contents) == 4
    finally:
        await reader.aclose()


@case(needs=READER)
async def inspection_gives_text_and_refuses_the_rest(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sandbox.files.write("draft/notes.md", "\ufeffgrüße\n".encode())
    await sandbox.files.write("draft/sub/empty", b"")
    await sandbox.files.write("run.sh", b"#!/bin/sh\n")
    await chmod(sandbox, 0o755, "run.sh")
    found = await with_workspace_reader(trial.provider, thread, lambda reader: inspect_workspace(reader, root="draft"))
    assert dict(found.files) == {"notes.md": "\ufeffgrüße\n", "sub/empty": ""}
    assert (found.total_bytes, found.entries, dict(found.symlinks)) == (11, 3, {})
    with pytest.raises(InspectionRefused, match=r"run\.sh.*executable") as caught:
        await with_workspace_reader(trial.provider, thread, inspect_workspace)
    assert caught.value.kind == "refused"


@case(needs=(Capability.READER, Capability.EXEC))
async def reader_is_the_files_owner_and_no_more(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sh(sandbox, "umask 077; echo mine > private; mkdir closed; echo x > closed/f; chmod 0 closed")
    reader = await _reader(trial, thread)
    try:
        assert (await reader.read("private")).data == b"mine\n"
        async with refused("denied"):
            await reader.read_tree()
    finally:
        await reader.aclose()
        await sh(sandbox, "chmod 700 closed")
