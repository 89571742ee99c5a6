"""Creation intents: what is recorded before a provider makes a workspace, and what its answer is held against.

Formats are those of the specification's `formats.md`, section "Creation intent, reference, provenance".
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

from b4run.errors import WorkspaceInvalid
from b4run.workspace.bundle import is_digest
from b4run.workspace.captured import Baseline, EnvironmentLink, check_keys, compact, read_links, shape_dict

LONGEST_TEXT = 1_024
LONGEST_IDENTITY = 4_096
MAX_RESOURCE_KEYS = 32
LONGEST_RESOURCE_KEY = 256
MAX_RESOURCE_BYTES = 16_384

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Binding:
    """Where a workspace lives: which provider, in which scope of it, on whose account."""

    provider: str
    scope: str
    account: str = "local"

    def __post_init__(self) -> None:
        for name in ("provider", "scope", "account"):
            check_text(getattr(self, name), f"the binding's {name}")


@dataclass(frozen=True, slots=True)
class Environment:
    """What surrounds the files: a binding, and what never changes of the image, such as `sha256:…`."""

    binding: Binding
    identity: str

    def __post_init__(self) -> None:
        check_text(self.identity, "the environment's identity", LONGEST_IDENTITY)

    def as_dict(self) -> dict[str, Any]:
        binding = {"provider": self.binding.provider, "scope": self.binding.scope, "account": self.binding.account}
        return {"binding": binding, "identity": self.identity}


@dataclass(frozen=True, slots=True)
class WorkspaceIntent:
    """One creation: by whom, for which thread, of what. Equal intents have equal digests."""

    operation_id: str
    installation_id: str
    thread_id: str
    source_digest: str
    environment: Environment
    environment_links: tuple[EnvironmentLink, ...] = ()
    baseline: Baseline | None = None
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        check_uuid(self.operation_id, "operation")
        check_uuid(self.installation_id, "installation")
        check_text(self.thread_id, "the thread's id")
        if not is_digest(self.source_digest):
            raise WorkspaceInvalid(reason="the source's digest is not 64 lower-case hexadecimal digits")
        if self.baseline not in (None, "git"):
            raise WorkspaceInvalid(reason=f"the baseline {self.baseline!r} is not 'git'")
        read_links([link.as_dict() for link in self.environment_links])
        body = compact(["b4-workspace-intent-v1", self.as_dict()])
        object.__setattr__(self, "digest", hashlib.sha256(body.encode()).hexdigest())

    def as_dict(self) -> dict[str, Any]:
        """Return the body, in the order that its digest is of."""
        return {
            "version": 1,
            "operationId": self.operation_id,
            "installationId": self.installation_id,
            "threadId": self.thread_id,
            "sourceDigest": self.source_digest,
            "environment": self.environment.as_dict(),
        } | shape_dict(self.environment_links, self.baseline)


def workspace_id(intent: WorkspaceIntent) -> str:
    """Return the 40 hex digits that name what a provider makes for `intent`: by installation, operation and binding, not by thread."""
    binding = intent.environment.binding
    names = [intent.installation_id, intent.operation_id, binding.provider, binding.scope, binding.account]
    return hashlib.sha256(compact(["b4-workspace-v1", *names]).encode()).hexdigest()[:40]


def create_workspace_intent(
    *,
    operation_id: str,
    installation_id: str,
    thread_id: str,
    source_digest: str,
    environment: Environment,
    environment_links: tuple[EnvironmentLink, ...] = (),
    baseline: Baseline | None = None,
) -> WorkspaceIntent:
    """Return the intent; its `digest` names it.

    Raises:
        WorkspaceInvalid: an id is no lower-case UUID, a text is blank, too long or has control characters, links are not in order.
    """
    return WorkspaceIntent(operation_id, installation_id, thread_id, source_digest, environment, environment_links, baseline)


def read_intent(value: Any) -> WorkspaceIntent:
    """Return the intent whose body `value` is. Raises: WorkspaceInvalid."""
    keys = ("version", "operationId", "installationId", "threadId", "sourceDigest", "environment", "environmentLinks")
    body = check_keys(value, keys, ("baseline",), "the intent")
    if body["version"] != 1:
        raise WorkspaceInvalid(reason="the intent's version is not 1")
    environment = read_environment(body["environment"])
    links = read_links(body["environmentLinks"])
    ids = (body["operationId"], body["installationId"], body["threadId"], body["sourceDigest"])
    return WorkspaceIntent(*ids, environment, links, body.get("baseline"))


def read_environment(value: Any) -> Environment:
    body = check_keys(value, ("binding", "identity"), (), "the environment")
    binding = check_keys(body["binding"], ("provider", "scope", "account"), (), "the binding")
    return Environment(Binding(binding["provider"], binding["scope"], binding["account"]), body["identity"])


@dataclass(frozen=True, slots=True)
class WorkspaceReference:
    """What a provider answers to a creation: whose it is, and in `resource` how it finds the workspace again. Holds no credential."""

    operation_id: str
    installation_id: str
    thread_id: str
    intent_digest: str
    resource: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if len(self.resource) > MAX_RESOURCE_KEYS:
            raise WorkspaceInvalid(reason=f"a reference's resource has more than {MAX_RESOURCE_KEYS} keys")
        for key, value in self.resource.items():
            check_text(key, "a key of a reference's resource", LONGEST_RESOURCE_KEY)
            if not isinstance(value, str):
                raise WorkspaceInvalid(reason=f"`{key}` of a reference's resource is no text")
        if len(compact(dict(self.resource)).encode()) > MAX_RESOURCE_BYTES:
            raise WorkspaceInvalid(reason=f"a reference's resource has more than {MAX_RESOURCE_BYTES:,} bytes")

    @classmethod
    def to(cls, intent: WorkspaceIntent, resource: Mapping[str, str]) -> WorkspaceReference:
        return cls(intent.operation_id, intent.installation_id, intent.thread_id, intent.digest, resource)

    def as_dict(self) -> dict[str, Any]:
        ids = {"operationId": self.operation_id, "installationId": self.installation_id, "threadId": self.thread_id}
        return ids | {"intentDigest": self.intent_digest, "resource": dict(self.resource)}


@dataclass(frozen=True, slots=True)
class Retention:
    """How long files and memory stay: `expires_at` is an ISO 8601 time in UTC, given exactly when the files expire."""

    filesystem: Literal["until-destroy", "expires"] = "until-destroy"
    expires_at: str | None = None
    memory: Literal["discarded", "retained"] = "discarded"

    def __post_init__(self) -> None:
        if self.filesystem not in ("until-destroy", "expires") or self.memory not in ("discarded", "retained"):
            raise WorkspaceInvalid(reason="a retention is neither until-destroy nor expires, or its memory neither discarded nor retained")
        if (self.filesystem == "expires") != (self.expires_at is not None):
            raise WorkspaceInvalid(reason="a retention has `expiresAt` exactly when it expires")

    def as_dict(self) -> dict[str, Any]:
        expiry = {} if self.expires_at is None else {"expiresAt": self.expires_at}
        return {"filesystem": self.filesystem} | expiry | {"memory": self.memory}


@dataclass(frozen=True, slots=True)
class Provenance:
    """What a workspace was really made of."""

    source_digest: str
    environment: Environment
    baseline_commit: str | None = None
    retention: Retention = field(default_factory=Retention)

    def as_dict(self) -> dict[str, Any]:
        commit = {} if self.baseline_commit is None else {"baselineCommit": self.baseline_commit}
        made_of = {"sourceDigest": self.source_digest, "environment": self.environment.as_dict()}
        return made_of | commit | {"retention": self.retention.as_dict()}


@dataclass(frozen=True, slots=True)
class ReadyWorkspace:
    """A workspace that is made and verified."""

    reference: WorkspaceReference
    provenance: Provenance

    @classmethod
    def made(cls, intent: WorkspaceIntent, resource: Mapping[str, str], source_digest: str, commit: str | None) -> ReadyWorkspace:
        """Return the answer to `intent` of a provider that made what was asked for, and keeps it until it is destroyed."""
        return cls(WorkspaceReference.to(intent, resource), Provenance(source_digest, intent.environment, commit))

    def as_dict(self) -> dict[str, Any]:
        return {"reference": self.reference.as_dict(), "provenance": self.provenance.as_dict()}

    def check(self, intent: WorkspaceIntent) -> ReadyWorkspace:
        """Return itself if it answers `intent`. Raises: WorkspaceInvalid: it is of another creation, or made of something else."""
        ours = WorkspaceReference.to(intent, self.reference.resource)
        if self.reference != ours:
            raise WorkspaceInvalid(reason="the provider's answer is about another creation")
        made_of = self.provenance
        if made_of.source_digest != intent.source_digest or made_of.environment != intent.environment:
            raise WorkspaceInvalid(reason="the provider made the workspace of something else than was asked for")
        commit = made_of.baseline_commit
        if (commit is not None) != (intent.baseline == "git") or (commit is not None and not _COMMIT.fullmatch(commit)):
            raise WorkspaceInvalid(reason="the provider's answer has no commit for the baseline, or one without a baseline")
        return self


def read_ready(value: Any) -> ReadyWorkspace:
    """Return the ready workspace that was stored as `value`. Raises: WorkspaceInvalid."""
    body = check_keys(value, ("reference", "provenance"), (), "the workspace")
    keys = ("operationId", "installationId", "threadId", "intentDigest", "resource")
    reference = check_keys(body["reference"], keys, (), "the reference")
    made = check_keys(body["provenance"], ("sourceDigest", "environment", "retention"), ("baselineCommit",), "the provenance")
    retention = check_keys(made["retention"], ("filesystem", "memory"), ("expiresAt",), "the retention")
    return ReadyWorkspace(
        WorkspaceReference(
            reference["operationId"],
            reference["installationId"],
            reference["threadId"],
            reference["intentDigest"],
            dict(reference["resource"]),
        ),
        Provenance(
            made["sourceDigest"],
            read_environment(made["environment"]),
            made.get("baselineCommit"),
            Retention(retention["filesystem"], retention.get("expiresAt"), retention["memory"]),
        ),
    )


class CreationState(StrEnum):
    """What became of a creation that was begun."""

    ABSENT = "absent"
    PENDING = "pending"
    READY = "ready"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Creation:
    """A provider's answer about a creation. `ready` goes with READY; the rest with FAILED, `reason` also with UNKNOWN."""

    state: CreationState
    ready: ReadyWorkspace | None = None
    code: str = ""
    reason: str = ""
    resources_remain: bool = False


def check_uuid(value: object, what: str) -> None:
    if not isinstance(value, str) or not _UUID.fullmatch(value):
        raise WorkspaceInvalid(reason=f"the {what}'s id is no lower-case UUID")


def check_text(value: object, what: str, longest: int = LONGEST_TEXT) -> str:
    """Return a text that can be recorded. Raises: WorkspaceInvalid: blank, too long, with control characters or lone surrogates."""
    if not isinstance(value, str) or not value.strip():
        raise WorkspaceInvalid(reason=f"{what} is blank, or no text")
    if len(value) > longest:
        raise WorkspaceInvalid(reason=f"{what} has more than {longest:,} characters")
    if any(unicodedata.category(character) in ("Cc", "Cs") for character in value):
        raise WorkspaceInvalid(reason=f"{what} has control characters or is no valid text")
    return value
