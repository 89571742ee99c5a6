"""The OpenAPI document: every endpoint with what it takes and every status that it answers with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from b4run.server.answers import MAX_EXPIRY_MS
from b4run.server.reading import MAX_LISTED
from b4run.server.runs import MAX_TIMEOUT_MS
from b4run.storage.runs import RunStatus
from b4run.storage.threads import ThreadStatus
from b4run.threads.runs import OnBusy
from b4run.workspace.inspection import LARGEST_ENTRIES, LARGEST_FILE_BYTES, LARGEST_TOTAL_BYTES

Schema = dict[str, Any]

_OBJECT: Schema = {"type": "object"}
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}
_TIME: Schema = {"type": "string", "format": "date-time"}
_BINARY: Schema = {"type": "string", "format": "binary"}
_DIGEST: Schema = {"type": "string", "pattern": "^[0-9a-f]{64}$"}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(properties: Mapping[str, Schema], required: Sequence[str] = (), *, closed: bool = False) -> Schema:
    found: Schema = {"type": "object", "properties": dict(properties)}
    if required:
        found["required"] = list(required)
    return found | ({"additionalProperties": False} if closed else {})


def _list(of: Schema, most: int | None = None) -> Schema:
    return {"type": "array", "items": of} | ({} if most is None else {"maxItems": most})


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


SCHEMAS: dict[str, Schema] = {
    "Error": _object(
        {
            "error": _object(
                {
                    "kind": {"enum": ["request_error", "execution_error"]},
                    "message": _TEXT,
                    "details": _object({"code": _TEXT}, ["code"]),
                    "code": {"type": "string", "pattern": "^B4_E[0-9]{4}$"},
                },
                ["kind", "message", "details"],
            )
        },
        ["error"],
    ),
    "Thread": _object(
        {
            "thread_id": _TEXT,
            "created_at": _TIME,
            "updated_at": _TIME,
            "metadata": _OBJECT,
            "status": {"enum": [*ThreadStatus]},
            "reason": _TEXT,
            "route": _TEXT,
        },
        ["thread_id", "created_at", "updated_at", "metadata", "status"],
        closed=True,
    ),
    "WorkspaceReference": _object(
        {
            "sourceDigest": _DIGEST,
            "environmentLinks": _list(_object({"path": _TEXT, "target": _TEXT}, ["path", "target"], closed=True), 1_024),
            "baseline": {"enum": ["git"]},
        },
        ["sourceDigest"],
        closed=True,
    ),
    "RunRequest": _object(
        {
            "route": {"type": "string", "description": "`<id>#<kind>`, such as `/fix#agent`"},
            "input": {"description": "a text, messages, or any JSON; `{}` by default"},
            "timeout_ms": _or_null({"type": "integer", "minimum": 1, "maximum": MAX_TIMEOUT_MS}),
            "multitask_strategy": {"enum": [*OnBusy], "default": "reject"},
        },
        ["route"],
    ),
    "Run": _object(
        {
            "run_id": _TEXT,
            "thread_id": _TEXT,
            "kind": {"enum": ["run", "resume"]},
            "route": _TEXT,
            "status": {"enum": [*RunStatus]},
            "created_at": _TIME,
            "started_at": _or_null(_TIME),
            "ended_at": _or_null(_TIME),
            "output": {},
            "error": _TEXT,
            "code": _TEXT,
            "cancelled": {"type": "boolean"},
            "omitted": {"type": "boolean"},
        },
        ["run_id", "thread_id", "kind", "route", "status", "created_at", "started_at", "ended_at"],
        closed=True,
    ),
    "State": _object(
        {
            "config": _OBJECT,
            "created_at": _TEXT,
            "metadata": _OBJECT,
            "next": _list(_TEXT),
            "parent_config": _or_null(_OBJECT),
            "values": _OBJECT,
        },
        ["config", "created_at", "metadata", "next", "parent_config", "values"],
    ),
    "Interrupt": _object(
        {"interruptId": _TEXT, "resumeKey": _or_null(_TEXT), "value": _OBJECT}, ["interruptId", "resumeKey", "value"], closed=True
    ),
    "ResumeRequest": _object(
        {
            "resume": _list(
                _object(
                    {
                        "interruptId": _TEXT,
                        "status": {"enum": ["resolved", "cancelled"]},
                        "payload": {"enum": ["once", "always", "deny"]},
                        "scope": {"enum": ["thread", "app"]},
                        "pattern": _or_null(_TEXT),
                        "expiresInMs": _or_null({"type": "integer", "minimum": 1, "maximum": MAX_EXPIRY_MS}),
                    },
                    ["interruptId", "status"],
                    closed=True,
                )
            ),
            "route": {"type": "string", "minLength": 1},
        },
        ["resume", "route"],
        closed=True,
    ),
    "Cancelled": _object({"thread_id": _TEXT, "status": {"enum": ["interrupted"]}}, ["thread_id", "status"], closed=True),
    "Permission": _object(
        {
            "id": _COUNT,
            "key": _TEXT,
            "pattern": _TEXT,
            "exact": {"type": "boolean"},
            "scope": {"enum": ["thread", "app"]},
            "grantedBy": _TEXT,
            "grantedAt": _or_null(_TEXT),
            "expiresAt": _or_null(_TEXT),
        },
        ["id", "key", "pattern", "exact", "scope", "grantedBy", "grantedAt", "expiresAt"],
        closed=True,
    ),
    "InspectRequest": _object(
        {
            "root": {"type": "string", "minLength": 1, "maxLength": 1_024},
            "excludeRootDirectories": _list({"type": "string", "minLength": 1, "maxLength": 1_024}, MAX_LISTED),
            "ignorePrefixes": _list({"type": "string", "minLength": 1, "maxLength": 1_024}, MAX_LISTED),
            "expectedRootSymlinks": _object({}) | {"additionalProperties": {"type": "string", "minLength": 1, "maxLength": 4_096}},
            "maxEntries": {"type": "integer", "minimum": 0, "maximum": LARGEST_ENTRIES},
            "maxFileBytes": {"type": "integer", "minimum": 0, "maximum": LARGEST_FILE_BYTES},
            "maxTotalBytes": {"type": "integer", "minimum": 0, "maximum": LARGEST_TOTAL_BYTES},
        },
        closed=True,
    ),
    "InspectAnswer": _object(
        {
            "threadId": _TEXT,
            "sourceDigest": _DIGEST,
            "intentDigest": _DIGEST,
            "root": _TEXT,
            "inspection": _object(
                {
                    "files": _object({}) | {"additionalProperties": _TEXT},
                    "symlinks": _object({}) | {"additionalProperties": _TEXT},
                    "totalBytes": _COUNT,
                    "entries": _COUNT,
                },
                ["files", "symlinks", "totalBytes", "entries"],
                closed=True,
            ),
        },
        ["threadId", "sourceDigest", "intentDigest", "inspection"],
        closed=True,
    ),
    "Entry": _object(
        {"path": _TEXT, "kind": _TEXT, "mode": _TEXT, "size": _COUNT, "sha256": _DIGEST, "target": _TEXT},
        ["path", "kind", "mode"],
        closed=True,
    ),
    "Bundle": _object(
        {
            "version": {"enum": [1]},
            "digest": _DIGEST,
            "files": _list(
                _object({"path": _TEXT, "base64": _TEXT, "executable": {"type": "boolean"}}, ["path", "base64", "executable"], closed=True)
            ),
        },
        ["version", "digest", "files"],
        closed=True,
    ),
    "Upload": _object({"digest": _DIGEST, "status": {"enum": ["created", "held"]}}, ["digest", "status"], closed=True),
}


@dataclass(frozen=True, slots=True)
class Documented:
    """One endpoint. `refusals` are the statuses that it may answer with, beside those of all endpoints."""

    summary: str
    success: Mapping[int, tuple[str, Schema] | None]
    refusals: tuple[int, ...] = ()
    body: Schema | None = None
    body_required: bool = True
    other_bodies: tuple[str, ...] = ()
    """Content types that are taken beside JSON."""
    parameters: tuple[Schema, ...] = field(default=())


_JSON = "application/json"
_ALWAYS = (400, 401, 403, 404, 500, 503)
"""Bad input, who calls, what they may, what is there, a fault of ours, a shutdown."""
_READ_REFUSALS = (409, 410, 413, 422, 504)


def _json(schema: Schema) -> tuple[str, Schema]:
    return (_JSON, schema)


def _query(name: str, schema: Schema) -> Schema:
    return {"name": name, "in": "query", "required": False, "schema": schema}


def _header(name: str, description: str) -> Schema:
    return {"name": name, "in": "header", "required": False, "schema": _TEXT, "description": description}


_KEY = _header("Idempotency-Key", "a repeated request with the same key is the same run")
_EVENTS = ("text/event-stream", _TEXT)

DOCUMENTED: dict[tuple[str, str], Documented] = {
    ("GET", "/healthz"): Documented("Whether the process is alive", {200: _json(_OBJECT)}),
    ("GET", "/readyz"): Documented("Whether every store answers", {200: _json(_OBJECT)}),
    ("POST", "/threads"): Documented(
        "Create a thread",
        {200: _json(_ref("Thread"))},
        (408, 409, 413, 422, 429),
        _object({"metadata": _or_null(_OBJECT), "workspace": _or_null(_ref("WorkspaceReference"))}),
        body_required=False,
    ),
    ("GET", "/threads"): Documented(
        "List threads that the caller may read, the one that changed last first",
        {200: _json(_object({"threads": _list(_ref("Thread")), "next": _or_null(_TEXT)}, ["threads", "next"], closed=True))},
        parameters=(
            _query("limit", {"type": "integer", "minimum": 1, "maximum": 1_000}),
            _query("after", _TEXT),
            _query("status", {"enum": [*ThreadStatus]}),
        ),
    ),
    ("GET", "/threads/{thread_id}"): Documented("Read a thread", {200: _json(_ref("Thread"))}),
    ("PATCH", "/threads/{thread_id}"): Documented(
        "Change a thread's metadata, key by key; null removes one",
        {200: _json(_ref("Thread"))},
        (408, 413),
        _object({"metadata": _or_null(_OBJECT)}, closed=True),
    ),
    ("DELETE", "/threads/{thread_id}"): Documented("Delete a thread with all that is its own", {204: None}, (409,)),
    ("GET", "/threads/{thread_id}/state"): Documented("The newest state of the conversation", {200: _json(_ref("State"))}),
    ("GET", "/threads/{thread_id}/pending_interrupts"): Documented(
        "Prompts that wait for a person",
        {200: _json(_object({"interrupts": _list(_ref("Interrupt"))}, ["interrupts"], closed=True))},
        (409,),
    ),
    ("POST", "/threads/{thread_id}/runs/wait"): Documented(
        "Run one turn and answer with the conversation's state",
        {200: _json({}), 202: _json(_ref("Run"))},
        (408, 409, 413, 422, 504),
        _ref("RunRequest"),
        parameters=(_KEY, _header("Prefer", "`wait=N`: after N seconds answer 202, and go on")),
    ),
    ("POST", "/threads/{thread_id}/runs/stream"): Documented(
        "Run one turn and tell it as it goes on", {200: _EVENTS}, (408, 409, 413, 422), _ref("RunRequest"), parameters=(_KEY,)
    ),
    ("GET", "/threads/{thread_id}/runs/stream"): Documented(
        "Follow what runs now: its state, then live events",
        {200: _EVENTS},
        (409,),
        parameters=(_header("Last-Event-ID", "go on behind this event, without the state"),),
    ),
    ("GET", "/threads/{thread_id}/runs"): Documented(
        "The thread's runs, the newest first",
        {200: _json(_object({"runs": _list(_ref("Run"))}, ["runs"], closed=True))},
        parameters=(_query("limit", {"type": "integer", "minimum": 1, "maximum": 1_000}), _query("before", _TEXT)),
    ),
    ("GET", "/threads/{thread_id}/runs/{run_id}"): Documented("One run", {200: _json(_ref("Run"))}),
    ("POST", "/threads/{thread_id}/runs/{run_id}/cancel"): Documented(
        "End one run, also one that waits for its turn", {200: _json(_ref("Cancelled"))}, (409,)
    ),
    ("POST", "/threads/{thread_id}/resume"): Documented(
        "Answer every prompt that waits, and go on", {200: _EVENTS}, (408, 409, 413, 422), _ref("ResumeRequest"), parameters=(_KEY,)
    ),
    ("POST", "/threads/{thread_id}/cancel"): Documented("End what has the thread now", {200: _json(_ref("Cancelled"))}, (409,)),
    ("GET", "/threads/{thread_id}/permissions"): Documented(
        "What was allowed for good on the thread",
        {200: _json(_object({"permissions": _list(_ref("Permission"))}, ["permissions"], closed=True))},
    ),
    ("DELETE", "/threads/{thread_id}/permissions/{grant_id}"): Documented("Take a permission of the thread back", {204: None}),
    ("POST", "/threads/{thread_id}/workspace/inspect"): Documented(
        "The text of the thread's files",
        {200: _json(_ref("InspectAnswer"))},
        (408, *_READ_REFUSALS),
        _ref("InspectRequest"),
        body_required=False,
    ),
    ("GET", "/threads/{thread_id}/workspace/entries"): Documented(
        "Every file with its kind, mode, size and digest",
        {
            200: _json(
                _object(
                    {"threadId": _TEXT, "sourceDigest": _DIGEST, "entries": _list(_ref("Entry"))},
                    ["threadId", "sourceDigest", "entries"],
                    closed=True,
                )
            )
        },
        _READ_REFUSALS,
    ),
    ("GET", "/threads/{thread_id}/workspace/diff"): Documented(
        "What became of the source that the thread started from",
        {
            200: _json(
                _object(
                    {
                        "threadId": _TEXT,
                        "sourceDigest": _DIGEST,
                        "added": _list(_TEXT),
                        "changed": _list(_TEXT),
                        "removed": _list(_TEXT),
                    },
                    ["threadId", "sourceDigest", "added", "changed", "removed"],
                    closed=True,
                )
            )
        },
        _READ_REFUSALS,
    ),
    ("GET", "/threads/{thread_id}/workspace/archive"): Documented(
        "The whole workspace as a tar", {200: ("application/x-tar", _BINARY)}, _READ_REFUSALS
    ),
    ("GET", "/threads/{thread_id}/workspace/files/{path}"): Documented(
        "One file's bytes; its digest is the ETag",
        {200: ("application/octet-stream", _BINARY), 304: None},
        _READ_REFUSALS,
    ),
    ("GET", "/workspace/sources"): Documented(
        "The caller's uploads",
        {
            200: _json(
                _object(
                    {
                        "sources": _list(
                            _object(
                                {"digest": _DIGEST, "files": _COUNT, "bytes": _COUNT, "uploaded_at": _TIME},
                                ["digest", "files", "bytes", "uploaded_at"],
                                closed=True,
                            )
                        )
                    },
                    ["sources"],
                    closed=True,
                )
            )
        },
        (422,),
    ),
    ("PUT", "/workspace/sources/{digest}"): Documented(
        "Upload a source: a bundle, or a tar of its files",
        {200: _json(_ref("Upload")), 201: _json(_ref("Upload"))},
        (408, 413, 422, 429, 507),
        _ref("Bundle"),
        other_bodies=("application/x-tar", "application/gzip"),
    ),
    ("GET", "/workspace/sources/{digest}"): Documented("An upload's canonical JSON", {200: _json(_ref("Bundle"))}),
    ("DELETE", "/workspace/sources/{digest}"): Documented("Take one's own upload back", {204: None}, (422,)),
    ("GET", "/metrics"): Documented(
        "The process's figures, as Prometheus reads them, with the extra `metrics`",
        {200: ("text/plain", _TEXT)},
    ),
    ("GET", "/openapi.json"): Documented("This document", {200: _json(_OBJECT)}),
}


def document() -> dict[str, Any]:
    """Return the OpenAPI document."""
    paths: dict[str, dict[str, Any]] = {}
    for (method, path), endpoint in DOCUMENTED.items():
        paths.setdefault(path, {})[method.lower()] = _operation(method, path, endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "b4run", "version": "1", "description": "Threads, runs and workspaces, as the Agent Protocol has them."},
        "paths": paths,
        "components": {"schemas": SCHEMAS},
    }


def _operation(method: str, path: str, endpoint: Documented) -> dict[str, Any]:
    names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
    parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}} for name in names]
    operation: dict[str, Any] = {"summary": endpoint.summary, "parameters": [*parameters, *endpoint.parameters], "responses": {}}
    if endpoint.body is not None:
        content = {_JSON: {"schema": endpoint.body}} | {kind: {"schema": _BINARY} for kind in endpoint.other_bodies}
        operation["requestBody"] = {"required": endpoint.body_required, "content": content}
    for status, told in endpoint.success.items():
        answer: dict[str, Any] = {"description": "done"}
        if told is not None:
            answer["content"] = {told[0]: {"schema": told[1]}}
        operation["responses"][str(status)] = answer
    for status in sorted({*_ALWAYS, *endpoint.refusals}):
        refusal = {"description": "refused; `error.details.code` says why", "content": {_JSON: {"schema": _ref("Error")}}}
        operation["responses"].setdefault(str(status), refusal)
    return operation


async def openapi(request: Request) -> Response:
    """Serve the document."""
    return JSONResponse(document())
