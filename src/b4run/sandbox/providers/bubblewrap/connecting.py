"""From a place to a connected guest: a thread's sandbox, or a reader beside it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping

from b4run.errors import ReaderLost, SandboxLost, SandboxUnavailable
from b4run.sandbox.environment import sandbox_environment
from b4run.sandbox.guest import GuestClient, GuestReader, GuestSandbox, SocketChannel
from b4run.sandbox.guest.jobs import OomCheck
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.providers.bubblewrap.cgroups import Group
from b4run.sandbox.providers.bubblewrap.compute import Compute, start
from b4run.sandbox.providers.bubblewrap.place import Place

_HELLO_SECONDS = 15.0

_log = logging.getLogger(__name__)


async def open_sandbox(place: Place, policy: SandboxPolicy, group: Group, thread_id: str) -> GuestSandbox:
    """Start the thread's sandbox. Raises: SandboxUnavailable, OSError."""
    client, compute = await _connect(place, policy, group, thread_id, sandbox_environment(policy.env), SandboxLost)
    return GuestSandbox(client, aclose=compute.stop, oom_check=_oom_check(group))


async def open_reader(place: Place, policy: SandboxPolicy, thread_id: str) -> GuestReader:
    """Start a guest that reads the thread's files. Raises: SandboxUnavailable, OSError."""
    client, compute = await _connect(place, policy, Group(), thread_id, {}, ReaderLost)
    return GuestReader(client, remove=compute.stop)


async def _connect(
    place: Place, policy: SandboxPolicy, group: Group, thread_id: str, environment: Mapping[str, str], loss: type[SandboxLost]
) -> tuple[GuestClient, Compute]:
    compute, sock = start(place, policy, group)
    try:
        channel = SocketChannel(sock)
        client = await GuestClient.connect(
            channel, thread_id=thread_id, environment=environment, hello_deadline_s=_HELLO_SECONDS, loss=loss
        )
    except BaseException as error:
        await uninterrupted(compute.stop())
        if not isinstance(error, SandboxUnavailable):
            raise
        words = compute.last_words.replace(str(place.workspace), "workspace").replace(str(place.guest), "b4-guest")
        _log.warning("sandbox did not start", extra={"event": "sandbox.start_failed", "thread_id": thread_id, "reason": words})
        raise SandboxUnavailable(thread_id=thread_id, reason=words or error.fields["reason"]) from error
    return client, compute


def _oom_check(group: Group) -> OomCheck | None:
    if group.memory is None:
        return None
    seen = 0

    async def killed_since() -> bool:
        nonlocal seen
        before, seen = seen, group.oom_kills()
        return seen > before

    return killed_since


async def uninterrupted(work: Awaitable[None]) -> None:
    """Finish `work` even when the waiting task is cancelled meanwhile."""
    task = asyncio.ensure_future(work)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait((task,))
        raise
