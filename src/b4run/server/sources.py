"""Endpoints of uploaded sources: verified while they arrive, kept for a while, given back byte for byte."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from b4run.access import Action, Operation
from b4run.errors import WorkspaceInvalid
from b4run.server.asking import endpoint, json_answer
from b4run.server.bodies import drain, pieces
from b4run.server.gate import iso, usable_stamp
from b4run.server.refusals import NO_STORE, Refusal, invalid, not_found
from b4run.server.service import UPLOADS_AT_ONCE, Service
from b4run.storage.uploads import StagedQuotaExceeded, UploadStatus
from b4run.threads.staging import upload_limits
from b4run.workspace.bundle import JSON_END, is_digest, json_file, json_start
from b4run.workspace.content import by_file
from b4run.workspace.receiving import BundleMalformed, BundleReceiver, ReceivedBundle
from b4run.workspace.tar_receiving import ReceivedTar, TarReceiver

_TARS = frozenset({"application/x-tar", "application/tar", "application/gzip", "application/x-gzip"})
_FEED_BYTES = 262_144
"""Handed to a thread at a time."""
_LOOKED_AT = 1_048_576
"""A refused body up to this size is looked at again, to tell what is no JSON from what is no bundle."""
_SLOWEST = 16_384
_SLOW_AFTER_S = 10.0
"""An upload that brings less than this many bytes a second on the whole, after that time, gives its place up."""


@endpoint
async def put(request: Request, service: Service) -> Response:
    digest = _digest(request)
    stamp = await service.gate.decide(request, Action.CREATE, Operation.SOURCE_PUT, workspace={"sourceDigest": digest})
    staging = service.staging
    if staging is None:
        raise not_found()
    kept_stamp = _stamp(stamp)
    if service.uploading >= UPLOADS_AT_ONCE:
        raise Refusal(429, "upload_in_flight", "Another upload is under way.", headers={"retry-after": "1"})
    service.uploading += 1
    try:
        received = await _receive(request, staging.max_upload_bytes, staging.upload_timeout_ms / 1_000)
        try:
            if received.digest != digest:
                raise Refusal(400, "digest_mismatch", f"The bundle has the digest {received.digest}, not the path's.")
            try:
                status = await service.app.storage.uploads.put(
                    digest, received.manifest, received.pieces, stamp=kept_stamp, limits=upload_limits(staging)
                )
            except StagedQuotaExceeded as error:
                raise Refusal(507, "staged_quota_exceeded", f"There is no room for another upload: {error}.") from None
        finally:
            received.close()
    finally:
        service.uploading -= 1
    return json_answer({"digest": digest, "status": status.value}, 201 if status is UploadStatus.CREATED else 200)


def _receiver(request: Request) -> BundleReceiver | TarReceiver:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return TarReceiver() if kind in _TARS else BundleReceiver()


async def _receive(request: Request, limit: int, seconds: float) -> ReceivedBundle | ReceivedTar:
    """Verify a body as it arrives, in a thread. Raises: Refusal."""
    receiver = await asyncio.to_thread(_receiver, request)
    try:
        try:
            async with asyncio.timeout(seconds):
                await _feed(request, limit, receiver)
                return await asyncio.to_thread(receiver.finish)
        except TimeoutError:
            await drain_briefly(request)
            raise Refusal(
                408, "upload_timeout", f"The upload did not arrive within {seconds:g} s.", deadlineMs=int(seconds * 1_000)
            ) from None
        except BundleMalformed as error:
            raise invalid(f"The body is neither a bundle's JSON nor, as its content-type says, a tar: {error}.") from None
        except WorkspaceInvalid as error:
            raise Refusal(422, "workspace_source_invalid", error.message) from None
    except BaseException:
        await asyncio.shield(asyncio.to_thread(receiver.close))
        raise


async def drain_briefly(request: Request) -> None:
    """A client that stalls gets a moment to hear the answer."""
    try:
        async with asyncio.timeout(0.1):
            await drain(request)
    except TimeoutError:
        return


async def _feed(request: Request, limit: int, receiver: BundleReceiver | TarReceiver) -> None:
    began, received = time.monotonic(), 0
    waiting = bytearray()
    looked_at = bytearray()
    refused: WorkspaceInvalid | None = None
    async for piece in pieces(request, limit):
        received += len(piece)
        spent = time.monotonic() - began
        if spent > _SLOW_AFTER_S and received < _SLOWEST * spent:
            raise TimeoutError
        if received <= _LOOKED_AT:
            looked_at += piece
        if refused is not None:
            continue
        waiting += piece
        if len(waiting) >= _FEED_BYTES:
            refused = await _fed(receiver, bytes(waiting))
            waiting.clear()
    if refused is None and waiting:
        refused = await _fed(receiver, bytes(waiting))
    if refused is not None:
        if received <= _LOOKED_AT and isinstance(receiver, BundleReceiver):
            await asyncio.to_thread(_check_json, bytes(looked_at))
        raise refused


async def _fed(receiver: BundleReceiver | TarReceiver, data: bytes) -> WorkspaceInvalid | None:
    try:
        await asyncio.to_thread(receiver.feed, data)
    except WorkspaceInvalid as error:
        return error
    return None


def _check_json(data: bytes) -> None:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        raise BundleMalformed("its syntax is wrong") from None


@endpoint
async def get(request: Request, service: Service) -> Response:
    """The canonical JSON of an upload, as any implementation writes it."""
    digest = _digest(request)
    uploaders = await service.app.storage.uploads.uploaders(digest)
    asked: dict[str, Any] = {"sourceDigest": digest, "uploadedBy": tuple(uploaders)}
    await service.gate.decide(request, Action.READ, Operation.SOURCE_GET, workspace=asked, miss=_source_missing())
    if service.staging is None:
        raise not_found()
    if await service.app.storage.uploads.paths(digest) is None:
        raise _source_missing()
    content = await service.app.storage.workspaces.source(digest)
    if content is None:
        raise _source_missing()

    async def text() -> AsyncIterator[bytes]:
        yield json_start(digest)
        first, data = True, bytearray()
        async for entry, piece, last in by_file(content):
            data += piece
            if last:
                for encoded in json_file(entry.path, data, entry.executable, first=first):
                    yield encoded
                first = False
                data.clear()
        yield JSON_END

    return StreamingResponse(text(), media_type="application/json", headers=NO_STORE | {"etag": f'"{digest}"'})


@endpoint
async def list_own(request: Request, service: Service) -> Response:
    stamp = await service.gate.decide(request, Action.CREATE, Operation.SOURCE_LIST)
    if service.staging is None:
        raise not_found()
    rows = await service.app.storage.uploads.of_uploader(_stamp(stamp))
    shown = [{"digest": row.digest, "files": row.files, "bytes": row.bytes, "uploaded_at": iso(row.uploaded_ms)} for row in rows]
    return json_answer({"sources": shown})


@endpoint
async def delete(request: Request, service: Service) -> Response:
    """Only one's own upload; a thread that was created from it keeps it."""
    digest = _digest(request)
    stamp = await service.gate.decide(request, Action.CREATE, Operation.SOURCE_DELETE, workspace={"sourceDigest": digest})
    if service.staging is None:
        raise not_found()
    if not await service.app.storage.uploads.withdraw(digest, _stamp(stamp)):
        raise _source_missing()
    return Response(status_code=204, headers=NO_STORE)


def _digest(request: Request) -> str:
    digest: str = request.path_params["digest"]
    if not is_digest(digest):
        raise invalid("The path does not end in a digest: 64 lower-case hexadecimal digits.")
    return digest


def _stamp(stamp: Any) -> dict[str, Any] | None:
    if stamp is None:
        return None
    kept = usable_stamp(stamp)
    if kept is None:
        raise Refusal(422, "workspace_uploader_invalid", "The policy's stamp is not a JSON object of at most 16,384 bytes.")
    return kept


def _source_missing() -> Refusal:
    return Refusal(404, "workspace_source_not_held", "Nobody uploaded that source, or it was kept long enough and removed.")
