"""What a provider implements so that threads can start from recorded workspaces (capability `managed_workspaces`)."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from b4run.sandbox.contract.providers import SandboxHandle, SandboxProvider, WorkspaceReader
from b4run.sandbox.policy import SandboxPolicy, User
from b4run.workspace import Creation, Environment, ReadyWorkspace, WorkspaceIntent
from b4run.workspace.content import SourceContent


@runtime_checkable
class ManagedWorkspaceProvider(SandboxProvider, Protocol):
    """Makes workspaces from intents and finds them by nothing else. The caller runs one of these calls at a time for each intent, has
    recorded the intent before the first, and lets no tool near a workspace before it has recorded that it is ready.
    """

    async def resolve_environment(self) -> Environment:
        """Return what surrounds a workspace by default: this provider's binding, and the immutable identity of its own image.

        Raises:
            SandboxUnavailable: it has none, or cannot say.
        """

    async def inspect_creation(self, intent: WorkspaceIntent) -> Creation:
        """Return what became of an earlier `create_workspace` of this intent. `unknown` when that cannot be told: nothing is made then."""

    async def create_workspace(self, intent: WorkspaceIntent, content: SourceContent, policy: SandboxPolicy) -> ReadyWorkspace:
        """Make the workspace, every byte verified against the content's digest, written as the runtime user, with links and baseline.

        Whatever an unfinished attempt at the same intent left is taken over or replaced; there is never a second workspace. Its compute
        may stay up, for `connect_workspace` to return.

        Raises:
            WorkspaceInvalid: the content is not what its digest says.
            WorkspaceUnusable, SandboxUnavailable: it was not made; calling again is safe.
        """

    async def connect_workspace(self, intent: WorkspaceIntent, policy: SandboxPolicy) -> SandboxHandle:
        """Return live compute on a workspace that is ready; it is never made here.

        Raises:
            WorkspaceUnusable: lifecycle `lost` when the workspace or its image is gone.
            SandboxUnavailable: as `acquire`.
        """

    async def release_workspace(self, intent: WorkspaceIntent) -> None:
        """Drop its compute, keep its files. One without compute is fine."""

    async def destroy_workspace(self, intent: WorkspaceIntent) -> None:
        """Drop compute, files, readers, and whatever an unfinished creation left; return when all is gone. One that never was is fine."""

    async def open_managed_reader(self, intent: WorkspaceIntent, *, run_as_non_root: bool | User = True) -> WorkspaceReader:
        """As `open_workspace_reader`, on this workspace."""


@runtime_checkable
class ImageProvider(Protocol):
    """A provider whose threads may name an image (capability `image_resolution`)."""

    async def resolve_image_environment(self, reference: str) -> Environment:
        """Return what surrounds a workspace in the image that a thread names.

        Raises:
            ImageRefused: threads may not run it, which is known without looking for it; or it cannot be had.
        """
