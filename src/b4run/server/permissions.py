"""Endpoints of what people allowed for good on a thread: listed, and taken back."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from b4run.access import Action, Operation
from b4run.permissions import Grant
from b4run.server.asking import endpoint, gated, json_answer, there
from b4run.server.refusals import NO_STORE, Refusal
from b4run.server.service import Service


@endpoint
async def list_grants(request: Request, service: Service) -> Response:
    """What holds for the thread, the whole app's included."""
    thread_id, row = await gated(request, service, Action.READ, Operation.THREAD_PERMISSIONS)
    there(row)
    grants = await service.app.storage.grants.list(thread_id)
    return json_answer({"permissions": [_shown(grant) for grant in grants]})


@endpoint
async def revoke(request: Request, service: Service) -> Response:
    """One of the thread's own; what holds for the whole app is the operator's to take back, by `b4 permissions revoke`."""
    thread_id, row = await gated(request, service, Action.UPDATE, Operation.THREAD_REVOKE)
    there(row)
    text = request.path_params["grant_id"]
    grant_id = int(text) if text.isascii() and text.isdigit() and len(text) < 18 else -1
    own = [grant.id for grant in await service.app.storage.grants.list(thread_id) if grant.thread_id == thread_id]
    if grant_id not in own or not await service.app.storage.grants.revoke(grant_id):
        raise Refusal(404, "permission_not_found", "The thread has no such permission of its own.")
    return Response(status_code=204, headers=NO_STORE)


def _shown(grant: Grant) -> dict[str, Any]:
    return {
        "id": grant.id,
        "key": grant.key.value,
        "pattern": grant.pattern,
        "exact": grant.exact,
        "scope": grant.scope.value,
        "grantedBy": grant.granted_by,
        "grantedAt": grant.granted_at.isoformat() if grant.granted_at else None,
        "expiresAt": grant.expires_at.isoformat() if grant.expires_at else None,
    }
