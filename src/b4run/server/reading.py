"""Endpoints that read a thread's workspace beside its sandbox, while nothing else has the thread."""

from __future__ import annotations

import asyncio
import hashlib
import io
import tarfile
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from b4run.access import Action, Operation
from b4run.errors import ReaderUnsupported, SandboxUnavailable, WorkspaceMissing
from b4run.sandbox.contract import FileKind, WorkspaceReader
from b4run.server.asking import endpoint, gated, json_answer, patience, there
from b4run.server.bodies import MAX_INSPECT_BYTES, only, read_object
from b4run.server.refusals import NO_STORE, Refusal, invalid, not_found, refusal_of
from b4run.server.service import Service
from b4run.storage.slots import SlotKind
from b4run.storage.workspaces import RecordState, WorkspaceRecord
from b4run.threads.slots import Slot
from b4run.workspace import inspect_workspace
from b4run.workspace.captured import compact
from b4run.workspace.content import by_file
from b4run.workspace.inspection import (
    LARGEST_ENTRIES,
    LARGEST_FILE_BYTES,
    LARGEST_TOTAL_BYTES,
    MAX_ENTRIES,
    MAX_FILE_BYTES,
    MAX_TOTAL_BYTES,
)

MAX_ANSWER_BYTES = 67_108_864
MAX_LISTED = 64
_LONGEST_TEXT = 1_024
_LONGEST_TARGET = 4_096
MAX_WAIT_S = 60.0
"""How long a read may wait for its turn, by `Prefer: wait=N`."""
_POLL_S = 0.1
_GIVE_UP_S = 1.0
"""How long a read that was ended may take to close its reader, before it is left to close by itself."""
_OPTIONS = (
    "root",
    "excludeRootDirectories",
    "ignorePrefixes",
    "expectedRootSymlinks",
    "maxEntries",
    "maxFileBytes",
    "maxTotalBytes",
)

T = TypeVar("T")
Use = Callable[[WorkspaceReader, WorkspaceRecord], Awaitable[T]]


@endpoint
async def inspect(request: Request, service: Service) -> Response:
    thread_id = await _allowed(request, service)
    body = await read_object(request, MAX_INSPECT_BYTES, optional=True)
    options, ignored = _options(body)

    async def use(reader: WorkspaceReader, record: WorkspaceRecord) -> bytes:
        found = await inspect_workspace(reader, **options)
        files = {path: text for path, text in found.files.items() if not path.startswith(ignored)} if ignored else dict(found.files)
        answer = {"threadId": thread_id, "sourceDigest": record.intent.source_digest, "intentDigest": record.intent.digest}
        if options["root"] is not None:
            answer["root"] = options["root"]
        inspection = {"files": files, "symlinks": dict(found.symlinks), "totalBytes": found.total_bytes, "entries": found.entries}
        return await asyncio.to_thread(_serialized, answer | {"inspection": inspection})

    data = await _with_reader(request, service, thread_id, use)
    return Response(data, media_type="application/json", headers=NO_STORE)


@endpoint
async def entries(request: Request, service: Service) -> Response:
    """Every file with its kind, size, mode and digest, whatever it holds."""
    thread_id = await _allowed(request, service)

    async def use(reader: WorkspaceReader, record: WorkspaceRecord) -> dict[str, Any]:
        return {"threadId": thread_id, "sourceDigest": record.intent.source_digest, "entries": await _listed(reader)}

    return json_answer(await _with_reader(request, service, thread_id, use))


@endpoint
async def file(request: Request, service: Service) -> Response:
    """One file's bytes; its digest is the `ETag`."""
    thread_id = await _allowed(request, service)
    path = request.path_params["path"]
    _check_path(path)

    async def use(reader: WorkspaceReader, record: WorkspaceRecord) -> tuple[bytes, int]:
        entry = await reader.stat(path, follow=False)
        if entry.kind is not FileKind.FILE:
            raise Refusal(422, "workspace_not_a_file", f"{path!r} is a {entry.kind.value}.")
        return (await reader.read(path, max_size=MAX_ANSWER_BYTES)).data, entry.mode

    data, mode = await _with_reader(request, service, thread_id, use)
    tag = f'"{hashlib.sha256(data).hexdigest()}"'
    headers = NO_STORE | {"etag": tag, "x-file-mode": f"{mode:04o}", "x-content-type-options": "nosniff"}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(data, media_type="application/octet-stream", headers=headers)


@endpoint
async def archive(request: Request, service: Service) -> Response:
    """The whole workspace as a tar: files, folders and links, no device and no socket."""
    thread_id = await _allowed(request, service)

    async def use(reader: WorkspaceReader, record: WorkspaceRecord) -> bytes:
        tree = await reader.read_tree(max_entries=LARGEST_ENTRIES, max_file_bytes=LARGEST_FILE_BYTES, max_total_bytes=MAX_ANSWER_BYTES)
        return await asyncio.to_thread(_tar, tree)

    data = await _with_reader(request, service, thread_id, use)
    return Response(
        data, media_type="application/x-tar", headers=NO_STORE | {"content-disposition": 'attachment; filename="workspace.tar"'}
    )


@endpoint
async def diff(request: Request, service: Service) -> Response:
    """What became of the source that the thread started from."""
    thread_id = await _allowed(request, service)

    async def use(reader: WorkspaceReader, record: WorkspaceRecord) -> dict[str, Any]:
        content = await service.app.storage.workspaces.source(record.intent.source_digest)
        before: dict[str, tuple[str, bool]] = {}
        if content is not None:
            digest = hashlib.sha256()
            async for entry, piece, last in by_file(content):
                digest.update(piece)
                if last:
                    before[entry.path] = (digest.hexdigest(), entry.executable)
                    digest = hashlib.sha256()
        links = {link.path: link.target for link in record.intent.environment_links}
        return {"threadId": thread_id, "sourceDigest": record.intent.source_digest} | _compared(before, links, await _listed(reader))

    return json_answer(await _with_reader(request, service, thread_id, use))


async def _allowed(request: Request, service: Service) -> str:
    """Gate, then option, then row: who may not read hears the same whether the option is on or off. Raises: Refusal."""
    thread_id, row = await gated(request, service, Action.READ, Operation.THREAD_WORKSPACE)
    if not service.reads_workspaces:
        raise not_found()
    there(row)
    return thread_id


async def _with_reader(request: Request, service: Service, thread_id: str, use: Use[T]) -> T:
    """Take the thread, open a reader, use and close it, all within the read timeout.

    Raises:
        Refusal: the thread is in use, its workspace cannot be read, it took too long, or somebody cancelled it.
    """
    sandbox = service.app.config.sandbox
    assert sandbox is not None and service.app.managed is not None, "the option needs both"
    slot = await _claimed(service, thread_id, patience(request) or 0.0)
    reading = asyncio.create_task(_read(service, thread_id, use))
    seconds = sandbox.workspace_read_timeout_ms / 1_000
    watches = {asyncio.create_task(slot.cancelled.wait()), asyncio.create_task(_disconnected(request))}
    try:
        done, _ = await asyncio.wait({reading, *watches}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if reading in done:
            return reading.result()
        raise _ended(service, slot, seconds, late=not done)
    finally:
        for watch in watches:
            watch.cancel()
        if not reading.done():
            reading.cancel()
            service.abandoned.add(reading)
            reading.add_done_callback(service.abandoned.discard)
            reading.add_done_callback(_drop)
            await asyncio.wait({reading}, timeout=_GIVE_UP_S)
        await slot.release()


async def _claimed(service: Service, thread_id: str, seconds: float) -> Slot:
    """Take the thread, at once or within what the client is ready to wait. Raises: Refusal: it is in use."""
    deadline = time.monotonic() + min(seconds, MAX_WAIT_S)
    while True:
        slot = await service.slots.claim(thread_id, SlotKind.READ)
        if slot is not None:
            return slot
        if time.monotonic() >= deadline:
            raise Refusal(409, "run_in_flight", "The thread is in use.")
        await asyncio.sleep(_POLL_S)


def _ended(service: Service, slot: Slot, seconds: float, *, late: bool) -> Refusal:
    if late:
        return Refusal(504, "workspace_read_timeout", f"The workspace was not read within {seconds:g} s.", deadlineMs=int(seconds * 1_000))
    if service.closing:
        return Refusal(503, "shutting_down", "The server is shutting down.")
    if slot.cancelled.is_set():
        return Refusal(409, "read_cancelled", "The read was cancelled.")
    return Refusal(499, "request_aborted", "The client went away.")


def _drop(reading: asyncio.Task[Any]) -> None:
    if not reading.cancelled():
        reading.exception()


async def _disconnected(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.2)


async def _read(service: Service, thread_id: str, use: Use[T]) -> T:
    managed, sandbox = service.app.managed, service.app.config.sandbox
    assert managed is not None and sandbox is not None
    record = await managed.recorded(thread_id)
    if record is None:
        raise WorkspaceMissing(thread_id=thread_id)
    if record.state is RecordState.CREATING:
        raise Refusal(409, "workspace_not_ready", "The thread's workspace is being made.")
    try:
        reader = await managed.open_workspace_reader(thread_id, run_as_non_root=sandbox.security.run_as_non_root)
    except ReaderUnsupported as error:
        raise not_found() from error
    try:
        return await use(reader, record)
    except SandboxUnavailable as error:
        raise refusal_of(error) from error
    finally:
        await reader.aclose()


async def _listed(reader: WorkspaceReader) -> list[dict[str, Any]]:
    tree = await reader.read_tree(max_entries=LARGEST_ENTRIES, max_file_bytes=LARGEST_FILE_BYTES, max_total_bytes=LARGEST_TOTAL_BYTES)
    found = []
    for entry in tree.entries:
        shown: dict[str, Any] = {"path": _shown(entry.path), "kind": entry.kind.value, "mode": f"{entry.mode:04o}"}
        if entry.kind is FileKind.FILE:
            shown |= {"size": entry.size, "sha256": hashlib.sha256(tree.contents.get(entry.path, b"")).hexdigest()}
        elif entry.kind is FileKind.SYMLINK:
            shown["target"] = _shown(entry.target or "")
        found.append(shown)
    return found


def _shown(path: str) -> str:
    """A name that is not UTF-8 has its bytes as escapes, which JSON can carry."""
    return path.encode(errors="surrogateescape").decode(errors="backslashreplace")


def _compared(before: Mapping[str, tuple[str, bool]], links: Mapping[str, str], now: list[dict[str, Any]]) -> dict[str, Any]:
    files = {entry["path"]: entry for entry in now if entry["kind"] == "file" and not entry["path"].startswith(".git/")}
    others = {entry["path"]: entry for entry in now if entry["kind"] not in ("file", "directory") and not entry["path"].startswith(".git/")}
    kept_links = {path for path, target in links.items() if others.get(path, {}).get("target") == target}
    changed = [
        path
        for path, (digest, executable) in before.items()
        if path in files and (files[path]["sha256"] != digest or bool(int(files[path]["mode"], 8) & 0o111) != executable)
    ]
    return {
        "added": sorted((set(files) - set(before)) | (set(others) - set(links))),
        "changed": sorted([*changed, *(path for path in links if path in others and path not in kept_links)]),
        "removed": sorted((set(before) - set(files)) | {path for path in links if path not in others}),
    }


def _tar(tree: Any) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for entry in tree.entries:
            info = tarfile.TarInfo(entry.path)
            info.mode, info.mtime = entry.mode, entry.mtime_ns // 1_000_000_000
            if entry.kind is FileKind.FILE:
                data = tree.contents[entry.path]
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
            elif entry.kind is FileKind.DIRECTORY:
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            elif entry.kind is FileKind.SYMLINK:
                info.type, info.linkname = tarfile.SYMTYPE, entry.target or ""
                tar.addfile(info)
    return buffer.getvalue()


def _serialized(answer: Mapping[str, Any]) -> bytes:
    data = compact(answer).encode()
    if len(data) > MAX_ANSWER_BYTES:
        message = f"The answer would have more than {MAX_ANSWER_BYTES:,} bytes; ask for a folder, or leave files out."
        raise Refusal(422, "workspace_response_too_large", message, maxBytes=MAX_ANSWER_BYTES)
    return data


def _check_path(path: str) -> None:
    if not 1 <= len(path) <= _LONGEST_TARGET or "\0" in path or any(part in ("", ".", "..") for part in path.split("/")):
        raise invalid("The path is not relative and plain: it has no empty, `.` or `..` part.")


def _options(body: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return what an inspection is to look at, and the prefixes to leave out of the answer. Raises: Refusal."""
    only(body, *_OPTIONS)
    root = body.get("root")
    if "root" in body and not isinstance(root, str):
        raise invalid("`root` is not a text.")
    links = body.get("expectedRootSymlinks", {})
    if not isinstance(links, dict) or len(links) > MAX_LISTED:
        raise invalid(f"`expectedRootSymlinks` is not an object of at most {MAX_LISTED} links.")
    if not all(isinstance(target, str) and 1 <= len(target) <= _LONGEST_TARGET for target in links.values()):
        raise invalid(f"A target in `expectedRootSymlinks` is not a text of 1 to {_LONGEST_TARGET:,} characters.")
    ignored = _texts(body, "ignorePrefixes")
    if any(prefix.startswith("/") for prefix in ignored):
        raise invalid("A prefix in `ignorePrefixes` is not relative.")
    options = {
        "root": root,
        "exclude_root_directories": _texts(body, "excludeRootDirectories"),
        "expected_root_symlinks": links,
        "max_entries": _count(body, "maxEntries", MAX_ENTRIES, LARGEST_ENTRIES),
        "max_file_bytes": _count(body, "maxFileBytes", MAX_FILE_BYTES, LARGEST_FILE_BYTES),
        "max_total_bytes": _count(body, "maxTotalBytes", MAX_TOTAL_BYTES, LARGEST_TOTAL_BYTES),
    }
    return options, ignored


def _texts(body: Mapping[str, Any], key: str) -> tuple[str, ...]:
    value = body.get(key, [])
    if not isinstance(value, list) or len(value) > MAX_LISTED:
        raise invalid(f"`{key}` is not a list of at most {MAX_LISTED} texts.")
    if not all(isinstance(text, str) and 1 <= len(text) <= _LONGEST_TEXT for text in value):
        raise invalid(f"`{key}` has something that is not a text of 1 to {_LONGEST_TEXT:,} characters.")
    return tuple(value)


def _count(body: Mapping[str, Any], key: str, default: int, most: int) -> int:
    value = body.get(key, default)
    if type(value) is not int or not 0 <= value <= most:
        raise invalid(f"`{key}` is not a whole number from 0 to {most:,}.")
    return value
