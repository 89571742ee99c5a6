"""How providers of remote engines tell what an engine refused."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from b4run.errors import B4Error, SandboxUnavailable


@contextlib.contextmanager
def as_unavailable(thread_id: str) -> Iterator[None]:
    """Whatever the engine refuses in the block is why the thread's sandbox cannot be had. Raises: SandboxUnavailable."""
    try:
        yield
    except SandboxUnavailable:
        raise
    except B4Error as error:
        raise SandboxUnavailable(thread_id=thread_id, reason=f"{error.message} {error.remedy}".strip()) from error
