"""One thread's live sandbox, over a connection to its guest."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from b4run.errors import SandboxLost
from b4run.sandbox.guest.client import GuestClient
from b4run.sandbox.guest.files import GuestFiles
from b4run.sandbox.guest.jobs import GuestExec, OomCheck
from b4run.sandbox.guest.seeding import seed_workspace
from b4run.workspace import EnvironmentLink
from b4run.workspace.content import SourceContent


class GuestSandbox:
    """`SandboxHandle` over a `GuestClient`. `aclose` ends the connection, then runs what the provider gave for the rest."""

    def __init__(self, client: GuestClient, *, aclose: Callable[[], Awaitable[None]], oom_check: OomCheck | None = None) -> None:
        self._client = client
        self._aclose = aclose
        self._exec = GuestExec(client, oom_check)
        self._files = GuestFiles(client)

    @property
    def thread_id(self) -> str:
        return self._client.thread_id

    @property
    def workspace_root(self) -> str:
        return self._client.hello.root

    @property
    def instance(self) -> str:
        return self._client.hello.instance

    @property
    def guest_capabilities(self) -> frozenset[str]:
        """What the guest found to work on its kernel, as in its hello."""
        return self._client.hello.capabilities

    @property
    def exec(self) -> GuestExec:
        return self._exec

    @property
    def files(self) -> GuestFiles:
        return self._files

    @property
    def lost(self) -> bool:
        return self._client.lost is not None

    async def idle(self) -> bool:
        if self.lost:
            return True
        if self._client.busy:
            return False
        try:
            return not any(job.alive for job in await self._exec.jobs())
        except SandboxLost:
            return True

    async def seed(self, content: SourceContent, *, links: Sequence[EnvironmentLink] = (), baseline: bool = False) -> str | None:
        """Replace the workspace by verified content; return the baseline's commit. Raises: as `seed_workspace`."""
        return await seed_workspace(self._client, content, links=links, baseline=baseline)

    async def aclose(self) -> None:
        """Drop the compute; safe to repeat if the provider's part is."""
        try:
            await self._client.close()
        finally:
            await self._aclose()
