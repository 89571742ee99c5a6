"""What a resolver is given and what it answers: a thread, and the sandbox that the thread is to have."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import AfterValidator, field_validator

from b4run.config.models import ThreadPermissions
from b4run.sandbox.policy import Network, Resources, check_environment, is_image_reference
from b4run.strict import StrictModel
from b4run.workspace import CapturedWorkspace, WorkspaceDefinition


@dataclass(frozen=True, slots=True)
class ThreadContext:
    """The thread that a resolver decides about. `metadata` is what its creator sent, so check it; `staged` the workspace handed over."""

    thread_id: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    staged: CapturedWorkspace | None = None


def _check_network(network: Network) -> Network:
    listed = getattr(network, "denylist", ()) or getattr(network, "allowlist", ())
    if listed:
        raise ValueError("lists are not accepted per thread: managed workspaces do not enforce them; keep `Deny()` or `Allow()`")
    return network


def _check_resources(resources: Resources) -> Resources:
    if resources.disk_gb is not None:
        raise ValueError("`disk_gb` is not accepted per thread: managed workspaces do not enforce it")
    return resources


class ThreadPolicy(StrictModel):
    """A thread's own settings. Resources go over the app's one by one, `env` replaces the app's, `network` keeps or narrows it."""

    network: Annotated[Network, AfterValidator(_check_network)] | None = None
    env: Annotated[Mapping[str, str], AfterValidator(check_environment)] | None = None
    resources: Annotated[Resources, AfterValidator(_check_resources)] | None = None


class ThreadSandbox(StrictModel):
    """What a thread starts from and may do. `image` must be one that the provider admits; without it the provider's own is used."""

    workspace: Any
    image: str | None = None
    policy: ThreadPolicy | None = None
    permissions: ThreadPermissions | None = None

    @field_validator("workspace")
    @classmethod
    def _check_workspace(cls, workspace: Any) -> Any:
        if not isinstance(workspace, (WorkspaceDefinition, CapturedWorkspace)):
            raise ValueError("must be a WorkspaceDefinition, or the workspace that the thread was handed (`thread.staged`)")
        return workspace

    @field_validator("image")
    @classmethod
    def _check_image(cls, image: str | None) -> str | None:
        if image is not None and not is_image_reference(image):
            raise ValueError("must be an image reference: 1 to 512 letters, digits and `._/:@-`, beginning with a letter or digit")
        return image
