"""Capture from a real folder: exactly what was named, nothing through links, and nothing that moves."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import threading
from pathlib import Path

import pytest

from b4run.errors import CaptureRefused, WorkspaceInvalid
from b4run.workspace import (
    ExtraFile,
    SourceFile,
    WorkspaceDefinition,
    WorkspaceSource,
    capture_workspace_definition,
    capture_workspace_source,
)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    root = tmp_path / "app"
    (root / "task" / "src" / "deep").mkdir(parents=True)
    (root / "task" / "README.md").write_text("# hi\n")
    (root / "task" / "src" / "deep" / "run").write_text("#!/bin/sh\n")
    (root / "task" / "src" / "deep" / "run").chmod(0o710)
    (root / "task" / "cache" / "x").mkdir(parents=True)
    (root / "task" / "cache" / "x" / "blob").write_bytes(b"\0")
    (root / "shared.txt").write_text("shared")
    return root


def source(**changes: object) -> WorkspaceSource:
    made: dict[str, object] = {"directory": "task", "include": ("README.md", "src/deep/run"), "exclude_directories": ("cache",)}
    return WorkspaceSource(**(made | changes))  # type: ignore[arg-type]


async def test_files_modes_and_extras(app: Path) -> None:
    extras = (ExtraFile(path="s", file="shared.txt"), ExtraFile(path="t", text="grüße\n"), ExtraFile(path="x", text="", executable=True))
    definition = WorkspaceDefinition(source=source(files=extras), environment_links={"deps": "/opt/deps"}, baseline="git")
    captured = await capture_workspace_definition(app, definition)
    assert captured.source.files == (
        SourceFile("README.md", b"# hi\n"),
        SourceFile("s", b"shared"),
        SourceFile("src/deep/run", b"#!/bin/sh\n", True),
        SourceFile("t", "grüße\n".encode()),
        SourceFile("x", b"", True),
    )
    assert [link.as_dict() for link in captured.environment_links] == [{"path": "deps", "target": "/opt/deps"}]


async def test_the_whole_app_without_its_state(app: Path) -> None:
    (app / ".b4").mkdir()
    everything = source(
        directory=".",
        include=("shared.txt", "task/README.md", "task/src/deep/run"),
        exclude_directories=(".b4", "task/cache"),
    )
    assert len((await capture_workspace_source(app, everything)).files) == 3


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"include": ("README.md",)}, "'task/src/deep/run' is there, and is neither"),
        ({"include": ("README.md", "src/deep/run", "nope")}, "'task/nope' is included, and is not there"),
        ({"exclude_directories": ()}, "neither included nor excluded"),
        ({"exclude_directories": ("cache", "nope")}, "'task/nope' is not there"),
        ({"exclude_directories": ("cache", "README.md")}, "overlap"),
        ({"exclude_directories": ("cache", "SRC")}, "overlap"),
        ({"exclude_directories": ("cache", "src/deep/run/x")}, "overlap"),
        ({"directory": "nope"}, "'nope' is not there"),
        ({"directory": "shared.txt"}, "'shared.txt'"),
        ({"files": (ExtraFile(path="s", file="nope"),)}, "'nope' is not there"),
        ({"files": (ExtraFile(path="s", file="task"),)}, "not a regular file"),
    ],
)
async def test_what_differs_from_the_definition_is_refused(app: Path, changes: dict[str, object], reason: str) -> None:
    with pytest.raises(CaptureRefused, match=reason):
        await capture_workspace_source(app, source(**changes))


@pytest.mark.parametrize(
    "changes",
    [
        {"directory": "../app"},
        {"directory": "/etc"},
        {"include": ("../shared.txt", "README.md", "src/deep/run")},
        {"files": (ExtraFile(path="../x", text=""),)},
        {"files": (ExtraFile(path="x", file="/etc/passwd"),)},
        {"files": (ExtraFile(path="readme.md", text=""),)},
        {"files": (ExtraFile(path="x", text="\ud800"),)},
    ],
)
async def test_paths_that_lead_out_or_conflict(app: Path, changes: dict[str, object]) -> None:
    with pytest.raises(WorkspaceInvalid):
        await capture_workspace_source(app, source(**changes))


@pytest.mark.parametrize("where", ["task", "task/src", "task/src/deep/run", "shared.txt", "task/cache", "task/extra"])
async def test_links_are_refused_wherever_they_stand(app: Path, tmp_path: Path, where: str) -> None:
    place = app / where
    if place.exists():
        place.rename(tmp_path / "moved")
        place.symlink_to(tmp_path / "moved")
    else:
        place.symlink_to("README.md")
    with pytest.raises(CaptureRefused):
        await capture_workspace_source(app, source(files=(ExtraFile(path="s", file="shared.txt"),)))


async def test_pipes_and_sockets_are_refused_without_waiting(app: Path) -> None:
    os.mkfifo(app / "task" / "pipe")
    async with asyncio.timeout(5):
        with pytest.raises(CaptureRefused, match="neither a file nor a folder"):
            await capture_workspace_source(app, source())
        (app / "task" / "pipe").rename(app / "pipe")
        with pytest.raises(CaptureRefused, match="not a regular file"):
            await capture_workspace_source(app, source(files=(ExtraFile(path="s", file="pipe"),)))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(app / "task" / "sock"))
        with pytest.raises(CaptureRefused, match="neither"):
            await capture_workspace_source(app, source())


async def test_bounds_hold_while_walking(app: Path) -> None:
    os.truncate(app / "task" / "README.md", 16_777_217)
    with pytest.raises(WorkspaceInvalid, match="16,777,216"):
        await capture_workspace_source(app, source())
    os.truncate(app / "task" / "README.md", 0)
    for number in range(10_001):
        (app / "task" / "src" / str(number)).touch()
    with pytest.raises(CaptureRefused, match="10,000 files and folders"):
        await capture_workspace_source(app, source())


async def test_a_writer_never_gets_a_mixture_captured(app: Path) -> None:
    """Two files are replaced in turn by the next number, so that the second is never ahead and at most one behind."""
    pair = source(include=("README.md", "src/deep/run"))
    stop = threading.Event()

    def write() -> None:
        for number in itertools.count():
            for path in ("README.md", "src/deep/run"):
                draft = app / "draft"
                draft.write_bytes(b"%09d" % number * 5_000)
                draft.replace(app / "task" / path)
                if stop.wait(0.003):
                    return

    writer = threading.Thread(target=write)
    writer.start()
    captured = refused = 0
    try:
        await asyncio.sleep(0.1)
        for _ in range(300):
            try:
                first, second = (await capture_workspace_source(app, pair)).files
            except CaptureRefused as error:
                assert "changed" in error.message or "not there" in error.message
                refused += 1
            else:
                numbers = [int(file.data[:9]) for file in (first, second)]
                assert [b"%09d" % number * 5_000 for number in numbers] == [first.data, second.data]
                assert numbers[0] - numbers[1] in (0, 1)
                captured += 1
    finally:
        stop.set()
        writer.join()
    assert captured and refused


async def test_names_that_come_and_go_are_changes(app: Path) -> None:
    stop = threading.Event()

    def touch() -> None:
        path = app / "task" / "src" / "zzz"
        while not stop.is_set():
            path.touch()
            path.unlink()

    writer = threading.Thread(target=touch)
    writer.start()
    refused = 0
    try:
        for _ in range(100):
            try:
                assert len((await capture_workspace_source(app, source())).files) == 2
            except CaptureRefused:
                refused += 1
    finally:
        stop.set()
        writer.join()
    assert refused


async def test_what_happens_in_an_excluded_folder_does_not_matter(app: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    listdir = os.listdir

    def noisy(where: int) -> list[str]:
        (app / "task" / "cache" / "new").touch()
        (app / "task" / "cache" / "new").unlink()
        return listdir(where)

    monkeypatch.setattr(os, "listdir", noisy)
    assert len((await capture_workspace_source(app, source())).files) == 2
