"""Deciding what a new thread starts from: a definition for all, or a function of the thread that is asked once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from b4run.config import ThreadContext, ThreadPolicy, ThreadSandbox
from b4run.errors import B4Error, ResolverFailed
from b4run.threads.record import write_record
from b4run.workspace import CapturedWorkspace, WorkspaceDefinition, capture_workspace_definition

RESOLVER_SECONDS = 60.0
"""How long a resolver may take; the thread's admission waits for it."""
_GRACE_SECONDS = 1.0
_LONGEST_REASON = 300


@dataclass(frozen=True, slots=True)
class Resolution:
    """What a thread starts from. `record` is what is kept of its own settings; None where the app has none per thread."""

    workspace: CapturedWorkspace
    image: str | None = None
    policy: ThreadPolicy | None = None
    record: str | None = None


@dataclass(frozen=True, slots=True)
class WorkspaceResolver:
    """An app's way to decide: `definition` for every thread alike, or the function `decide`, of the workspace or of `everything`."""

    root: Path
    definition: WorkspaceDefinition | None = None
    decide: Callable[[Any], Awaitable[Any]] | None = None
    everything: bool = False
    deadline_s: float = RESOLVER_SECONDS

    async def resolve(self, context: ThreadContext) -> Resolution:
        """Return what the thread starts from, its files captured.

        Raises:
            ResolverFailed: the function raised, took too long, or answered something else; or its files cannot be captured.
        """
        if self.decide is None:
            assert self.definition is not None
            return Resolution(await self._captured(context, self.definition))
        answer = await self._decided(context, self.decide)
        if not self.everything:
            return Resolution(await self._captured(context, answer))
        if not isinstance(answer, ThreadSandbox):
            raise _failed(context, f"it answered {type(answer).__name__}, not a ThreadSandbox")
        try:
            record = write_record(answer)
        except B4Error as error:
            raise _failed(context, error.message) from error
        return Resolution(await self._captured(context, answer.workspace), answer.image, answer.policy, record)

    async def _decided(self, context: ThreadContext, decide: Callable[[Any], Awaitable[Any]]) -> Any:
        """Ask within the deadline; one that does not heed its cancellation is left behind, and its answer dropped."""
        asking = asyncio.create_task(_ask(decide, context))
        try:
            done, _ = await asyncio.wait({asking}, timeout=self.deadline_s)
        except asyncio.CancelledError:
            asking.cancel()
            await asyncio.wait({asking}, timeout=_GRACE_SECONDS)
            asking.add_done_callback(_drop)
            raise
        if not done:
            asking.cancel()
            await asyncio.wait({asking}, timeout=_GRACE_SECONDS)
            asking.add_done_callback(_drop)
            raise _failed(context, f"it did not answer within {self.deadline_s:g} s")
        if asking.cancelled():
            raise _failed(context, "it was cancelled")
        if (error := asking.exception()) is not None:
            words = error.message if isinstance(error, B4Error) else f"{type(error).__name__}: {error}"
            raise _failed(context, f"it raised {words[:_LONGEST_REASON]}") from error
        return asking.result()

    async def _captured(self, context: ThreadContext, answer: Any) -> CapturedWorkspace:
        if isinstance(answer, CapturedWorkspace):
            return answer
        if not isinstance(answer, WorkspaceDefinition):
            raise _failed(context, f"it answered {type(answer).__name__}, not a WorkspaceDefinition")
        try:
            return await capture_workspace_definition(self.root, answer)
        except B4Error as error:
            raise _failed(context, error.message) from error
        except OSError as error:
            raise _failed(context, f"the app's files cannot be read ({error.strerror})") from error


async def _ask(decide: Callable[[Any], Awaitable[Any]], context: ThreadContext) -> Any:
    """A function that cannot even be called fails as one that raises."""
    return await decide(context)


def _failed(context: ThreadContext, reason: str) -> ResolverFailed:
    return ResolverFailed(thread_id=context.thread_id, reason=reason)


def _drop(asking: asyncio.Future[Any]) -> None:
    if not asking.cancelled():
        asking.exception()
