"""The Docker provider: one container for each thread's compute, one volume for its files."""

from __future__ import annotations

from collections.abc import Sequence

from b4run.errors import B4Error, ConfigurationError, ImageRefused, SandboxUnavailable, WorkspaceMissing, WorkspaceUnusable
from b4run.sandbox.contract import Capability, Leftover, Preflight, SandboxRecord
from b4run.sandbox.guest import GuestReader, GuestSandbox
from b4run.sandbox.policy import SandboxPolicy, User
from b4run.sandbox.providers.docker import controls
from b4run.sandbox.providers.docker.compute import Containers, Files
from b4run.sandbox.providers.docker.engine import Engine
from b4run.sandbox.providers.docker.images import AllowImage, check_image, find_image, some_image
from b4run.sandbox.providers.docker.names import (
    LABEL_OPERATION,
    LABEL_READER,
    LABEL_SANDBOX,
    LABEL_SCOPE,
    LABEL_THREAD,
    ThreadNames,
)
from b4run.sandbox.providers.docker.prune import prune
from b4run.sandbox.providers.docker.reader import open_reader
from b4run.sandbox.providers.failures import as_unavailable
from b4run.sandbox.scope import check_scope
from b4run.workspace import (
    Binding,
    Creation,
    CreationState,
    Environment,
    ReadyWorkspace,
    WorkspaceIntent,
    workspace_id,
)
from b4run.workspace.content import SourceContent


class DockerProvider:
    """Sandboxes as containers of a Docker Engine, also of one on another machine. Made by `docker_sandbox`.

    Containers outlive the provider: another process with the same scope finds them again by name and label. `aclose` removes those that
    this provider holds.
    """

    name = "docker"

    def __init__(
        self,
        *,
        scope: str,
        image: str | None,
        images: AllowImage | None = None,
        runtime: str | None = None,
        engine: Engine | None = None,
    ) -> None:
        self._scope = check_scope(scope)
        self._image = image
        self._allow = images
        self._runtime = runtime
        self._engine = engine or Engine()
        self._containers = Containers(self._engine, self._scope, runtime, self.capabilities)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What containers give; gVisor ends the whole sandbox where the kernel would end one process."""
        return controls.CAPABILITIES | (controls.HOST_KERNEL if self._runtime is None else frozenset())

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> GuestSandbox:
        """Return the thread's sandbox: its running container, or a new one on its files.

        Raises:
            SandboxUnavailable: it cannot be made; says what to do.
            PolicyConflict: it is held here with other launch settings.
        """
        if self._image is None:
            raise SandboxUnavailable(thread_id=thread_id, reason="the provider has no `image`, and the thread names none")
        return await self._containers.acquire(ThreadNames(self._scope, thread_id), self._image, policy)

    async def release(self, thread_id: str) -> None:
        """Remove the thread's container; keep its volume."""
        await self._containers.release(ThreadNames(self._scope, thread_id))

    async def destroy(self, thread_id: str) -> None:
        """Remove the thread's container and its volume.

        Raises:
            SandboxUnavailable: something of it cannot be removed.
        """
        await self._destroy(ThreadNames(self._scope, thread_id))

    async def open_workspace_reader(self, thread_id: str, *, run_as_non_root: bool | User = True) -> GuestReader:
        """Open a view of the thread's volume, read-only, in a container of its own without network.

        Raises:
            WorkspaceMissing: the thread has no volume on this engine.
            SandboxUnavailable: the reader cannot be made.
        """
        names = ThreadNames(self._scope, thread_id)
        try:
            return await self._open_reader(names, run_as_non_root)
        except WorkspaceMissing:
            managed = await self._managed(thread_id)
            if managed is None:
                raise
            return await self._open_reader(managed, run_as_non_root)

    # Managed workspaces

    async def resolve_environment(self) -> Environment:
        if self._image is None:
            raise ImageRefused(reference="", reason="the provider has no `image`, and the thread names none")
        return await self.resolve_image_environment(self._image)

    async def resolve_image_environment(self, reference: str) -> Environment:
        """Return the environment of an image that a thread names, with its immutable identity (`sha256:…`); pulled when it is missing.

        Raises:
            ImageRefused: threads may not run it, and the engine was not asked; or the engine cannot provide it.
        """
        check_image(reference, self._image, self._allow)
        try:
            identity = (await self._containers.resolved(reference, anew=True)).id
        except B4Error as error:
            raise ImageRefused(reference=reference, reason=error.message) from error
        return Environment(Binding(self.name, self._scope), identity)

    async def inspect_creation(self, intent: WorkspaceIntent) -> Creation:
        """A volume that is not known to be ready is filled anew: it has been nobody's yet."""
        names = self._names(intent)
        try:
            volume = await self._engine.find("look up a volume", f"volumes/{names.volume}")
        except B4Error as error:
            return Creation(CreationState.UNKNOWN, reason=error.message)
        return Creation(CreationState.ABSENT if volume is None else CreationState.PENDING)

    async def create_workspace(self, intent: WorkspaceIntent, content: SourceContent, policy: SandboxPolicy) -> ReadyWorkspace:
        names = self._names(intent)
        # What an earlier process began may still be at work in its container.
        await self._containers.release(names)
        await self._check_image(intent)
        sandbox = await self._containers.acquire(names, intent.environment.identity, policy)
        commit = await sandbox.seed(content, links=intent.environment_links, baseline=intent.baseline == "git")
        return ReadyWorkspace.made(intent, {"volume": names.volume}, content.digest, commit)

    async def connect_workspace(self, intent: WorkspaceIntent, policy: SandboxPolicy) -> GuestSandbox:
        await self._check_image(intent)
        return await self._containers.acquire(self._names(intent), intent.environment.identity, policy, Files.KEPT)

    async def release_workspace(self, intent: WorkspaceIntent) -> None:
        await self._containers.release(self._names(intent))

    async def destroy_workspace(self, intent: WorkspaceIntent) -> None:
        names = self._names(intent)
        try:
            for reader in await self._engine.list_containers({"label": [f"{LABEL_READER}={names.id}"]}, running=False):
                await self._engine.remove_container(reader["Id"])
        except B4Error as error:
            raise SandboxUnavailable(thread_id=intent.thread_id, reason=f"a reader of it was not removed ({error.message})") from error
        await self._destroy(names)

    async def open_managed_reader(self, intent: WorkspaceIntent, *, run_as_non_root: bool | User = True) -> GuestReader:
        return await self._open_reader(self._names(intent), run_as_non_root)

    # Everything of a scope

    async def prune(self) -> Sequence[Leftover]:
        """Remove readers and helpers that nobody uses, containers without files, guests of other releases, and images without a base.

        Raises:
            SandboxUnavailable: something was not removed; the rest was.
        """
        return await prune(self._engine, self._scope)

    async def aclose(self) -> None:
        """Release every thread that this provider holds, and close the connection to the engine."""
        try:
            await self._containers.aclose()
        finally:
            await self._engine.aclose()

    async def list_sandboxes(self) -> Sequence[SandboxRecord]:
        """Return the threads of this scope that the engine has a volume of."""
        filters = {"label": [f"{LABEL_SCOPE}={self._scope}"]}
        volumes = await self._engine.list_volumes(filters)
        running = {container["Labels"].get(LABEL_SANDBOX) for container in await self._engine.list_containers(filters)}
        labels = [volume["Labels"] for volume in volumes if LABEL_SANDBOX in volume["Labels"]]
        records = [SandboxRecord(entry[LABEL_SANDBOX], entry.get(LABEL_THREAD), entry[LABEL_SANDBOX] in running) for entry in labels]
        return sorted(records, key=lambda record: record.resource_id)

    async def preflight(self, policy: SandboxPolicy) -> Preflight:
        """Ask the engine for everything that `policy` needs, and start a sandbox to see that the guest runs in the image."""
        from b4run.sandbox.providers.docker.preflight import examine

        return await examine(self, self._engine, policy, image=self._image, runtime=self._runtime)

    def _names(self, intent: WorkspaceIntent) -> ThreadNames:
        return ThreadNames(self._scope, intent.thread_id, id=workspace_id(intent), operation_id=intent.operation_id)

    async def _managed(self, thread_id: str) -> ThreadNames | None:
        """Find a thread's managed workspace by its labels, for who does not have its record."""
        labels = [f"{LABEL_SCOPE}={self._scope}", f"{LABEL_THREAD}={thread_id}", LABEL_OPERATION]
        try:
            found = [volume["Labels"][LABEL_SANDBOX] for volume in await self._engine.list_volumes({"label": labels})]
        except B4Error as error:
            raise SandboxUnavailable(thread_id=thread_id, reason=error.message) from error
        return ThreadNames(self._scope, thread_id, id=found[0]) if len(found) == 1 else None

    async def _check_image(self, intent: WorkspaceIntent) -> None:
        """An identity names one image for ever, and cannot be pulled by itself."""
        identity = intent.environment.identity
        with as_unavailable(intent.thread_id):
            found = await find_image(self._engine, identity)
        if found is None:
            raise WorkspaceUnusable(
                thread_id=intent.thread_id,
                lifecycle="lost",
                reason=f"its image {identity} is not on the engine any more",
                remedy="Pull or load the very image again, or delete the thread.",
            )

    async def _destroy(self, names: ThreadNames) -> None:
        try:
            await self._containers.release(names)
            await self._engine.remove_volume(names.volume)
        except B4Error as error:
            raise SandboxUnavailable(thread_id=names.thread_id, reason=f"it was not removed ({error.message})") from error

    async def _open_reader(self, names: ThreadNames, run_as_non_root: bool | User) -> GuestReader:
        with as_unavailable(names.thread_id):
            # A reader runs nothing of the image, so any will do.
            image = await self._containers.resolved(self._image or await some_image(self._engine))
            guest = await self._containers.guest_volume(image)
            return await open_reader(self._engine, names, image, guest, run_as_non_root=run_as_non_root, runtime=self._runtime)


def docker_sandbox(
    *,
    scope: str,
    image: str | None = None,
    images: AllowImage | None = None,
    runtime: str | None = None,
    url: str | None = None,
    context: str | None = None,
) -> DockerProvider:
    """Return the provider of sandboxes on a Docker Engine.

    `scope` keeps the threads of several apps apart. `image` is what sandboxes start from; any with `/bin/sh` will do, and it is pulled when
    missing. `images` says which others a thread may name, and is asked before the engine is; without `image`, every thread must name one.
    `runtime` names one of the engine's, such as `runsc` for gVisor. The engine is that of `url` or `context`, or else of
    `DOCKER_HOST` and the current Docker context.

    Raises:
        ConfigurationError: the scope or the image is blank, or there is neither `image` nor `images`.
    """
    if image is None and images is None:
        raise ConfigurationError(reason="`image` must name an image, such as 'python:3.12-slim', unless `images` admits those of threads")
    if image is not None and (not isinstance(image, str) or not image.strip()):
        raise ConfigurationError(reason="`image` must name an image, such as 'python:3.12-slim'")
    if images is not None and not callable(images):
        raise ConfigurationError(reason="`images` must be a function from an image reference to True or False")
    name = None if image is None else image.strip()
    return DockerProvider(scope=scope, image=name, images=images, runtime=runtime, engine=Engine(url, context))
