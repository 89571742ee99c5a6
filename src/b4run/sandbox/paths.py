"""What a provider's relative paths are relative to."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path

_base: ContextVar[Path | None] = ContextVar("provider_base", default=None)


@contextmanager
def paths_relative_to(folder: Path) -> Iterator[None]:
    """Let providers made inside take `folder`, an app's root, for the base of their paths."""
    token = _base.set(folder)
    try:
        yield
    finally:
        _base.reset(token)


def provider_path(path: Path) -> Path:
    """Return `path` as an absolute one: below the app whose configuration is being loaded, else below the working directory."""
    return (_base.get() or Path.cwd()) / path
