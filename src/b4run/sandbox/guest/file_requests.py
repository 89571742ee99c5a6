"""Requests about files, and the guest's refusals as errors."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from b4run.errors import FileRefused
from b4run.sandbox.guest.calls import NOTHING, Inflow, Patience, Plan
from b4run.sandbox.guest.client import GuestClient, RequestTooLarge
from b4run.sandbox.guest.feeding import Source
from b4run.sandbox.guest.messages import GuestRefusal, Message

T = TypeVar("T")

_LONGEST_PATH: Final = 4_096
_REASONS: Final = {
    "bad_range": "The lines asked for are beyond the end of the file",
    "busy": "The sandbox has too many requests open",
    "cancelled": "The operation was cancelled",
    "changed": "The file was changed in the meantime",
    "cross_device": "Source and target are on different file systems",
    "denied": "The file's permissions do not allow it",
    "exists": "There is something at this path already",
    "invalid": "The path cannot be used",
    "is_directory": "This is a folder, not a file",
    "loop": "The path has too many symbolic links",
    "no_space": "There is no space left for it",
    "not_directory": "This is not a folder",
    "not_empty": "The folder is not empty",
    "not_found": "There is no such file or folder",
    "not_regular": "This is not a regular file",
    "outside": "The path leads out of the workspace",
    "read_only": "The file system is read-only",
    "short": "The content did not arrive whole",
    "too_large": "It is larger than the limit",
    "too_many": "There are more files than the limit",
}


class FileRequests:
    """Asks the guest of one client about files."""

    def __init__(self, client: GuestClient) -> None:
        self._client = client

    def _check(self) -> None:
        """Raise when nothing may be asked any more."""

    async def _ask(
        self,
        op: str,
        path: str,
        fields: dict[str, Any],
        parse: Callable[[Message], T],
        *,
        inflow: Inflow = NOTHING,
        on_event: Callable[[Message, int], None] | None = None,
        source: Source | None = None,
    ) -> T:
        self._check()
        plan = self._plan(op, path, fields, parse, inflow, on_event)
        return await self._answer(self._client.request(plan, source), path)

    def _plan(
        self,
        op: str,
        path: str,
        fields: dict[str, Any],
        parse: Callable[[Message], T],
        inflow: Inflow,
        on_event: Callable[[Message, int], None] | None = None,
    ) -> Plan[T]:
        patience = Patience(quiet_s=self._client.timing.quiet)
        return Plan(op, {"op": op, "path": octets(path)} | fields, parse, inflow, on_event, patience)

    async def _answer(self, asking: Awaitable[T], path: str) -> T:
        try:
            return await asking
        except GuestRefusal as refusal:
            raise _refused(refusal, path) from None
        except RequestTooLarge:
            raise FileRefused(kind="invalid", path=path, reason="The request is over 1 MiB") from None


def _refused(refusal: GuestRefusal, path: str) -> FileRefused:
    reason = _REASONS.get(refusal.code)
    kind = refusal.code if reason is not None else "io"
    if reason is None:
        reason = f"The file system says: {os.strerror(refusal.errno)}" if refusal.errno else "The guest could not do it"
    fields = refusal.fields
    extra: dict[str, Any] = {key: fields[key] for key in ("size", "total") if type(fields.get(key)) is int}
    if type(fields.get("real")) is bytes:
        extra["real"] = fields["real"].decode(errors="surrogateescape")
    if type(fields.get("path")) is bytes:
        # Of all that the request is about, this one.
        path = os.path.normpath(os.path.join(path, fields["path"].decode(errors="surrogateescape")))
    return FileRefused(kind=kind, path=path, reason=reason, errno=refusal.errno, **extra)


def octets(path: str) -> bytes:
    try:
        octets = path.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise FileRefused(kind="invalid", path=path, reason="The path cannot be encoded") from None
    if not 1 <= len(octets) <= _LONGEST_PATH:
        raise FileRefused(kind="invalid", path=path[:256], reason=f"A path has 1 to {_LONGEST_PATH} bytes")
    if 0 in octets:
        raise FileRefused(kind="invalid", path=path, reason="A path contains no NUL")
    return octets


def beyond_field(beyond: bool) -> dict[str, Any]:
    return {"beyond": True} if beyond else {}


def check_range(name: str, value: int, low: int, high: int = (1 << 63) - 1) -> int:
    if not low <= value <= high:
        raise ValueError(f"{name} is {low} to {high}, not {value}")
    return value
