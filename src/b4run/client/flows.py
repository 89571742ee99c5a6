"""What both clients do, without doing it: each flow is a generator that asks for requests and pauses, and is given answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import quote

from b4run.errors import B4Error
from b4run.workspace import SourceBundle, StagedReference
from b4run.workspace.bundle import is_digest, json_size
from b4run.workspace.captured import shape_dict

MAX_RESPONSE_BYTES = 67_108_864
RETRIES = 5
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.25, 5.0
_RETRIED = ("upload_in_flight", "workspace_create_in_flight")
_LONGEST_NAME = 4_096

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Hears how many bytes have been sent, and of how many."""


class ClientError(B4Error):
    """The server did not do it: {reason}"""

    code = "B4_E5012"
    hint = "`status`, `reason_code` and `details` of the error say it to a program."

    @property
    def status(self) -> int:
        """The answer's status; 0 when the client itself refuses it."""
        return int(self.fields["status"])

    @property
    def reason_code(self) -> str:
        """The server's `error.details.code`, or `malformed_response`, `response_too_large`, `thread_mismatch`,
        `source_mismatch`, `redirected`, `unreachable`."""
        return str(self.fields["reason_code"])

    @property
    def details(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.fields.get("details", {})
        return found


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. `body` is JSON, or pieces of bytes that can be given out again."""

    method: str
    path: str
    json: Any = None
    content: Callable[[], Iterator[bytes]] | None = None
    size: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    limit: int = MAX_RESPONSE_BYTES


@dataclass(frozen=True, slots=True)
class Pause:
    seconds: float


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


Flow = Generator[Ask | Pause, Any, T]


@dataclass(frozen=True, slots=True)
class ThreadWorkspace:
    """A thread's workspace as it was read. `files` are texts by path."""

    thread_id: str
    source_digest: str
    intent_digest: str
    root: str | None
    files: Mapping[str, str]
    symlinks: Mapping[str, str]
    total_bytes: int
    entries: int


@dataclass(frozen=True, slots=True)
class StreamEvent:
    """One event of a run. `id` resumes the stream behind it."""

    event: str
    data: Any
    id: str | None = None


def thread_path(thread_id: str, *rest: str) -> str:
    """Return the path of a thread, or of something of it."""
    return "/".join(["/threads", quote(thread_id, safe=""), *rest])


def call(ask: Ask) -> Flow[Any]:
    """Send one request and return the JSON of its answer; None without one. Raises: ClientError."""
    pause = FIRST_PAUSE_S
    for attempt in range(RETRIES + 1):
        answer: Answer = yield ask
        if answer.status == 429 and attempt < RETRIES and _code(answer) in _RETRIED:
            yield Pause(min(max(pause, _retry_after(answer)), LONGEST_PAUSE_S))
            pause *= 2
            continue
        break
    if not 200 <= answer.status < 300:
        raise refused(answer)
    return _json(answer) if answer.body else None


def upload_source(bundle: SourceBundle) -> Flow[str]:
    size = json_size(bundle.manifest)
    ask = Ask("PUT", f"/workspace/sources/{bundle.digest}", content=bundle.json_pieces, size=size)
    found = yield from call(ask)
    if not isinstance(found, dict) or found.get("digest") != bundle.digest or found.get("status") not in ("created", "held"):
        raise _local("source_mismatch", "the server says that it keeps something else")
    return str(found["status"])


def create_thread(metadata: Mapping[str, Any] | None, workspace: StagedReference | None) -> Flow[dict[str, Any]]:
    body: dict[str, Any] = {} if metadata is None else {"metadata": dict(metadata)}
    if workspace is not None:
        body["workspace"] = {"sourceDigest": workspace.source_digest} | shape_dict(workspace.environment_links, workspace.baseline)
    found = yield from call(Ask("POST", "/threads", json=body))
    if not isinstance(found, dict) or not isinstance(found.get("thread_id"), str):
        raise _local("malformed_response", "the answer is no thread")
    return found


def read_thread_workspace(
    thread_id: str, request: Mapping[str, Any], expected_source_digest: str | None, max_response_bytes: int
) -> Flow[ThreadWorkspace]:
    ask = Ask("POST", thread_path(thread_id, "workspace", "inspect"), json=dict(request), limit=max_response_bytes)
    found = _checked(thread_id, (yield from call(ask)))
    if expected_source_digest is not None and found.source_digest != expected_source_digest:
        raise _local("source_mismatch", f"the thread was made from {found.source_digest}, not from {expected_source_digest}")
    return found


def run_body(route: str, input: Any, timeout_ms: int | None, multitask_strategy: str | None) -> dict[str, Any]:
    """Return the body that begins a run."""
    body: dict[str, Any] = {"route": route, "input": input}
    if timeout_ms is not None:
        body["timeout_ms"] = timeout_ms
    return body if multitask_strategy is None else body | {"multitask_strategy": multitask_strategy}


def resume_body(route: str, answers: Mapping[str, str]) -> dict[str, Any]:
    """Return the body that answers prompts: `once`, `always`, `deny` or `cancelled` by interrupt id."""
    entries: list[dict[str, str]] = []
    for interrupt, answer in answers.items():
        if answer == "cancelled":
            entries.append({"interruptId": interrupt, "status": "cancelled"})
        else:
            entries.append({"interruptId": interrupt, "status": "resolved", "payload": answer})
    return {"route": route, "resume": entries}


class EventParser:
    """Turns the lines of an event stream into events."""

    def __init__(self) -> None:
        self._fields: dict[str, str] = {}

    def line(self, line: str) -> StreamEvent | None:
        """Take one line without its end; return the event that an empty one completes."""
        if not line:
            fields, self._fields = self._fields, {}
            if "data" not in fields:
                return None
            try:
                return StreamEvent(fields.get("event", "message"), json.loads(fields["data"]), fields.get("id"))
            except ValueError:
                raise _local("malformed_response", "an event is not JSON") from None
        if not line.startswith(":"):
            name, _, value = line.partition(":")
            self._fields[name] = value.removeprefix(" ")
        return None


def refused(answer: Answer) -> ClientError:
    """Return what an answer that is not a success means."""
    error = _error(answer)
    message = error.get("message")
    details = error.get("details")
    return ClientError(
        status=answer.status,
        reason_code=_code(answer),
        reason=f"{answer.status} {_code(answer)}: {message}" if isinstance(message, str) else f"status {answer.status}",
        details=details if isinstance(details, dict) else {},
    )


def too_large(limit: int) -> ClientError:
    return _local("response_too_large", f"the answer has more than {limit:,} bytes")


def redirected(status: int) -> ClientError:
    return ClientError(status=status, reason_code="redirected", reason=f"status {status}: redirects are not followed")


def unreachable(error: Exception) -> ClientError:
    """Return what a failure of the connection means: whether the server did anything is not known."""
    return _local("unreachable", f"the connection failed ({type(error).__name__}: {str(error)[:200]})")


def _local(code: str, reason: str) -> ClientError:
    return ClientError(status=0, reason_code=code, reason=reason)


def _json(answer: Answer) -> Any:
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        raise _local("malformed_response", "the answer is not JSON") from None


def _error(answer: Answer) -> Mapping[str, Any]:
    try:
        found = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    error = found.get("error") if isinstance(found, dict) else None
    return error if isinstance(error, dict) else {}


def _code(answer: Answer) -> str:
    details = _error(answer).get("details")
    code = details.get("code") if isinstance(details, dict) else None
    return code if isinstance(code, str) else f"status_{answer.status}"


def _retry_after(answer: Answer) -> float:
    text = answer.headers.get("retry-after", "")
    return float(text) if text.isascii() and text.isdigit() and len(text) < 6 else 0.0


def _checked(thread_id: str, value: Any) -> ThreadWorkspace:
    """Check an answer key by key: whoever joins its paths to a folder must not be led out of it."""
    body = _exact(value, ("threadId", "sourceDigest", "intentDigest", "inspection"), ("root",))
    found = _exact(body["inspection"], ("files", "symlinks", "totalBytes", "entries"), ())
    if body["threadId"] != thread_id:
        raise _local("thread_mismatch", "the answer is about another thread")
    root = body.get("root")
    good = is_digest(body["sourceDigest"]) and is_digest(body["intentDigest"]) and (root is None or isinstance(root, str))
    good = good and all(type(found[key]) is int and found[key] >= 0 for key in ("totalBytes", "entries"))
    for key in ("files", "symlinks"):
        good = good and isinstance(found[key], dict) and all(_is_path(p) and isinstance(text, str) for p, text in found[key].items())
    if not good:
        raise _local("malformed_response", "the answer has something else than a workspace's files")
    return ThreadWorkspace(
        thread_id,
        body["sourceDigest"],
        body["intentDigest"],
        root,
        found["files"],
        found["symlinks"],
        found["totalBytes"],
        found["entries"],
    )


def _exact(value: Any, required: Sequence[str], optional: Sequence[str]) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not set(required) <= set(value) <= {*required, *optional}:
        raise _local("malformed_response", "the answer has other keys than a workspace's")
    return value


def _is_path(path: str) -> bool:
    if not 1 <= len(path) <= _LONGEST_NAME or "\\" in path or "\0" in path:
        return False
    return all(part not in ("", ".", "..") for part in path.split("/"))
