"""What every endpoint begins with: the service, an id that can be one, the thread's row, and one way to answer failures."""

from __future__ import annotations

import functools
import secrets
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response

from b4run.access import Action, Operation
from b4run.server.gate import ACCESS_KEY, iso
from b4run.server.refusals import NO_STORE, Refusal, invalid, refusal_of, thread_not_found
from b4run.server.service import Service
from b4run.storage.threads import ThreadRow

LONGEST_ID = 1_024

Endpoint = Callable[[Request, Service], Awaitable[Response]]


def endpoint(function: Endpoint) -> Callable[[Request], Awaitable[Response]]:
    """Give an endpoint its service, and turn what it raises into the answer."""

    @functools.wraps(function)
    async def answer(request: Request) -> Response:
        service: Service = request.app.state.service
        try:
            if service.closing:
                raise Refusal(503, "shutting_down", "The server is shutting down.", headers={"retry-after": "1", "connection": "close"})
            return await function(request, service)
        except ClientDisconnect:
            return Refusal(499, "request_aborted", "The client went away.").response()
        except Exception as error:  # noqa: BLE001 - the one place where every failure becomes an answer
            return refusal_of(error).response()

    return answer


def new_thread_id() -> str:
    """Return an id that nobody can guess: 128 random bits."""
    return f"t-{secrets.token_hex(16)}"


def thread_id_of(request: Request) -> str:
    """Return the thread's id from the path. Raises: Refusal: it cannot be one."""
    thread_id: str = request.path_params["thread_id"]
    if not 1 <= len(thread_id) <= LONGEST_ID or not thread_id.strip() or any(map(_unprintable, thread_id)):
        raise invalid(f"A thread's id has 1 to {LONGEST_ID:,} characters of UTF-8, not all of them blank, and no control characters.")
    return thread_id


async def gated(
    request: Request, service: Service, action: Action, operation: Operation, *, resuming: bool = False
) -> tuple[str, ThreadRow | None]:
    """Return the thread of the path and its row, once the policy has let the caller through; None: there is none, which it knew.

    Raises:
        Refusal: the id cannot be one, or the policy says no.
    """
    thread_id = thread_id_of(request)
    row = await service.app.storage.threads.find(thread_id)
    await service.gate.decide(request, action, operation, thread_id=thread_id, row=row, resuming=resuming, miss=thread_not_found())
    return thread_id, row


def there(row: ThreadRow | None) -> ThreadRow:
    """Return a row. Raises: Refusal: there is none."""
    if row is None:
        raise thread_not_found()
    return row


def _unprintable(character: str) -> bool:
    return character == "\ufffd" or unicodedata.category(character) in ("Cc", "Cs")


def thread_json(row: ThreadRow) -> dict[str, Any]:
    """Return a thread as clients see it."""
    metadata = dict(row.metadata) | ({} if row.access is None else {ACCESS_KEY: row.access})
    shown = {
        "thread_id": row.thread_id,
        "created_at": iso(row.created_ms),
        "updated_at": iso(row.updated_ms),
        "metadata": metadata,
        "status": row.status.value,
    }
    return shown | ({} if row.reason is None else {"reason": row.reason}) | ({} if row.route is None else {"route": row.route})


def json_answer(value: Any, status: int = 200) -> Response:
    """Return JSON about a thread, which no cache may keep."""
    return JSONResponse(value, status, headers=NO_STORE)


def integer(request: Request, name: str, default: int, *, least: int, most: int) -> int:
    """Return a number of the query. Raises: Refusal."""
    text = request.query_params.get(name)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) < 20 and least <= int(text) <= most):
        raise invalid(f"`{name}` is not a number from {least:,} to {most:,}.")
    return int(text)


def patience(request: Request) -> float | None:
    """Return the seconds of `Prefer: wait=N`; None: to the end."""
    for part in request.headers.get("prefer", "").split(","):
        name, _, value = part.strip().partition("=")
        if name.lower() == "wait":
            if not (value.isascii() and value.isdigit() and len(value) < 7):
                raise invalid("`Prefer: wait` is not a number of seconds.")
            return float(value)
    return None
