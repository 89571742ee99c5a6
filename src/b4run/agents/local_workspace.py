"""Tools without a sandbox: the same guest, unconfined, on the app's own `workspace/` folder. There is no isolation here.

It is an agent matter, not a provider: no configuration can name it, and nothing falls back to it.
"""

from __future__ import annotations

import asyncio
import os
import socket
from asyncio.subprocess import DEVNULL, Process
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from b4run.errors import SandboxUnavailable
from b4run.sandbox.contract import Capability, SandboxHandle
from b4run.sandbox.guest.binary import guest_binary
from b4run.sandbox.guest.client import GuestClient
from b4run.sandbox.guest.handle import GuestSandbox
from b4run.sandbox.guest.stream_channel import SocketChannel
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.supervisor import SandboxSupervisor

PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TERM", "TZ", "TMPDIR")
"""The only variables of this process that a command sees."""

_STOP_SECONDS = 5.0


def local_workspace(root: Path, *, idle_timeout_ms: int | None = None) -> SandboxSupervisor:
    """Return what gives out leases on the folder `root`, which all threads share; it is made when missing and never removed.

    Commands run as this process's user, with its file access and network, and with the variables of `PASSED_ON`. Close it.
    """
    return SandboxSupervisor(_LocalWorkspace(root), idle_timeout_ms=idle_timeout_ms)


def command_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    given = os.environ if environ is None else environ
    return {"PATH": os.defpath} | {name: given[name] for name in PASSED_ON if name in given}


class _LocalWorkspace:
    """Has a provider's form, so that leases, recovery and shutdown are the supervisor's as everywhere."""

    name = "local workspace"
    capabilities = frozenset({Capability.EXEC, Capability.PERSISTENT})

    def __init__(self, root: Path) -> None:
        self._root = root
        self._handles: dict[str, GuestSandbox] = {}

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> SandboxHandle:
        handle = self._handles.get(thread_id)
        if handle is not None:
            if not handle.lost:
                return handle
            await self.release(thread_id)
        handle = await self._start(thread_id, policy)
        self._handles[thread_id] = handle
        return handle

    async def release(self, thread_id: str) -> None:
        handle = self._handles.pop(thread_id, None)
        if handle is not None:
            await handle.aclose()

    async def destroy(self, thread_id: str) -> None:
        """End the thread's processes. The folder is the user's: it stays."""
        await self.release(thread_id)

    async def aclose(self) -> None:
        for thread_id in list(self._handles):
            await self.release(thread_id)

    async def _start(self, thread_id: str, policy: SandboxPolicy) -> GuestSandbox:
        ours, theirs = socket.socketpair()
        try:
            await asyncio.to_thread(self._root.mkdir, parents=True, exist_ok=True)
            process = await asyncio.create_subprocess_exec(
                guest_binary(),
                *("serve", "--root", str(self._root.resolve()), "--stream", "0"),
                stdin=theirs.fileno(),
                stdout=DEVNULL,
                stderr=DEVNULL,
                env={},
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise SandboxUnavailable(thread_id=thread_id, reason=error.strerror or type(error).__name__) from error
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        try:
            environment = command_environment() | dict(policy.env)
            client = await GuestClient.connect(SocketChannel(ours), thread_id=thread_id, environment=environment)
        except BaseException:
            await _stop(process)
            raise
        return GuestSandbox(client, aclose=lambda: _stop(process))


async def _stop(process: Process) -> None:
    """Wait for the guest, whose socket has been closed, and for its commands with it; then kill it."""
    try:
        async with asyncio.timeout(_STOP_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
