"""The Docker provider: one container for each thread's compute, one volume for its files."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakValueDictionary

from b4run.errors import B4Error, ConfigurationError, ImageRefused, PolicyConflict, SandboxUnavailable
from b4run.sandbox.contract import Capability, Leftover, Preflight, SandboxRecord
from b4run.sandbox.environment import GUEST_PATH, SYSTEM_PATH, sandbox_environment
from b4run.sandbox.guest import GuestClient, GuestReader, GuestSandbox
from b4run.sandbox.policy import SandboxPolicy, User
from b4run.sandbox.providers.docker import controls
from b4run.sandbox.providers.docker.channel import ExecChannel
from b4run.sandbox.providers.docker.ending import explain_end
from b4run.sandbox.providers.docker.engine import Engine
from b4run.sandbox.providers.docker.guest_volume import provide_guest
from b4run.sandbox.providers.docker.images import AllowImage, check_image, owned_image, resolve_image, some_image
from b4run.sandbox.providers.docker.launch import Image, Runtime, container_body, runtime_user
from b4run.sandbox.providers.docker.names import LABEL_IDENTITY, LABEL_SANDBOX, LABEL_SCOPE, LABEL_THREAD, ThreadNames
from b4run.sandbox.providers.docker.oom import oom_check
from b4run.sandbox.providers.docker.prune import prune
from b4run.sandbox.providers.docker.reader import open_reader
from b4run.sandbox.providers.docker.runtimes import find_runtime
from b4run.sandbox.providers.docker.watch import DeathWatch
from b4run.sandbox.scope import check_scope

_HELLO_SECONDS = 30.0
_CONNECT_MS = 5_000


@dataclass(slots=True)
class _Held:
    policy: SandboxPolicy
    sandbox: GuestSandbox
    channel: ExecChannel


class DockerProvider:
    """Sandboxes on a Docker Engine. Made by `docker_sandbox`; used within one event loop.

    Nothing depends on sharing a file system with the engine, so it may run on another machine. Containers and volumes are found again
    by their names and labels, by any process of the same scope.
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
        self._guest: asyncio.Task[str] | None = None
        self._images: dict[str, Image] = {}
        self._known_runtime: Runtime | None = None
        self._held: dict[str, _Held] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._watch = DeathWatch(self._engine, self._scope, self._died, self._look_after_gap)
        self._looks: set[asyncio.Task[None]] = set()

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
        names = ThreadNames(self._scope, thread_id)
        async with self._lock(names.id):
            held = self._held.get(names.id)
            if held is not None and not held.sandbox.lost:
                if differing := held.policy.difference(policy):
                    raise PolicyConflict(thread_id=thread_id, reason=", ".join(differing))
                return held.sandbox
            if self._image is None:
                raise SandboxUnavailable(thread_id=thread_id, reason="the provider has no `image`, and the thread names none")
            for finding in controls.refusals(policy):
                raise SandboxUnavailable(thread_id=thread_id, reason=f"{finding.sentence}. {finding.remedy}")
            try:
                if held is not None:
                    await self._forget(names.id)
                sandbox, channel = await self._start(names, self._image, policy)
            except SandboxUnavailable:
                raise
            except B4Error as error:
                raise SandboxUnavailable(thread_id=thread_id, reason=f"{error.message} {error.remedy}".strip()) from error
            self._held[names.id] = _Held(policy, sandbox, channel)
            self._watch.start()
            return sandbox

    async def release(self, thread_id: str) -> None:
        """Remove the thread's container; keep its volume."""
        await self._release(ThreadNames(self._scope, thread_id))

    async def destroy(self, thread_id: str) -> None:
        """Remove the thread's container and its volume.

        Raises:
            SandboxUnavailable: something of it cannot be removed.
        """
        names = ThreadNames(self._scope, thread_id)
        try:
            await self._release(names)
            await self._engine.remove_volume(names.volume)
        except B4Error as error:
            raise SandboxUnavailable(thread_id=thread_id, reason=f"it was not removed ({error.message})") from error

    async def open_workspace_reader(self, thread_id: str, *, run_as_non_root: bool | User = True) -> GuestReader:
        """Open a view of the thread's volume, read-only, in a container of its own without network.

        Raises:
            WorkspaceMissing: the thread has no volume on this engine.
            SandboxUnavailable: the reader cannot be made.
        """
        names = ThreadNames(self._scope, thread_id)
        try:
            # A reader runs nothing of the image, so any will do.
            image = await self._resolved(self._image or await some_image(self._engine))
            guest = await self._guest_volume(image)
            return await open_reader(self._engine, names, image, guest, run_as_non_root=run_as_non_root, runtime=self._runtime)
        except SandboxUnavailable:
            raise
        except B4Error as error:
            raise SandboxUnavailable(thread_id=thread_id, reason=f"{error.message} {error.remedy}".strip()) from error

    async def resolve_image_environment(self, reference: str) -> str:
        """Return the immutable identity (`sha256:…`) of an image that a thread names, pulled when the engine lacks it.

        Raises:
            ImageRefused: threads may not run it; the engine was not asked.
            SandboxUnavailable: the engine cannot provide it.
        """
        check_image(reference, self._image, self._allow)
        try:
            return (await self._resolved(reference)).id
        except B4Error as error:
            raise ImageRefused(reference=reference, reason=error.message) from error

    async def prune(self) -> Sequence[Leftover]:
        """Remove readers and helpers that nobody uses, containers without files, guests of other releases, and images without a base.

        Raises:
            SandboxUnavailable: something was not removed; the rest was.
        """
        return await prune(self._engine, self._scope)

    async def aclose(self) -> None:
        """Release every thread that this provider holds, and close the connection to the engine."""
        try:
            held = [ThreadNames(self._scope, entry.sandbox.thread_id) for entry in self._held.values()]
            results = await asyncio.gather(*(self._release(names) for names in held), return_exceptions=True)
        finally:
            await self._watch.aclose()
            for look in self._looks:
                look.cancel()
            await self._engine.aclose()
            self._guest = None
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]

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

    def _lock(self, name: str) -> asyncio.Lock:
        """One at a time per thread; kept only while somebody uses it."""
        return self._locks.setdefault(name, asyncio.Lock())

    def _died(self, name: str) -> None:
        if name in self._held:
            self._held[name].channel.end()

    def _look_after_gap(self) -> None:
        """Deaths before now may not have been told."""
        for name in self._held:
            look = asyncio.create_task(self._look(name))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _look(self, name: str) -> None:
        held = self._held[name]
        container = ThreadNames(self._scope, held.sandbox.thread_id).container
        try:
            found = await self._engine.find("look up a container", f"containers/{container}/json")
        except B4Error:
            return
        if (found is None or not found["State"]["Running"]) and self._held.get(name) is held:
            held.channel.end()

    async def _forget(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            await held.sandbox.aclose()

    async def _release(self, names: ThreadNames) -> None:
        async with self._lock(names.id):
            await self._forget(names.id)
            await self._engine.remove_container(names.container)

    async def _start(self, names: ThreadNames, reference: str, policy: SandboxPolicy) -> tuple[GuestSandbox, ExecChannel]:
        image = await self._resolved(reference)
        guest = await self._guest_volume(image)
        owned = await owned_image(self._engine, image, runtime_user(policy))
        body = container_body(names, image, owned, guest, policy, await self._found_runtime())
        found = await self._running(names, body["Labels"][LABEL_IDENTITY])
        if found:
            try:
                return await self._connect(names, image, policy)
            except SandboxUnavailable:
                # Its guest is gone, or no process can be started in it any more.
                await self._engine.remove_container(names.container)
        try:
            await self._create(names, body)
            return await self._connect(names, image, policy)
        except BaseException:
            # The guest's volume may have been pruned under us: the next start looks at it again.
            self._guest = None
            await asyncio.shield(self._engine.remove_container(names.container))
            raise

    async def _resolved(self, reference: str) -> Image:
        if reference not in self._images:
            self._images[reference] = await resolve_image(self._engine, reference)
        return self._images[reference]

    async def _found_runtime(self) -> Runtime:
        if self._known_runtime is None:
            self._known_runtime = await find_runtime(self._engine, self._runtime)
        return self._known_runtime

    async def _guest_volume(self, image: Image) -> str:
        """Fill the guest's volume once; whoever comes meanwhile waits for the same."""
        if self._guest is None or (self._guest.done() and (self._guest.cancelled() or self._guest.exception() is not None)):
            self._guest = asyncio.ensure_future(provide_guest(self._engine, image.id))
        return await asyncio.shield(self._guest)

    async def _running(self, names: ThreadNames, identity: str) -> bool:
        """Whether the thread's container runs with these settings; started if it was stopped, removed if it is another."""
        container = await self._engine.find("look up a container", f"containers/{names.container}/json")
        if container is None:
            return False
        if container["Config"]["Labels"].get(LABEL_IDENTITY) != identity or container["State"]["Status"] in ("dead", "removing", "paused"):
            await self._engine.remove_container(names.container)
            return False
        if not container["State"]["Running"]:
            await self._engine.start(names.container)
        return True

    async def _create(self, names: ThreadNames, body: dict[str, object]) -> None:
        await self._engine.post("make a volume", "volumes/create", body={"Name": names.volume, "Labels": names.labels()})
        await self._engine.post("make a container", "containers/create", params={"name": names.container}, body=body)
        await self._engine.start(names.container)

    async def _connect(self, names: ThreadNames, image: Image, policy: SandboxPolicy) -> tuple[GuestSandbox, ExecChannel]:
        stream = await self._engine.exec_stream(names.container, [GUEST_PATH, "connect", "--timeout-ms", str(_CONNECT_MS)])
        channel = ExecChannel(stream)
        environment = sandbox_environment(policy.env, path=image.path or SYSTEM_PATH)
        try:
            client = await GuestClient.connect(channel, thread_id=names.thread_id, environment=environment, hello_deadline_s=_HELLO_SECONDS)
        except SandboxUnavailable as error:
            words = " ".join(channel.complaint.decode(errors="replace").split())
            raise SandboxUnavailable(thread_id=names.thread_id, reason=words or error.fields["reason"]) from error
        channel.explain = functools.partial(explain_end, self._engine, names.container, policy.resources.memory_mb)
        check = oom_check(client) if policy.resources.memory_mb is not None and Capability.OOM_CAUSE in self.capabilities else None
        return GuestSandbox(client, aclose=_nothing, oom_check=check), channel


async def _nothing() -> None:
    """The container is the thread's, not the connection's."""


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
