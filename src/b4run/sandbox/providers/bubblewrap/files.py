"""Small file work that state and uids share: atomic writes, locks, removal of trees that an agent has filled."""

from __future__ import annotations

import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def write_atomically(path: Path, data: bytes, mode: int = 0o600) -> None:
    """Replace `path` in one step; a crash leaves the old or the new content."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    with open(descriptor, "wb") as file:
        file.write(data)
    os.replace(temporary, path)


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock that other processes wait for; only around short work."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def remove_tree(root: Path) -> None:
    """Remove a folder whatever is in it: folders without permissions, and any depth. Symlinks are not followed; can be repeated.

    Folders are moved up to the root before they are emptied, so neither the recursion limit nor the number of open files matters.
    """
    try:
        descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        moved = _Counter()
        while _empty_one_level(descriptor, moved):
            pass
    finally:
        os.close(descriptor)
    os.rmdir(root)


class _Counter:
    def __init__(self) -> None:
        self.value = 0

    def next_name(self) -> str:
        self.value += 1
        return f".moved-{secrets.token_hex(4)}-{self.value}"


def _empty_one_level(root: int, moved: _Counter) -> bool:
    """Remove the root's files and, of each folder in it, the files; its folders move up. Return whether folders were found."""
    folders = _remove_files(root)
    for name in folders:
        os.chmod(name, 0o700, dir_fd=root)
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=root)
        try:
            for child in _remove_files(inner):
                # Moving a folder writes its "..", which needs the permission of the folder itself.
                os.chmod(child, 0o700, dir_fd=inner)
                os.rename(child, moved.next_name(), src_dir_fd=inner, dst_dir_fd=root)
        finally:
            os.close(inner)
        os.rmdir(name, dir_fd=root)
    return bool(folders)


def _remove_files(folder: int) -> list[bytes]:
    folders = []
    with os.scandir(folder) as entries:
        listed = [(os.fsencode(entry.name), entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in listed:
        if is_folder:
            folders.append(name)
        else:
            os.unlink(name, dir_fd=folder)
    return folders


def remove_older(folder: Path, pattern: str, seconds: float) -> list[str]:
    """Remove the folders in `folder` that match and were last touched longer ago; return their names."""
    removed = []
    for path in folder.glob(pattern):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > seconds:
                remove_tree(path)
                removed.append(path.name)
    return removed


def tree_bytes(root: Path) -> int:
    """Return what a folder occupies on disk. What cannot be read counts as nothing."""
    total = 0
    pending = [os.fsencode(root)]
    while pending:
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    total += entry.stat(follow_symlinks=False).st_blocks * 512
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
        except OSError:
            continue
    return total
