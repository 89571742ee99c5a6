"""Who calls, and whether they may: asked once a request, before anything is read or changed."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

from starlette.requests import Request

from b4run.access import AccessRequest, Action, Allowed, AuthRequest, Denied, Operation, Principal, Rejected, ThreadView
from b4run.app.access import AppAccess
from b4run.errors import AuthInvalid
from b4run.server.refusals import RawRefusal, Refusal
from b4run.storage.threads import ThreadRow

DECIDE_SECONDS = 10.0
"""How long authentication and the policy may each take."""
MAX_STAMP_BYTES = 16_384
ACCESS_KEY = "b4:access"
"""Where a stamp is shown in a thread's metadata; no client's to write."""

logger = logging.getLogger("b4run.server")


class Gate:
    """An app's authentication and thread-access policy."""

    def __init__(self, access: AppAccess) -> None:
        self._access = access
        self._warned: set[str] = set()

    @property
    def has_policy(self) -> bool:
        return self._access.policy is not None

    async def principal(self, request: Request) -> Principal | None:
        """Return who calls; asked once, and kept with the request.

        Raises:
            Refusal: they are rejected, or `authenticate` fails or answers nonsense.
        """
        if not hasattr(request.state, "principal"):
            request.state.principal = await self._authenticate(request)
        found: Principal | None = request.state.principal
        return found

    async def decide(
        self,
        request: Request,
        action: Action,
        operation: Operation,
        *,
        thread_id: str | None = None,
        row: ThreadRow | None = None,
        metadata: Mapping[str, Any] | None = None,
        workspace: Mapping[str, Any] | None = None,
        resuming: bool = False,
        miss: Refusal | None = None,
    ) -> Any:
        """Return the stamp of whoever may go on, as the policy gave it; without a policy everybody may, and there is none.

        `miss` is what the endpoint says of a thread that is not there, which a denied read is told, too.

        Raises:
            Refusal: the policy says no, or does not work.
        """
        principal = await self.principal(request)
        if self._access.policy is None:
            return None
        asked = AccessRequest(
            action=action,
            operation=operation,
            method=request.method,
            url=_url(request),
            thread_id=thread_id,
            thread=None if row is None else view(row),
            principal=principal,
            requested_metadata=None if metadata is None else MappingProxyType(dict(metadata)),
            requested_workspace=workspace,
            resuming=resuming,
        )
        answer = await self._ask(asked)
        if type(answer) is Allowed:
            if answer.stamp is not None and action is not Action.CREATE:
                self._warn_once(f"the policy's stamp on {action} is ignored: only a create has one")
                return None
            return answer.stamp
        raise self._denied(asked, answer, miss)

    async def _ask(self, asked: AccessRequest) -> Any:
        assert self._access.policy is not None
        try:
            async with asyncio.timeout(DECIDE_SECONDS):
                answer = self._access.policy.of(asked.action)(asked)
                return await answer if inspect.isawaitable(answer) else answer
        except Exception as error:
            fields = {"event": "access.failed", "operation": asked.operation.value, "thread_id": asked.thread_id}
            logger.exception("the thread-access policy failed", extra=fields)
            raise Refusal(500, "policy_failed", "The thread-access policy failed; nothing was done.") from error

    def _denied(self, asked: AccessRequest, answer: Any, miss: Refusal | None) -> Refusal:
        status, body = None, None
        if type(answer) is Denied:
            status, body = answer.status if answer.status in (403, 404) else None, answer.body
        else:
            fields = {"event": "access.nonsense", "operation": asked.operation.value, "thread_id": asked.thread_id}
            logger.warning("the policy answered %s, which denies", type(answer).__name__, extra=fields)
        status = status or (404 if asked.action is Action.READ else 403)
        if body is not None:
            return RawRefusal(status, body)
        if status == 404:
            return miss or Refusal(404, "thread_not_found", "There is no such thread.")
        return Refusal(403, "thread_access_denied", "You may not do this.")

    async def _authenticate(self, request: Request) -> Principal | None:
        authenticate = self._access.authenticate
        if authenticate is None:
            return None
        asked = AuthRequest(
            MappingProxyType({name.lower(): value for name, value in request.headers.items()}), request.method, _url(request)
        )
        try:
            async with asyncio.timeout(DECIDE_SECONDS):
                answer = await authenticate(asked)
        except Exception as error:
            logger.exception("authentication failed", extra={"event": "auth.failed"})
            raise Refusal(500, "auth_failed", "Authentication failed; nothing was done.", b4_code=AuthInvalid.code) from error
        if answer is None or (type(answer) is Principal and isinstance(answer.id, str) and answer.id):
            return answer
        if type(answer) is Rejected and 400 <= answer.status < 500:
            if answer.body is not None:
                raise RawRefusal(answer.status, answer.body, answer.headers)
            raise Refusal(answer.status, "unauthenticated", "Who you are could not be told.", headers=answer.headers)
        logger.error("`authenticate` answered %s", type(answer).__name__, extra={"event": "auth.nonsense"})
        raise Refusal(500, "auth_failed", "Authentication failed; nothing was done.", b4_code=AuthInvalid.code)

    def _warn_once(self, text: str) -> None:
        if text not in self._warned:
            self._warned.add(text)
            logger.warning(text, extra={"event": "access.stamp_ignored"})


def usable_stamp(stamp: Any) -> dict[str, Any] | None:
    """Return a stamp that can be kept: a JSON object of at most 16 KiB. None: it is something else."""
    try:
        if isinstance(stamp, Mapping):
            text = json.dumps(dict(stamp), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
            if len(text.encode()) <= MAX_STAMP_BYTES:
                kept: dict[str, Any] = json.loads(text)
                return kept
    except (TypeError, ValueError, RecursionError):
        pass
    return None


def view(row: ThreadRow) -> ThreadView:
    """Return a thread as policies see it."""
    access = None if row.access is None else MappingProxyType(dict(row.access))
    return ThreadView(
        row.thread_id, iso(row.created_ms), iso(row.updated_ms), row.status.value, MappingProxyType(dict(row.metadata)), access
    )


def iso(ms: int) -> str:
    """Return a time as clients see it: ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(ms / 1_000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _url(request: Request) -> str:
    return request.url.path + (f"?{request.url.query}" if request.url.query else "")
