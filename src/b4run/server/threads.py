"""Endpoints of threads: create, list, read, change, delete; their state and the prompts that wait."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from b4run.access import Action, Operation
from b4run.errors import ThreadBusy, WorkspaceInvalid
from b4run.server.asking import endpoint, gated, integer, json_answer, new_thread_id, there, thread_json
from b4run.server.bodies import MAX_THREAD_BYTES, only, read_object
from b4run.server.gate import ACCESS_KEY, usable_stamp
from b4run.server.refusals import NO_STORE, Refusal, invalid, refusal_of, thread_not_found
from b4run.server.service import STAGED_CREATES_AT_ONCE, Service
from b4run.storage.threads import Cursor, ThreadRow, ThreadStatus
from b4run.storage.uploads import AlreadyStaged, SourceNotHeld
from b4run.threads.state import ThreadState, read_state
from b4run.workspace import StagedReference, staged_reference
from b4run.workspace.bundle import is_digest

MAX_LINKS = 1_024
_MAX_LINK_CHARACTERS = 1_024
_MAX_PAGE = 1_000


@endpoint
async def create(request: Request, service: Service) -> Response:
    try:
        body = await read_object(request, MAX_THREAD_BYTES, optional=True)
    except Refusal as refusal:
        if refusal.status == 413:
            # Whoever may not create at all hears that, and not how much they may send.
            await service.gate.decide(request, Action.CREATE, Operation.THREAD_CREATE, metadata={})
        raise
    metadata = _metadata(body)
    named = _workspace(body["workspace"]) if body.get("workspace") is not None else None
    requested = None
    if named is not None:
        uploaded_by = tuple(await service.app.storage.uploads.uploaders(named["sourceDigest"]))
        requested = named | {"uploadedBy": uploaded_by}
    stamp = await service.gate.decide(request, Action.CREATE, Operation.THREAD_CREATE, metadata=metadata, workspace=requested)
    if named is None:
        return json_answer(thread_json(await _created(request, service, metadata, stamp)))
    if service.staging is None:
        raise Refusal(400, "workspace_not_accepted", "This app takes no workspace with a new thread.")
    if service.creating >= STAGED_CREATES_AT_ONCE:
        raise Refusal(429, "workspace_create_in_flight", "Too many threads are created from uploads at once.", headers={"retry-after": "1"})
    service.creating += 1
    try:
        return json_answer(thread_json(await _created_from(request, service, metadata, stamp, named)))
    finally:
        service.creating -= 1


async def _created_from(request: Request, service: Service, metadata: Mapping[str, Any], stamp: Any, named: Mapping[str, Any]) -> ThreadRow:
    uploads = service.app.storage.uploads
    paths = await uploads.paths(named["sourceDigest"])
    if paths is None:
        raise Refusal(422, "workspace_source_not_held", "Nobody uploaded that source, or it was kept long enough and removed.")
    try:
        reference: StagedReference = staged_reference(named, paths)
    except WorkspaceInvalid as error:
        raise Refusal(422, "workspace_invalid", error.message) from None
    row = await _created(request, service, metadata, stamp)
    try:
        await uploads.attach(row.thread_id, reference)
    except SourceNotHeld:
        await service.app.storage.threads.delete(row.thread_id, nonce=row.nonce)
        raise Refusal(409, "workspace_source_not_held", "The source was removed meanwhile; upload it again.") from None
    except AlreadyStaged:
        raise Refusal(409, "already_staged", "The thread has a workspace to start from already.") from None
    return row


async def _created(request: Request, service: Service, metadata: Mapping[str, Any], stamp: Any) -> ThreadRow:
    """Insert a new thread under an id of ours, and ask whether who created it may use it."""
    for _ in range(3):
        row = await service.app.storage.threads.create(new_thread_id(), metadata=metadata, access=usable_stamp(stamp))
        if row is not None:
            await recheck(request, service, row, Operation.THREAD_CREATE)
            return row
    raise Refusal(409, "thread_conflict", "The thread's id is taken.")


async def recheck(request: Request, service: Service, row: ThreadRow, operation: Operation, *, resuming: bool = False) -> None:
    """Ask the policy about the row that a create made; a denied one does not stay. Raises: Refusal."""
    try:
        await service.gate.decide(request, Action.UPDATE, operation, thread_id=row.thread_id, row=row, resuming=resuming)
    except Refusal:
        await service.app.storage.threads.delete(row.thread_id, nonce=row.nonce)
        raise


def _metadata(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = body.get("metadata")
    if metadata is None:
        return {}
    if not isinstance(metadata, dict):
        raise invalid("`metadata` is not an object.")
    return {key: value for key, value in metadata.items() if key != ACCESS_KEY}


def _workspace(value: Any) -> dict[str, Any]:
    """Return a reference of the right shape; whether its links fit is for whoever knows the files. Raises: Refusal."""
    if not isinstance(value, dict):
        raise invalid("`workspace` is not an object.")
    unknown = sorted(set(value) - {"sourceDigest", "environmentLinks", "baseline"})
    if unknown:
        raise invalid(f"`workspace` has an unknown key {unknown[0][:80]!r}.")
    if not is_digest(value.get("sourceDigest")):
        raise invalid("`workspace.sourceDigest` is not 64 lower-case hexadecimal digits.")
    if "baseline" in value and value["baseline"] != "git":
        raise invalid("`workspace.baseline` is not 'git'.")
    links = value.get("environmentLinks", [])
    if not isinstance(links, list) or len(links) > MAX_LINKS or not all(map(_is_link, links)):
        raise invalid(f"`workspace.environmentLinks` is not a list of at most {MAX_LINKS:,} objects of `path` and `target`.")
    return dict(value)


def _is_link(value: Any) -> bool:
    if not isinstance(value, dict) or set(value) != {"path", "target"}:
        return False
    return all(isinstance(text, str) and len(text) <= _MAX_LINK_CHARACTERS for text in value.values())


@endpoint
async def list_threads(request: Request, service: Service) -> Response:
    """Only what the policy lets the caller read; a page may be short for that."""
    limit = integer(request, "limit", 100, least=1, most=_MAX_PAGE)
    after = _cursor(request.query_params.get("after"))
    status = request.query_params.get("status")
    if status is not None and status not in list(ThreadStatus):
        raise invalid(f"`status` is none of {', '.join(ThreadStatus)}.")
    page = await service.app.storage.threads.list(limit=limit, after=after, status=ThreadStatus(status) if status else None)
    shown = []
    for row, _ in page:
        try:
            await service.gate.decide(request, Action.READ, Operation.THREAD_LIST, thread_id=row.thread_id, row=row)
        except Refusal as refusal:
            if refusal.status >= 500:
                raise
            continue
        shown.append(thread_json(row))
    if not page:
        await service.gate.principal(request)
    return json_answer({"threads": shown, "next": _cursor_text(page[-1][1]) if len(page) == limit else None})


def _cursor(text: str | None) -> Cursor | None:
    if text is None:
        return None
    try:
        at, key = base64.urlsafe_b64decode(text.encode()).decode("ascii").split(".")
        if len(key) != 64 or not 0 <= int(at) < 2**62:
            raise ValueError(text)
    except (ValueError, binascii.Error):
        raise invalid("`after` is not what an earlier page gave as `next`.") from None
    return int(at), key


def _cursor_text(cursor: Cursor) -> str:
    return base64.urlsafe_b64encode(f"{cursor[0]}.{cursor[1]}".encode()).decode()


@endpoint
async def get(request: Request, service: Service) -> Response:
    _, row = await gated(request, service, Action.READ, Operation.THREAD_GET)
    return json_answer(thread_json(there(row)))


@endpoint
async def update(request: Request, service: Service) -> Response:
    body = await read_object(request, MAX_THREAD_BYTES)
    only(body, "metadata")
    patch = _metadata(body)
    thread_id, _ = await gated(request, service, Action.UPDATE, Operation.THREAD_UPDATE)
    changed = await service.app.storage.threads.merge_metadata(thread_id, patch)
    return json_answer(thread_json(there(changed)))


@endpoint
async def delete(request: Request, service: Service) -> Response:
    thread_id, _ = await gated(request, service, Action.DELETE, Operation.THREAD_DELETE)
    try:
        await service.deletion.delete(thread_id)
    except ThreadBusy as error:
        raise refusal_of(error) from None
    except Exception as error:
        told = refusal_of(error)
        message = "The thread could not be removed yet; it is tried again in the background."
        raise Refusal(500, "deletion_unfinished", message, b4_code=told.b4_code) from error
    return Response(status_code=204, headers=NO_STORE)


@endpoint
async def state(request: Request, service: Service) -> Response:
    """Also of a thread whose row is gone, as long as its conversation is there."""
    thread_id, _ = await gated(request, service, Action.READ, Operation.THREAD_STATE)
    found = await read_state(service.app.checkpoints, thread_id)
    if found is None:
        raise thread_not_found()
    return json_answer(found.as_dict())


@endpoint
async def pending_interrupts(request: Request, service: Service) -> Response:
    thread_id, row = await gated(request, service, Action.READ, Operation.THREAD_PENDING_INTERRUPTS)
    route_of(service, there(row))
    found = await read_state(service.app.checkpoints, thread_id)
    return json_answer({"interrupts": prompts_json(found)})


def prompts_json(found: ThreadState | None) -> list[dict[str, Any]]:
    """Return the prompts that wait, as clients see them."""
    return [] if found is None else [prompt.as_dict() for prompt in found.prompts]


def route_of(service: Service, row: ThreadRow) -> str:
    """Return the route under which a thread's prompts are answered. Raises: Refusal: it never ran, or its route is gone."""
    route = row.parked_route or row.route
    if route is None or not known_route(service, route):
        raise Refusal(409, "thread_route_unknown", "The thread never ran, or on a route that this app does not have any more.")
    return route


def known_route(service: Service, key: str) -> bool:
    """Whether `<id>#<kind>` names a route of the app."""
    name, _, kind = key.rpartition("#")
    route = service.app.routes.get(name)
    return route is not None and route.kind == kind
