"""What a sandbox may do and use: the portable policy every provider maps to its own mechanism.

Models are frozen and refuse unknown keys at every depth. Units are in the names; a `timedelta` stands for milliseconds, `"512MiB"` or
`"2GiB"` for an amount. A number that is absent means "no limit asked for".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Discriminator, Field, Tag

from b4run.strict import StrictModel

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_ENV_MAX_NAMES = 256
_ENV_MAX_VALUE = 32_768
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}")
_AMOUNT = re.compile(r"([1-9][0-9]{0,8})(MiB|GiB)")


def _milliseconds(value: Any) -> Any:
    """Take a `timedelta` for its milliseconds."""
    if not isinstance(value, timedelta):
        return value
    whole, rest = divmod(value, timedelta(milliseconds=1))
    if rest:
        raise ValueError("a time span must be a whole number of milliseconds")
    return whole


def _mebibytes(value: Any) -> Any:
    """Take `"512MiB"` and `"2GiB"` for their number of MiB."""
    found = _AMOUNT.fullmatch(value) if isinstance(value, str) else None
    return value if found is None else int(found[1]) * (1024 if found[2] == "GiB" else 1)


def _gibibytes(value: Any) -> Any:
    """Take `"512MiB"` and `"2GiB"` for their number of GiB."""
    amount = _mebibytes(value)
    return amount / 1024 if isinstance(value, str) and not isinstance(amount, str) else value


Milliseconds = Annotated[int, BeforeValidator(_milliseconds)]
"""A whole number of milliseconds; a `timedelta` is taken too."""


class Allow(StrictModel):
    """Open egress. No built-in provider enforces `denylist`; preflight says so."""

    mode: Literal["allow"] = "allow"
    denylist: tuple[str, ...] = Field(default=(), strict=False)


class Deny(StrictModel):
    """No egress, but for the CIDRs of `allowlist` where the provider can enforce them."""

    mode: Literal["deny"] = "deny"
    allowlist: tuple[str, ...] = Field(default=(), strict=False)


Network = Annotated[Allow | Deny, Field(discriminator="mode")]


class User(StrictModel):
    """The user and group that commands run as, inside the sandbox."""

    uid: Annotated[int, Field(ge=0, le=2**32 - 2)]
    gid: Annotated[int, Field(ge=0, le=2**32 - 2)]


def _flag_or_user(value: Any) -> str | None:
    if isinstance(value, bool):
        return "flag"
    return "user" if isinstance(value, (User, Mapping)) else None


class Security(StrictModel):
    """Hardening; every relaxation weakens isolation. `run_as_non_root`: True is 1000:1000, False the image's own user."""

    drop_all_capabilities: bool = True
    no_new_privileges: bool = True
    read_only_root_filesystem: bool = True
    run_as_non_root: Annotated[
        Annotated[bool, Tag("flag")] | Annotated[User, Tag("user")],
        Discriminator(_flag_or_user, custom_error_type="flag_or_user", custom_error_message="must be True, False or {uid, gid}"),
    ] = True
    pids_limit: Annotated[int, Field(ge=1, le=4_194_304)] = 512


class Resources(StrictModel):
    """Limits of one sandbox. `timeout_ms` bounds one `runBash` call, rounded up to a whole second."""

    memory_mb: Annotated[int, BeforeValidator(_mebibytes), Field(ge=1)] | None = None
    cpus: Annotated[float, Field(gt=0)] | None = None
    timeout_ms: Annotated[Milliseconds, Field(ge=1)] | None = None
    disk_gb: Annotated[float, BeforeValidator(_gibibytes), Field(gt=0)] | None = None


def check_environment(env: Mapping[str, str]) -> Mapping[str, str]:
    if len(env) > _ENV_MAX_NAMES:
        raise ValueError(f"{len(env)} names; at most {_ENV_MAX_NAMES} are allowed")
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no variable name ({_ENV_NAME.pattern})")
        if "\0" in value or len(value) > _ENV_MAX_VALUE:
            raise ValueError(f"the value of {name} has a NUL or more than {_ENV_MAX_VALUE} characters")
    return env


def is_image_reference(text: str) -> bool:
    """Whether `text` may name an image: 1 to 512 characters, as the specification's `formats.md` has them."""
    return _IMAGE.fullmatch(text) is not None


class SandboxPolicy(StrictModel):
    """Everything that `acquire` needs to know about one thread's sandbox. `env`: at most 256 names of 256, values of 32,768 characters."""

    network: Network = Field(default_factory=Allow)
    env: Annotated[Mapping[str, str], AfterValidator(check_environment)] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    security: Security = Field(default_factory=Security)

    def difference(self, other: SandboxPolicy) -> tuple[str, ...]:
        """Return the keys that a running sandbox would have to change to keep `other`; `timeout_ms` belongs to the handle."""
        ours, theirs = (
            policy.model_copy(update={"resources": policy.resources.model_copy(update={"timeout_ms": None})}) for policy in (self, other)
        )
        return tuple(name for name in SandboxPolicy.model_fields if getattr(ours, name) != getattr(theirs, name))
