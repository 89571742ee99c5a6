"""A container of its own that reads one thread's volume: no network, nothing writable, no program but the guest.

Its main process speaks over the container's standard input, which closes with the host's connection: a reader whose opener died ends
and is removed by the engine.
"""

from __future__ import annotations

import functools
import secrets
from typing import Any

from b4run.errors import B4Error, ReaderLost, SandboxUnavailable, WorkspaceMissing
from b4run.sandbox.contract import WORKSPACE_ROOT
from b4run.sandbox.environment import GUEST_PATH
from b4run.sandbox.guest import GuestClient, GuestReader
from b4run.sandbox.policy import User
from b4run.sandbox.providers.containers import AGENT
from b4run.sandbox.providers.docker.channel import ExecChannel
from b4run.sandbox.providers.docker.engine import Engine
from b4run.sandbox.providers.docker.launch import Image
from b4run.sandbox.providers.docker.names import LABEL_READER, LABEL_SCOPE, LABEL_THREAD, ThreadNames

_HELLO_SECONDS = 30.0
_MEMORY_BYTES = 512 * 1024 * 1024
_PIDS = 64
_ROOT = User(uid=0, gid=0)


async def open_reader(
    engine: Engine, names: ThreadNames, image: Image, guest_volume: str, *, run_as_non_root: bool | User, runtime: str | None
) -> GuestReader:
    """Start a reader and return it; what was made is removed when that fails.

    Raises:
        WorkspaceMissing: the thread has no volume.
        SandboxUnavailable: the volume has no path on the engine's host, or the reader does not start.
    """
    source = await _mountpoint(engine, names)
    container = f"b4-reader-{names.id}-{secrets.token_hex(4)}"
    remove = functools.partial(_remove, engine, container, names.thread_id)
    body = reader_body(names, image, source, guest_volume, user=_user(run_as_non_root), runtime=runtime)
    try:
        await engine.post("make a reader", "containers/create", params={"name": container}, body=body)
        stream = await engine.attach(container)
        await engine.start(container)
        client = await GuestClient.connect(
            ExecChannel(stream), thread_id=names.thread_id, environment={}, hello_deadline_s=_HELLO_SECONDS, loss=ReaderLost
        )
    except BaseException:
        await remove()
        raise
    return GuestReader(client, remove=remove)


def reader_body(names: ThreadNames, image: Image, source: str, guest_volume: str, *, user: User, runtime: str | None) -> dict[str, Any]:
    """Return the body that creates a reader's container. The volume is mounted by its path: by its name, a deleted one would come back."""
    host: dict[str, Any] = {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": _PIDS,
        "Memory": _MEMORY_BYTES,
        "MemorySwap": _MEMORY_BYTES,
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": True,
        "Mounts": [
            {"Type": "bind", "Source": source, "Target": WORKSPACE_ROOT, "ReadOnly": True},
            {"Type": "volume", "Source": guest_volume, "Target": GUEST_PATH.rpartition("/")[0], "ReadOnly": True},
        ],
    }
    if runtime is not None:
        host["Runtime"] = runtime
    return {
        "Image": image.id,
        "Entrypoint": [GUEST_PATH],
        "Cmd": ["read", "--root", WORKSPACE_ROOT],
        "User": f"{user.uid}:{user.gid}",
        "WorkingDir": "/",
        "Hostname": "reader",
        "Healthcheck": {"Test": ["NONE"]},
        "OpenStdin": True,
        "StdinOnce": True,
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "Labels": {LABEL_READER: names.id, LABEL_SCOPE: names.scope, LABEL_THREAD: names.thread_id},
        "HostConfig": host,
    }


async def _mountpoint(engine: Engine, names: ThreadNames) -> str:
    volume = await engine.find("look up a volume", f"volumes/{names.volume}")
    if volume is None:
        raise WorkspaceMissing(thread_id=names.thread_id)
    if not volume.get("Mountpoint"):
        reason = f"its volume (driver {volume.get('Driver')!r}) has no path on the engine's host that a reader could mount"
        raise SandboxUnavailable(thread_id=names.thread_id, reason=reason)
    return str(volume["Mountpoint"])


def _user(run_as_non_root: bool | User) -> User:
    if isinstance(run_as_non_root, User):
        return run_as_non_root
    return AGENT if run_as_non_root else _ROOT


async def _remove(engine: Engine, container: str, thread_id: str) -> None:
    try:
        await engine.remove_container(container)
    except B4Error as error:
        raise SandboxUnavailable(thread_id=thread_id, reason=f"its reader was not removed ({error.message})") from error
