"""The read-only volume that brings the guest into every container: filled once per guest and engine, without a shared file system."""

from __future__ import annotations

import base64
import hashlib
import json
import secrets

from b4run.sandbox.environment import GUEST_PATH
from b4run.sandbox.guest import guest_binary
from b4run.sandbox.providers.docker.engine import Engine
from b4run.sandbox.providers.docker.images import file_archive
from b4run.sandbox.providers.docker.names import LABEL_GUEST, guest_volume_name

_FOLDER, _, _NAME = GUEST_PATH.rpartition("/")


def present_volume() -> str:
    """Return the name of the volume for the guest of this release. Raises: GuestMissing."""
    return guest_volume_name(hashlib.sha256(guest_binary().read_bytes()).hexdigest())


async def provide_guest(engine: Engine, image_id: str) -> str:
    """Return the name of the volume with the guest; made and filled when it is not there, or not whole.

    A container that is never started carries the bytes; `image_id` is any image the engine has.

    Raises:
        GuestMissing: the guest was not built.
        EngineRefused, EngineUnreachable: the engine did not do it.
    """
    data = guest_binary().read_bytes()
    digest = hashlib.sha256(data).hexdigest()
    volume = guest_volume_name(digest)
    await engine.post("make the guest's volume", "volumes/create", body={"Name": volume, "Labels": {LABEL_GUEST: digest}})
    container = f"b4-guest-{secrets.token_hex(8)}"
    mount = {"Type": "volume", "Source": volume, "Target": _FOLDER}
    body = {"Image": image_id, "Entrypoint": [GUEST_PATH], "Labels": {LABEL_GUEST: digest}, "HostConfig": {"Mounts": [mount]}}
    await engine.post("look into the guest's volume", "containers/create", params={"name": container}, body=body)
    try:
        if await _size(engine, container) != len(data):
            await engine.upload(container, _FOLDER, file_archive(_NAME, data))
    finally:
        await engine.remove_container(container)
    return volume


async def _size(engine: Engine, container: str) -> int | None:
    """Return the size of the guest in the volume; None when there is none."""
    header = await engine.path_stat(container, GUEST_PATH)
    return None if header is None else int(json.loads(base64.b64decode(header))["size"])
