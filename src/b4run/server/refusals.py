"""What the server says when it says no: one envelope, one code for every refusal, nothing of what went wrong inside."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from starlette.responses import JSONResponse, Response

from b4run.errors import (
    B4Error,
    FileRefused,
    IdempotencyKeyReused,
    InspectionRefused,
    SandboxUnavailable,
    ShuttingDown,
    ThreadBusy,
    WorkspaceMissing,
    WorkspaceUnusable,
)
from b4run.storage.slots import SlotKind

logger = logging.getLogger("b4run.server")

NO_STORE = {"cache-control": "no-store"}


class Refusal(Exception):
    """One refusal: status, code for programs, message for people."""

    def __init__(
        self, status: int, code: str, message: str, *, headers: Mapping[str, str] | None = None, b4_code: str | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.details = {"code": code} | details
        self.headers = dict(headers or {})
        self.b4_code = b4_code

    def response(self) -> Response:
        kind = "execution_error" if self.status >= 500 and self.status != 503 else "request_error"
        error: dict[str, Any] = {"kind": kind, "message": self.message, "details": self.details}
        if self.b4_code is not None:
            error["code"] = self.b4_code
        return JSONResponse({"error": error}, self.status, headers=NO_STORE | self.headers)


class RawRefusal(Refusal):
    """A refusal in the app's own words: what its policy or authentication sent."""

    def __init__(self, status: int, body: Any, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, "rejected", "rejected", headers=headers)
        self.body = body

    def response(self) -> Response:
        return JSONResponse(self.body, self.status, headers=NO_STORE | self.headers)


def invalid(message: str, **details: Any) -> Refusal:
    return Refusal(400, "invalid_request", message, **details)


def thread_not_found() -> Refusal:
    return Refusal(404, "thread_not_found", "There is no such thread.")


def not_found() -> Refusal:
    return Refusal(404, "not_found", "There is nothing here.")


FILE_STATUS = {"not_found": 404, "outside": 403, "too_large": 413}
"""How a file's refusal is told, by its kind; any other is 422."""
LIFECYCLE = {
    "lost": (404, "workspace_lost"),
    "expired": (410, "workspace_expired"),
    "conflict": (409, "workspace_conflict"),
    "unsupported": (409, "workspace_conflict"),
    "retryable": (503, "workspace_unavailable"),
    "uncertain": (503, "workspace_unavailable"),
}


def refusal_of(error: BaseException) -> Refusal:
    """Return what a client is told of an error; what it does not know about is logged, and told as a fault of ours."""
    match error:
        case Refusal():
            return error
        case ThreadBusy():
            kind = error.fields.get("kind")
            if kind is SlotKind.RESUME:
                return Refusal(409, "resume_in_progress", "The thread is being resumed already.")
            return Refusal(409, "run_in_flight", f"The thread is in use: {error.fields['reason']}.")
        case IdempotencyKeyReused():
            return Refusal(422, "idempotency_key_reused", error.message)
        case ShuttingDown():
            return Refusal(503, "shutting_down", error.message, headers={"retry-after": "1"})
        case WorkspaceMissing():
            return Refusal(404, "workspace_not_found", "The thread has no workspace: it never ran.")
        case WorkspaceUnusable():
            status, code = LIFECYCLE.get(error.lifecycle, (503, "workspace_unavailable"))
            return Refusal(status, code, error.message, b4_code=error.code)
        case InspectionRefused():
            return _inspection(error)
        case FileRefused():
            return Refusal(FILE_STATUS.get(error.kind, 422), f"file_{error.kind}", error.message)
        case SandboxUnavailable():
            return Refusal(503, "workspace_unavailable", error.message, b4_code=error.code)
    registered = error.code if isinstance(error, B4Error) else None
    logger.error("a request failed", exc_info=error, extra={"event": "request.failed"})
    return Refusal(500, "internal_error", "The request could not be carried out; the server's log says why.", b4_code=registered)


def _inspection(error: InspectionRefused) -> Refusal:
    if error.kind == "root_missing":
        fields = {"root": error.fields["root"], "kind": error.fields["absence"]}
        return Refusal(422, "workspace_root_missing", error.message, **fields)
    if error.kind == "changed":
        return Refusal(409, "workspace_changed", error.message)
    if error.kind == "invalid_options":
        return invalid(error.message)
    return Refusal(422, "workspace_inspection_refused", error.message)
