"""From an image's reference to what sandboxes start from: the image with a workspace folder that the sandbox's user owns.

The engine gives a new volume the ownership of the folder that it covers, so no program has to run as root to hand it over.
"""

from __future__ import annotations

import hashlib
import io
import secrets
import tarfile
from collections.abc import Callable

from b4run.errors import ImageRefused
from b4run.sandbox.contract import WORKSPACE_ROOT
from b4run.sandbox.policy import User, is_image_reference
from b4run.sandbox.providers.docker.engine import Engine, EngineRefused
from b4run.sandbox.providers.docker.launch import Image
from b4run.sandbox.providers.docker.names import LABEL_OWNED_IMAGE

AllowImage = Callable[[str], bool]
"""Whether threads may run an image; nothing but True is a yes."""

_REPOSITORY = "b4-sandbox-image"
_PULL_SECONDS = 900.0


def check_image(reference: str, own: str | None, allow: AllowImage | None) -> str:
    """Return `reference` if threads may run it: the provider's own always, any other only when `allow` says True. No engine is asked.

    Raises:
        ImageRefused: it may not be run, or is no image reference (the specification's `formats.md`).
    """
    if reference == own:
        return reference
    if not is_image_reference(reference):
        raise ImageRefused(reference=reference[:512], reason="it is not an image reference")
    if allow is None or allow(reference) is not True:
        raise ImageRefused(reference=reference, reason="`images` does not admit it" if allow else "the provider has no `images`")
    return reference


async def find_image(engine: Engine, reference: str) -> Image | None:
    """Return the image as the engine has it, or None."""
    found = await engine.find(f"look up image {reference!r}", f"images/{reference}/json")
    if found is None:
        return None
    config = found.get("Config") or {}
    return Image(reference, found["Id"], tuple(config.get("Env") or ()), config.get("User") or "")


async def resolve_image(engine: Engine, reference: str) -> Image:
    """Return the image, pulled when the engine does not have it.

    Raises:
        EngineRefused: it cannot be pulled.
        EngineUnreachable: the engine does not answer.
    """
    found = await find_image(engine, reference)
    if found is None:
        await engine.call(f"pull image {reference!r}", engine.client.images.pull(reference), seconds=_PULL_SECONDS)
        found = await find_image(engine, reference)
    if found is None:
        raise EngineRefused(action=f"pull image {reference!r}", reason="it is not there afterwards", status=404)
    return found


async def some_image(engine: Engine) -> str:
    """Return one of the images that sandboxes here start from. Raises: EngineRefused: there is none."""
    found = await engine.list_images({"label": [LABEL_OWNED_IMAGE]})
    if not found:
        raise EngineRefused(action="find an image", reason="no sandbox was started from any here", status=404)
    return str(found[0]["Id"])


async def owned_image(engine: Engine, image: Image, user: User | None) -> str:
    """Return an image that differs from `image` by a workspace folder of `user`'s; derived once per engine."""
    if user is None:
        return image.id
    digest = hashlib.sha256(f"{image.id} {user.uid}:{user.gid} {WORKSPACE_ROOT}".encode()).hexdigest()
    name = f"{_REPOSITORY}:{digest[:40]}"
    if await engine.find("look up the sandbox image", f"images/{name}/json") is None:
        await _derive(engine, image, user, digest[:40])
    return name


async def _derive(engine: Engine, image: Image, user: User, tag: str) -> None:
    labels = {LABEL_OWNED_IMAGE: image.id}
    container = f"b4-derive-{secrets.token_hex(8)}"
    body = {"Image": image.id, "Labels": labels, "Entrypoint": ["/b4"], "Cmd": [], "NetworkDisabled": True}
    await engine.post("prepare the sandbox image", "containers/create", params={"name": container}, body=body)
    try:
        await engine.upload(container, "/", folder_archive(WORKSPACE_ROOT.strip("/"), user))
        parameters = {"container": container, "repo": _REPOSITORY, "tag": tag, "comment": "b4run workspace folder"}
        await engine.post("commit the sandbox image", "commit", params=parameters, body={"Labels": labels})
    finally:
        await engine.remove_container(container)


def folder_archive(name: str, user: User) -> bytes:
    """Return a tar archive with one empty folder."""
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode, entry.uid, entry.gid = tarfile.DIRTYPE, 0o755, user.uid, user.gid
    return _archive(entry, b"")


def file_archive(name: str, data: bytes) -> bytes:
    """Return a tar archive with one executable file of root's."""
    entry = tarfile.TarInfo(name)
    entry.mode, entry.size = 0o755, len(data)
    return _archive(entry, data)


def _archive(entry: tarfile.TarInfo, data: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()
