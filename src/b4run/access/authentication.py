"""Telling who calls. An app's `auth.py` binds an `async def authenticate(request)`; without it everybody is anonymous."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

_NONE: Mapping[str, Any] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """What `authenticate` is told. Names of headers are in lower case; `url` is path and query."""

    headers: Mapping[str, str]
    method: str
    url: str


@dataclass(frozen=True, slots=True)
class Principal:
    """Who calls. `id` is what ownership is decided by; `claims` is whatever else the app knows."""

    id: str
    claims: Mapping[str, Any] = field(default_factory=lambda: _NONE)


@dataclass(frozen=True, slots=True)
class Rejected:
    """An answer of `authenticate`: the request goes no further."""

    status: int = 401
    body: Any = None
    """JSON that is sent as it is; None: the server's own words."""
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE)


Authenticator = Callable[[AuthRequest], Awaitable[Principal | Rejected | None]]
"""None is an anonymous caller, whom the thread-access policy may still turn away."""
