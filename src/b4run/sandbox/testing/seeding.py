"""Filling a fake sandbox's files from a source, as a guest does."""

from __future__ import annotations

from collections.abc import Sequence

from b4run.errors import WorkspaceInvalid
from b4run.sandbox.testing.memory import MemoryTree, folder
from b4run.workspace import EnvironmentLink, SourceFile
from b4run.workspace.baseline import GitBaseline
from b4run.workspace.bundle import source_digest
from b4run.workspace.content import SourceContent, by_file


async def seed_tree(tree: MemoryTree, content: SourceContent, links: Sequence[EnvironmentLink], *, baseline: bool) -> str | None:
    """Write verified content to an empty tree; return the baseline's commit. Raises: WorkspaceInvalid."""
    files: list[SourceFile] = []
    data = b""
    try:
        async for entry, part, last in by_file(content):
            data += part
            if last:
                files.append(SourceFile(entry.path, data, entry.executable))
                data = b""
    except ValueError as error:
        raise WorkspaceInvalid(reason=str(error)) from None
    if source_digest(files) != content.digest:
        raise WorkspaceInvalid(reason=f"the stored bytes of source {content.digest} are not what they were")
    for file in files:
        _put(tree, file.path, file.data)
        tree.chmod(0o755 if file.executable else 0o644, file.path)
    for link in links:
        _make_folders(tree, link.path)
        tree.symlink(link.target, link.path)
    return _commit(tree, files, links) if baseline else None


def _commit(tree: MemoryTree, files: Sequence[SourceFile], links: Sequence[EnvironmentLink]) -> str:
    repository = GitBaseline()
    for file in files:
        repository.add(file)
    commit, made = repository.finish(links)
    for path, data in made:
        _put(tree, path, data)
    return commit


def _put(tree: MemoryTree, path: str, data: bytes) -> None:
    _make_folders(tree, path)
    tree.put(path, data)


def _make_folders(tree: MemoryTree, path: str) -> None:
    here = tree.find(".")
    for name in path.encode().split(b"/")[:-1]:
        here = here.children.setdefault(name, folder())
