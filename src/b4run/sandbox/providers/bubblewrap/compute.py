"""The running part of a sandbox: one child process of the supervisor, the socket to its guest, its control groups."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
from contextlib import suppress
from dataclasses import dataclass

from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.providers.bubblewrap import seccomp
from b4run.sandbox.providers.bubblewrap.cgroups import Group
from b4run.sandbox.providers.bubblewrap.place import Place, guest_arguments, launch_arguments, limits_of, sandbox_arguments

_STOP_SECONDS = 2.0
"""That the guest gets to end by itself once its socket is closed."""
_REASON_BYTES = 2_000


@dataclass(slots=True)
class Compute:
    """What was started. `stop` ends all of it."""

    process: subprocess.Popen[bytes]
    errors: int
    """A file in memory that the processes on the way to the guest write to."""
    group: Group
    last_words: str = ""
    """The end of what `errors` held, once stopped: why a start failed."""

    async def stop(self) -> None:
        """End the process and all that it started; its socket has been closed. Bounded; safe to repeat.

        Raises:
            CgroupFailed: a control group is still in use.
        """
        if not await _ended(self.process, _STOP_SECONDS):
            self.process.kill()
            await _ended(self.process, _STOP_SECONDS)
        if any(folder.exists() for folder in self.group.folders):
            await asyncio.to_thread(self.group.remove)
        if self.errors >= 0:
            size = os.fstat(self.errors).st_size
            text = os.pread(self.errors, _REASON_BYTES, max(0, size - _REASON_BYTES)).decode(errors="replace")
            self.last_words = " ".join(text.split())
            os.close(self.errors)
            self.errors = -1


def start(place: Place, policy: SandboxPolicy, group: Group) -> tuple[Compute, socket.socket]:
    """Start the sandbox and return its compute and the host's end of the guest's socket.

    One child, without a function to run before its exec, so that the C library can start it without copying this process. It dies with the
    thread that calls this: call it in the event loop's.

    Raises:
        OSError: the launcher could not be started.
    """
    as_root = os.geteuid() == 0
    ours, theirs = socket.socketpair()
    errors = os.memfd_create("b4-errors", os.MFD_CLOEXEC)
    rules = _rules(place)
    arguments = [
        *launch_arguments(place, group, as_root=as_root),
        *sandbox_arguments(place, policy, seccomp=rules, staged=as_root),
        *guest_arguments(place, limits_of(policy), group),
    ]
    try:
        process = subprocess.Popen(
            arguments,
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=errors,
            pass_fds=() if rules is None else (rules,),
            cwd="/",
            env={},
            process_group=0,
        )
    except BaseException:
        ours.close()
        os.close(errors)
        raise
    finally:
        theirs.close()
        if rules is not None:
            os.close(rules)
    return Compute(process, errors, group), ours


def _rules(place: Place) -> int | None:
    """The filter as a file in memory; bubblewrap reads it to its end, so each start needs one of its own."""
    if not seccomp.supported():
        return None
    descriptor = os.memfd_create("b4-seccomp", os.MFD_CLOEXEC)
    os.write(descriptor, seccomp.program(forbid_user_namespaces=not place.bubblewrap.disables_user_namespaces))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


async def _ended(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of the process, without a thread; False when the time is over."""
    if process.poll() is not None:
        return True
    watched = os.pidfd_open(process.pid)
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    loop.add_reader(watched, ended.set)
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(ended.wait(), seconds)
    finally:
        loop.remove_reader(watched)
        os.close(watched)
    return process.poll() is not None
