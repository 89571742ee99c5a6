"""What a sandbox may do and use: the portable policy every provider maps to its own mechanism.

Models are frozen and refuse unknown keys at every depth. Units are in the names. A number that is absent means "no limit asked for".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_ENV_MAX_NAMES = 256
_ENV_MAX_VALUE = 32_768


class _Policy(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)


class Allow(_Policy):
    """Open egress. No built-in provider enforces `denylist`; preflight says so."""

    mode: Literal["allow"] = "allow"
    denylist: tuple[str, ...] = Field(default=(), strict=False)


class Deny(_Policy):
    """No egress, but for the CIDRs of `allowlist` where the provider can enforce them."""

    mode: Literal["deny"] = "deny"
    allowlist: tuple[str, ...] = Field(default=(), strict=False)


Network = Annotated[Allow | Deny, Field(discriminator="mode")]


class User(_Policy):
    """The user and group that commands run as, inside the sandbox."""

    uid: Annotated[int, Field(ge=0, le=2**32 - 2)]
    gid: Annotated[int, Field(ge=0, le=2**32 - 2)]


class Security(_Policy):
    """Hardening; every relaxation weakens isolation. `run_as_non_root`: True is 1000:1000, False the image's own user."""

    drop_all_capabilities: bool = True
    no_new_privileges: bool = True
    read_only_root_filesystem: bool = True
    run_as_non_root: bool | User = True
    pids_limit: Annotated[int, Field(ge=1, le=4_194_304)] = 512


class Resources(_Policy):
    """Limits of one sandbox. `timeout_ms` bounds one `runBash` call, rounded up to a whole second."""

    memory_mb: Annotated[int, Field(ge=1)] | None = None
    cpus: Annotated[float, Field(gt=0, strict=False)] | None = None
    timeout_ms: Annotated[int, Field(ge=1)] | None = None
    disk_gb: Annotated[float, Field(gt=0, strict=False)] | None = None


def _check_env(env: Mapping[str, str]) -> Mapping[str, str]:
    if len(env) > _ENV_MAX_NAMES:
        raise ValueError(f"{len(env)} names; at most {_ENV_MAX_NAMES} are allowed")
    for name, value in env.items():
        if not _ENV_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no variable name ({_ENV_NAME.pattern})")
        if "\0" in value or len(value) > _ENV_MAX_VALUE:
            raise ValueError(f"the value of {name} has a NUL or more than {_ENV_MAX_VALUE} characters")
    return env


class SandboxPolicy(_Policy):
    """Everything `acquire` needs to know about one thread's sandbox. Bounds: `spec/formats.md`, "Thread sandbox record"."""

    network: Network = Field(default_factory=Allow)
    env: Annotated[Mapping[str, str], AfterValidator(_check_env)] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    security: Security = Field(default_factory=Security)
