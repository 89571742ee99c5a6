"""Loads an app's `thread_access.py` and `auth.py`; a file that is there and cannot be used refuses the app."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from pathlib import Path

from b4run.access import Authenticator, ThreadAccess
from b4run.config.rules import ACCESS_FILE
from b4run.config.source import load_source
from b4run.errors import AccessPolicyInvalid, AppFileBroken, AuthInvalid

AUTH_FILE = "auth.py"


@dataclass(frozen=True, slots=True)
class AppAccess:
    """What decides who may do what; None where the app does not say."""

    policy: ThreadAccess | None
    authenticate: Authenticator | None


def load_access(root: Path) -> AppAccess:
    """Load both files, as far as they are there.

    Raises:
        AccessPolicyInvalid: `thread_access.py` fails, or binds no policy.
        AuthInvalid: `auth.py` fails, or binds no `async def authenticate`.
    """
    return AppAccess(_policy(root), _authenticate(root))


def _policy(root: Path) -> ThreadAccess | None:
    if not (root / ACCESS_FILE).is_file():
        return None
    try:
        bound = getattr(load_source(root / ACCESS_FILE, root), "policy", None)
    except AppFileBroken as broken:
        raise AccessPolicyInvalid(file=f"{ACCESS_FILE}, line {broken.fields['line']}", reason=broken.fields["reason"]) from broken
    if not isinstance(bound, ThreadAccess):
        found = "binds no `policy`" if bound is None else f"`policy` is of type {type(bound).__name__}, not a ThreadAccess"
        raise AccessPolicyInvalid(file=ACCESS_FILE, reason=found)
    return bound


def _authenticate(root: Path) -> Authenticator | None:
    if not (root / AUTH_FILE).is_file():
        return None
    try:
        bound = getattr(load_source(root / AUTH_FILE, root), "authenticate", None)
    except AppFileBroken as broken:
        raise AuthInvalid(file=f"{AUTH_FILE}, line {broken.fields['line']}", reason=broken.fields["reason"]) from broken
    if not (inspect.iscoroutinefunction(bound) or inspect.iscoroutinefunction(type(bound).__call__)):
        raise AuthInvalid(file=AUTH_FILE, reason="binds no `async def authenticate`")
    return bound
