"""Opening a reader on a thread's workspace, and always closing it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from b4run.errors import ReaderUnsupported

T = TypeVar("T")


async def with_workspace_reader(provider: Any, thread_id: str, use: Callable[[Any], Awaitable[T]], *, run_as_non_root: Any = True) -> T:
    """Open a reader on the thread's workspace, hand it to `use`, close it, and return what `use` returned.

    `run_as_non_root` is who reads: what the thread's policy says, so that its private files can be read.

    Raises:
        ReaderUnsupported: the provider has no readers.
        WorkspaceMissing, SandboxUnavailable: as `open_workspace_reader`; the latter also when the reader cannot be removed.
    """
    opened = getattr(provider, "open_workspace_reader", None)
    if opened is None:
        raise ReaderUnsupported(provider=getattr(provider, "name", type(provider).__name__))
    reader = await opened(thread_id, run_as_non_root=run_as_non_root)
    try:
        result = await use(reader)
    except BaseException as error:
        try:
            await reader.aclose()
        except Exception as second:  # noqa: BLE001 - the first failure is the one to tell
            error.add_note(f"The reader was not removed either: {second}")
        raise
    await reader.aclose()
    return result
