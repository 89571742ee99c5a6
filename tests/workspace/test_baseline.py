"""The git baseline: the specification's hashes, and a repository in which git itself finds nothing wrong and nothing to do."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from b4run.workspace import EnvironmentLink, SourceFile, create_source_bundle
from b4run.workspace.baseline import GitBaseline
from b4run.workspace.content import BundleContent, by_file


def lay_out(folder: Path, files: Sequence[SourceFile], links: Sequence[EnvironmentLink] = ()) -> str:
    """Write files, links and their baseline to `folder`; return the commit."""
    bundle = create_source_bundle(files)

    baseline = GitBaseline()
    for file in bundle.files:
        baseline.add(file)
    commit, repository = baseline.finish(links)
    for path, data, executable in [
        *((file.path, file.data, file.executable) for file in bundle.files),
        *((path, data, False) for path, data in repository),
    ]:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
        (folder / path).chmod(0o755 if executable else 0o644)
    for link in links:
        (folder / link.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / link.path).symlink_to(link.target)
    return commit


def git(folder: Path, *arguments: str) -> str:
    command = ["git", "-c", f"safe.directory={folder}", "-C", str(folder), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


def test_hashes_of_the_specification(tmp_path: Path) -> None:
    commit = lay_out(tmp_path, [SourceFile("README.md", b"# hi\n"), SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True)])
    assert commit == "c897e22289c55cd57171f08e3ef7657aa820720e"
    assert git(tmp_path, "rev-parse", "HEAD", "HEAD^{tree}").split() == [commit, "aa1b0afda1ac5d898ce7f4f0c3ffc8d1a1cebc25"]
    assert git(tmp_path, "log", "--format=%an|%ae|%at|%cn|%ce|%ct|%D|%B") == (
        "b4run|b4run@localhost|946684800|b4run|b4run@localhost|946684800|HEAD -> main|baseline\n\n"
    )


SOURCES = {
    "nothing": [],
    "an empty file": [SourceFile("a", b"")],
    "order of folders and files": [SourceFile(path, path.encode()) for path in ("a-b", "a.b", "a/c", "a0", "ab/x/y/z", "b")],
    "equal contents": [SourceFile(f"d{number}/same", b"x" * 100, number % 2 == 0) for number in range(300)],
    "sizes of every length": [SourceFile(f"f{size}", bytes(size)) for size in (1, 15, 16, 2_047, 2_048, 262_143, 262_144, 5_000_000)],
    "noise": [SourceFile("noise", random.Random(7).randbytes(3_000_001))],
    "long names": [SourceFile("/".join(["n" * 250] * 4), b"x"), SourceFile("s p a c e", b"y")],
}


@pytest.mark.parametrize("name", SOURCES)
def test_git_agrees(tmp_path: Path, name: str) -> None:
    files = SOURCES[name]
    links = (EnvironmentLink("deps", "/opt/deps"), EnvironmentLink("z z/link", "/opt/x y"))
    commit = lay_out(tmp_path, files, links)
    assert git(tmp_path, "status", "--porcelain") == ""
    git(tmp_path, "fsck", "--strict", "--full")
    git(tmp_path, "verify-pack", *map(str, tmp_path.glob(".git/objects/pack/*.idx")))
    assert git(tmp_path, "ls-files").splitlines() == sorted(file.path for file in files)
    theirs = tmp_path / "theirs"
    lay_out(theirs, files)
    for leftover in (theirs / ".git").glob("*"):
        subprocess.run(["rm", "-rf", str(leftover)], check=True)
    git(theirs, "init", "-q")
    git(theirs, "add", "-A", "-f")
    tree = git(theirs, "write-tree").strip()
    assert git(tmp_path, "rev-parse", f"{commit}^{{tree}}").strip() == tree


def test_work_goes_on_from_it(tmp_path: Path) -> None:
    lay_out(tmp_path, [SourceFile("a", b"one\n"), SourceFile("b", b"two\n")])
    (tmp_path / "a").write_text("changed\n")
    (tmp_path / "c").write_text("new\n")
    assert git(tmp_path, "status", "--porcelain") == " M a\n?? c\n"
    assert "+changed" in git(tmp_path, "diff")
    git(tmp_path, "add", "-A")
    git(tmp_path, "-c", "user.name=x", "-c", "user.email=x@x", "commit", "-qm", "second")
    git(tmp_path, "gc", "-q")
    git(tmp_path, "checkout", "-q", "HEAD~1")
    assert (tmp_path / "a").read_text() == "one\n"


async def test_content_that_is_not_as_long_as_its_manifest() -> None:
    class Off(BundleContent):
        async def pieces(self):  # type: ignore[no-untyped-def]
            async for piece in super().pieces():
                yield self.change(piece)

    for change in (lambda piece: piece[:-1], lambda piece: piece + b"x"):
        content = Off(create_source_bundle([SourceFile("a", b"abc")]))
        content.change = change  # type: ignore[attr-defined]
        with pytest.raises(ValueError, match="source"):
            [part async for part in by_file(content)]
