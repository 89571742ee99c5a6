"""The thread-access policy: one decision a request, made before anything is read or changed.

Format and defaults are those of the specification's `http.md`, section "Thread access".
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from b4run.access.authentication import Principal


class Action(StrEnum):
    CREATE = "create"
    READ = "read"
    UPDATE = "update"
    DELETE = "delete"


class Operation(StrEnum):
    """What exactly is asked for; each belongs to one action."""

    THREAD_CREATE = "thread.create"
    THREAD_LIST = "thread.list"
    THREAD_GET = "thread.get"
    THREAD_UPDATE = "thread.update"
    THREAD_STATE = "thread.state"
    THREAD_DELETE = "thread.delete"
    THREAD_CANCEL = "thread.cancel"
    THREAD_PENDING_INTERRUPTS = "thread.pending_interrupts"
    THREAD_ATTACH = "thread.attach"
    THREAD_RUNS = "thread.runs"
    THREAD_WORKSPACE = "thread.workspace"
    THREAD_PERMISSIONS = "thread.permissions"
    THREAD_REVOKE = "thread.revoke"
    RUN_STREAM = "run.stream"
    RUN_WAIT = "run.wait"
    RUN_RESUME = "run.resume"
    SOURCE_PUT = "workspace.source.put"
    SOURCE_GET = "workspace.source.get"
    SOURCE_LIST = "workspace.source.list"
    SOURCE_DELETE = "workspace.source.delete"
    PERMISSION_GRANT = "permission.grant"
    """An answer `always` that is to hold for every thread."""


@dataclass(frozen=True, slots=True)
class ThreadView:
    """A thread as a policy sees it. `metadata` is the client's word; `access` is the stamp of whoever allowed its creation."""

    thread_id: str
    created_at: str
    updated_at: str
    status: str
    metadata: Mapping[str, Any]
    access: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """What is to be decided. `thread` is None when there is no such thread: deny that as you would somebody else's."""

    action: Action
    operation: Operation
    method: str
    url: str
    thread_id: str | None = None
    thread: ThreadView | None = None
    principal: Principal | None = None
    requested_metadata: Mapping[str, Any] | None = None
    """Of a create: what the client sent."""
    requested_workspace: Mapping[str, Any] | None = None
    """Of an upload, `{sourceDigest}`; of a create that names one, the whole reference and `uploadedBy`, the stamps of who uploaded it."""
    resuming: bool = False


@dataclass(frozen=True, slots=True)
class Allowed:
    """`stamp`, of a create, is kept with the thread or the upload and given to later decisions as `access`."""

    stamp: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Denied:
    """`status` may be 403 or 404; by default 404 for a read, like a thread that is not there, and 403 otherwise."""

    status: int | None = None
    body: Any = None


AccessAnswer = Allowed | Denied
Decide = Callable[[AccessRequest], AccessAnswer | Awaitable[AccessAnswer]]


def allow(stamp: Mapping[str, Any] | None = None) -> Allowed:
    """Let the request through."""
    return Allowed(stamp)


def deny(status: int | None = None, body: Any = None) -> Denied:
    """Turn the request away."""
    return Denied(status, body)


@dataclass(frozen=True, slots=True)
class ThreadAccess:
    """A policy: a function for each action that is decided on its own, and one for all others."""

    fallback: Decide
    create: Decide | None = None
    read: Decide | None = None
    update: Decide | None = None
    delete: Decide | None = None

    def __post_init__(self) -> None:
        if not callable(self.fallback):
            raise TypeError("`fallback` must be a function of the request")
        for action in Action:
            decide = getattr(self, action.value)
            if decide is not None and not callable(decide):
                raise TypeError(f"`{action.value}` must be a function of the request, or left out")

    def of(self, action: Action) -> Decide:
        """Return who decides about an action."""
        decide: Decide | None = getattr(self, action.value)
        return self.fallback if decide is None else decide
