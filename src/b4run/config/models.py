"""The shape of `b4_config.py`. Units, defaults and bounds stand in the models; rules that need the provider or the app in `rules.py`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, ValidationInfo, field_validator

from b4run.permissions import Key, RuleLists, rule_fault
from b4run.sandbox.policy import Allow, Milliseconds, Network, Resources, SandboxPolicy, Security, check_environment
from b4run.strict import StrictModel
from b4run.workspace import WorkspaceDefinition

MIB = 2**20
GIB = 2**30
DEFAULT_IDLE_TIMEOUT_MS = 600_000

_APP_DIR = re.compile(r"(?!.*(?:^|/)\.{1,2}(?:/|$))[^/\0]+(?:/[^/\0]+)*")
_PROVIDER_METHODS = ("acquire", "release", "destroy", "aclose")

Resolver = Callable[[Any], Awaitable[Any]]


class Staging(StrictModel):
    """Bounds of uploaded workspaces: bytes of one upload, its time, bytes of all that are held (by one uploader, if that is less), time an
    unused one is kept."""

    max_upload_bytes: Annotated[int, Field(ge=1, le=96 * MIB)] = 96 * MIB
    upload_timeout_ms: Annotated[Milliseconds, Field(ge=1_000, le=1_800_000)] = 120_000
    max_staged_bytes: Annotated[int, Field(ge=1, le=16 * GIB)] = GIB
    max_uploader_bytes: Annotated[int, Field(ge=1, le=16 * GIB)] | None = None
    retention_ms: Annotated[Milliseconds, Field(ge=60_000, le=30 * 86_400_000)] = 86_400_000


def _resolver_or_definition(value: Any) -> str | None:
    if callable(value):
        return "resolver"
    return "definition" if isinstance(value, (WorkspaceDefinition, Mapping)) else None


def _flag_or_staging(value: Any) -> str | None:
    if isinstance(value, bool):
        return "flag"
    return "staging" if isinstance(value, (Staging, Mapping)) else None


def _check_resolver(value: Resolver) -> Resolver:
    if not (inspect.iscoroutinefunction(value) or inspect.iscoroutinefunction(type(value).__call__)):
        raise ValueError("must be an `async def` function of the thread")
    return value


AsyncResolver = Annotated[Resolver, AfterValidator(_check_resolver)]


class Sandbox(StrictModel):
    """Where the five tools run.

    `provider` makes the sandboxes. A sandbox without a running command is released after `idle_timeout_ms`. `workspace` (a definition,
    or an async function of the thread) or `thread` (an async function) decide what a thread starts from; they exclude each other.
    """

    provider: Any
    network: Network = Field(default_factory=Allow)
    env: Annotated[Mapping[str, str], AfterValidator(check_environment)] = Field(default_factory=dict)
    resources: Resources = Field(default_factory=Resources)
    security: Security = Field(default_factory=Security)
    idle_timeout_ms: Annotated[Milliseconds, Field(ge=1)] = DEFAULT_IDLE_TIMEOUT_MS
    workspace: (
        Annotated[
            Annotated[AsyncResolver, Tag("resolver")] | Annotated[WorkspaceDefinition, Tag("definition")],
            Discriminator(
                _resolver_or_definition,
                custom_error_type="resolver_or_definition",
                custom_error_message="must be a workspace definition or an `async def` function of the thread",
            ),
        ]
        | None
    ) = None
    thread: AsyncResolver | None = None
    workspace_read: Literal["http"] | None = None
    workspace_read_timeout_ms: Annotated[Milliseconds, Field(ge=1_000, le=1_800_000)] = 120_000
    staged_workspaces: (
        Annotated[
            Annotated[bool, Tag("flag")] | Annotated[Staging, Tag("staging")],
            Discriminator(
                _flag_or_staging,
                custom_error_type="flag_or_staging",
                custom_error_message="must be True, False or a block of limits",
            ),
        ]
        | None
    ) = None

    @field_validator("provider")
    @classmethod
    def _check_provider(cls, provider: Any) -> Any:
        fault = provider_fault(provider)
        if fault is not None:
            raise ValueError(fault)
        return provider

    @field_validator("thread")
    @classmethod
    def _check_exclusive(cls, thread: Any, info: ValidationInfo) -> Any:
        if thread is not None and info.data.get("workspace") is not None:
            raise ValueError("cannot stand beside `workspace`: `thread` already decides each thread's workspace; keep one of them")
        return thread

    @property
    def manages_workspaces(self) -> bool:
        """Whether threads start from recorded workspaces."""
        return self.workspace is not None or self.thread is not None

    @property
    def staging(self) -> Staging | None:
        """The bounds of uploaded workspaces; None when there are none."""
        if isinstance(self.staged_workspaces, Staging):
            return self.staged_workspaces
        return Staging() if self.staged_workspaces else None

    @property
    def policy(self) -> SandboxPolicy:
        """What every thread's sandbox may do and use."""
        return SandboxPolicy(network=self.network, env=self.env, resources=self.resources, security=self.security)


def provider_fault(provider: Any) -> str | None:
    """Return why an object cannot be used as a sandbox provider, or None."""
    name = getattr(provider, "name", None)
    if isinstance(provider, type) or inspect.isroutine(provider):
        called = getattr(provider, "__name__", "it")
        return f"is `{called}` itself, not a provider; call it: `{called}(...)`"
    missing = [method for method in _PROVIDER_METHODS if not callable(getattr(provider, method, None))]
    if not isinstance(getattr(provider, "capabilities", None), (set, frozenset)):
        missing.append("capabilities")
    if not isinstance(name, str):
        missing.append("name")
    if not missing:
        return None
    described = f"provider {name!r}" if isinstance(name, str) else f"an object of type {type(provider).__name__}"
    return f"{described} has no {', '.join(missing)}; a sandbox provider has {', '.join((*_PROVIDER_METHODS, 'name', 'capabilities'))}"


class Rules(StrictModel):
    """Patterns by kind: `bash` by shell words, `readFile`, `writeFile` and `listDir` by absolute path and below, the others exactly."""

    bash: tuple[str, ...] = Field(default=(), strict=False)
    readFile: tuple[str, ...] = Field(default=(), strict=False)
    writeFile: tuple[str, ...] = Field(default=(), strict=False)
    listDir: tuple[str, ...] = Field(default=(), strict=False)
    tool: tuple[str, ...] = Field(default=(), strict=False)
    subagent: tuple[str, ...] = Field(default=(), strict=False)

    @property
    def lists(self) -> RuleLists:
        """The same as the permission gate takes it."""
        return RuleLists({Key(key): patterns for key, patterns in self})


class ThreadPermissions(StrictModel):
    """Lists of what is free and what is refused. A thread's own `allow` stands in place of the app's, its `deny` beside it."""

    allow: Rules = Field(default_factory=Rules)
    deny: Rules = Field(default_factory=Rules)

    @field_validator("allow", "deny")
    @classmethod
    def _check_rules(cls, rules: Rules, info: ValidationInfo) -> Rules:
        faults = [
            f"{key}[{index}]: {pattern!r} {fault}"
            for key, patterns in rules
            for index, pattern in enumerate(patterns)
            if (fault := rule_fault(Key(key), pattern, denies=info.field_name == "deny"))
        ]
        if faults:
            raise ValueError("; ".join(faults))
        return rules


class Permissions(ThreadPermissions):
    """What calls are free, refused, or asked about. `B4_PERMISSIONS_MODE` overrides `mode` for one process."""

    mode: Literal["interactive", "non-interactive", "bypass"] = "interactive"


class Cors(StrictModel):
    """Which pages of other origins may call the server. `origins`: a tuple, or "*" for all, which `credentials` exclude.

    `headers` None allows what a preflight asks for; `max_age_s` is how long a browser may remember the answer.
    """

    origins: tuple[str, ...] | Literal["*"]
    credentials: bool = False
    methods: tuple[str, ...] = ("GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
    headers: tuple[str, ...] | None = None
    expose_headers: tuple[str, ...] = ()
    max_age_s: Annotated[int, Field(ge=0, le=86_400)] = 600

    @field_validator("origins", "methods", "headers", "expose_headers", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value

    @field_validator("credentials")
    @classmethod
    def _check_credentials(cls, credentials: bool, info: ValidationInfo) -> bool:
        if credentials and info.data.get("origins") == "*":
            raise ValueError('cannot stand beside origins "*": any page could act as its visitor; name the origins')
        return credentials


class Server(StrictModel):
    """How the app is served. `cors` None: no page of another origin may call it.

    Threads whose last run or change is longer ago than `idle_thread_ttl_ms` are deleted with all that is theirs; None: never.
    """

    cors: Cors | None = None
    idle_thread_ttl_ms: int | None = Field(default=None, ge=60_000)


class Config(StrictModel):
    """An app. `app_dir` is the folder of its routes, relative to the root; without `sandbox` the tools work on `workspace/`."""

    app_dir: str = "app"
    permissions: Permissions = Field(default_factory=Permissions)
    sandbox: Sandbox | None = None
    server: Server = Field(default_factory=Server)

    @field_validator("app_dir")
    @classmethod
    def _check_app_dir(cls, app_dir: str) -> str:
        if not _APP_DIR.fullmatch(app_dir):
            raise ValueError("must be a folder inside the app's root, such as 'app' or 'src/app'")
        return app_dir
