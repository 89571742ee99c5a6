"""The project that the demo repairs: its files as packaged, as they stand in a workspace, and the difference."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable

from b4run.errors import FileRefused
from b4run.sandbox.contract import FileBackend, FileKind

TESTS = "tests/"
"""What judges the repair; it is put back before the last run."""

_IGNORED = ("__pycache__",)
_LARGEST_SHOWN = 262_144


def packaged_files() -> dict[str, bytes]:
    """Return the project's files by relative path."""
    files: dict[str, bytes] = {}
    waiting: list[tuple[str, Traversable]] = [("", resources.files("b4run.cli") / "demo_project")]
    while waiting:
        prefix, folder = waiting.pop()
        for entry in folder.iterdir():
            if entry.name in _IGNORED:
                continue
            if entry.is_dir():
                waiting.append((f"{prefix}{entry.name}/", entry))
            else:
                files[f"{prefix}{entry.name}"] = entry.read_bytes()
    return dict(sorted(files.items()))


async def write_files(backend: FileBackend, files: Mapping[str, bytes]) -> None:
    """Put files into a workspace, with their folders."""
    for path, data in files.items():
        await backend.write(path, data)


async def read_files(backend: FileBackend) -> dict[str, bytes]:
    """Return every regular file of a workspace that is small enough to be shown."""
    files = {}
    for entry in await backend.walk():
        cached = any(name in _IGNORED for name in entry.path.split("/"))
        if entry.kind is FileKind.FILE and entry.size <= _LARGEST_SHOWN and not cached:
            try:
                files[entry.path] = (await backend.read(entry.path)).data
            except FileRefused:
                continue  # It went away since the walk: something in the sandbox still runs.
    return files


def difference(before: Mapping[str, bytes], after: Mapping[str, bytes]) -> str:
    """Return a unified diff of all that changed, as `git diff` would write it; binary files are named only."""
    return "".join(_file_difference(path, before.get(path), after.get(path)) for path in sorted({*before, *after}))


def _file_difference(path: str, before: bytes | None, after: bytes | None) -> str:
    if before == after:
        return ""
    old, new = ("/dev/null" if data is None else f"{side}/{path}" for side, data in (("a", before), ("b", after)))
    try:
        was, now = ((data or b"").decode().splitlines(keepends=True) for data in (before, after))
    except UnicodeDecodeError:
        return f"Binary files {old} and {new} differ\n"
    lines = difflib.unified_diff(was, now, old, new)
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
