"""The containers of threads: started, found again, held while they are used, removed."""

from __future__ import annotations

import asyncio
import functools
from dataclasses import dataclass
from enum import Enum
from weakref import WeakValueDictionary

from b4run.errors import B4Error, PolicyConflict, SandboxUnavailable, WorkspaceUnusable
from b4run.sandbox.contract import Capability
from b4run.sandbox.environment import GUEST_PATH, SYSTEM_PATH, sandbox_environment
from b4run.sandbox.guest import GuestClient, GuestSandbox
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.providers.containers import runtime_user
from b4run.sandbox.providers.docker import controls
from b4run.sandbox.providers.docker.channel import ExecChannel
from b4run.sandbox.providers.docker.ending import explain_end
from b4run.sandbox.providers.docker.engine import Engine
from b4run.sandbox.providers.docker.guest_volume import provide_guest
from b4run.sandbox.providers.docker.images import owned_image, resolve_image
from b4run.sandbox.providers.docker.launch import Image, Runtime, container_body
from b4run.sandbox.providers.docker.names import LABEL_IDENTITY, LABEL_SANDBOX, ThreadNames
from b4run.sandbox.providers.docker.oom import oom_check
from b4run.sandbox.providers.docker.runtimes import find_runtime
from b4run.sandbox.providers.docker.watch import DeathWatch
from b4run.sandbox.providers.failures import as_unavailable

_HELLO_SECONDS = 30.0
_CONNECT_MS = 5_000


class Files(Enum):
    """What becomes of the volume when a container starts."""

    MADE = "made"
    """It is made when it is missing."""
    KEPT = "kept"
    """It must be there: one that is missing is lost, and stays so."""


@dataclass(slots=True)
class _Held:
    names: ThreadNames
    policy: SandboxPolicy
    sandbox: GuestSandbox
    channel: ExecChannel


class Containers:
    """The containers of one scope that this process holds."""

    def __init__(self, engine: Engine, scope: str, runtime: str | None, capabilities: frozenset[Capability]) -> None:
        self._engine = engine
        self._runtime = runtime
        self._capabilities = capabilities
        self._guest: asyncio.Task[str] | None = None
        self._images: dict[str, Image] = {}
        self._known_runtime: Runtime | None = None
        self._held: dict[str, _Held] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._watch = DeathWatch(engine, scope, self._died, self._look_after_gap)
        self._looks: set[asyncio.Task[None]] = set()

    async def acquire(self, names: ThreadNames, reference: str, policy: SandboxPolicy, files: Files = Files.MADE) -> GuestSandbox:
        """Return the sandbox: its running container, or a new one of the image `reference` on its volume.

        Raises:
            SandboxUnavailable: it cannot be made; says what to do.
            WorkspaceUnusable: lifecycle `lost`: the volume was to be there, and is not.
            PolicyConflict: it is held here with other launch settings.
        """
        async with self._lock(names.id):
            held = self._held.get(names.id)
            if held is not None and not held.sandbox.lost:
                if differing := held.policy.difference(policy):
                    raise PolicyConflict(thread_id=names.thread_id, reason=", ".join(differing))
                return held.sandbox
            for finding in controls.refusals(policy):
                raise SandboxUnavailable(thread_id=names.thread_id, reason=f"{finding.sentence}. {finding.remedy}")
            with as_unavailable(names.thread_id):
                if held is not None:
                    await self._forget(names.id)
                sandbox, channel = await self._start(names, reference, policy, files)
            self._held[names.id] = _Held(names, policy, sandbox, channel)
            self._watch.start()
            return sandbox

    async def release(self, names: ThreadNames) -> None:
        """Remove the container; keep the volume."""
        async with self._lock(names.id):
            await self._forget(names.id)
            await self._engine.remove_container(names.container)

    async def aclose(self) -> None:
        """Release everything held."""
        try:
            results = await asyncio.gather(*(self.release(held.names) for held in list(self._held.values())), return_exceptions=True)
        finally:
            await self._watch.aclose()
            for look in self._looks:
                look.cancel()
            self._guest = None
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]

    async def resolved(self, reference: str, *, anew: bool = False) -> Image:
        """Return an image, pulled when the engine lacks it; a tag means the same until it is asked for `anew`."""
        if anew or reference not in self._images:
            self._images[reference] = await resolve_image(self._engine, reference)
        return self._images[reference]

    async def guest_volume(self, image: Image) -> str:
        """Fill the guest's volume once; whoever comes meanwhile waits for the same."""
        if self._guest is None or (self._guest.done() and (self._guest.cancelled() or self._guest.exception() is not None)):
            self._guest = asyncio.ensure_future(provide_guest(self._engine, image.id))
        return await asyncio.shield(self._guest)

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
        try:
            found = await self._engine.find("look up a container", f"containers/{held.names.container}/json")
        except B4Error:
            return
        if (found is None or not found["State"]["Running"]) and self._held.get(name) is held:
            held.channel.end()

    async def _forget(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            await held.sandbox.aclose()

    async def _start(self, names: ThreadNames, reference: str, policy: SandboxPolicy, files: Files) -> tuple[GuestSandbox, ExecChannel]:
        image = await self.resolved(reference)
        guest = await self.guest_volume(image)
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
            await self._create(names, body, files)
            return await self._connect(names, image, policy)
        except BaseException:
            # The guest's volume may have been pruned under us: the next start looks at it again.
            self._guest = None
            await asyncio.shield(self._engine.remove_container(names.container))
            raise

    async def _found_runtime(self) -> Runtime:
        if self._known_runtime is None:
            self._known_runtime = await find_runtime(self._engine, self._runtime)
        return self._known_runtime

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

    async def _create(self, names: ThreadNames, body: dict[str, object], files: Files) -> None:
        if files is Files.MADE:
            await self._engine.post("make a volume", "volumes/create", body={"Name": names.volume, "Labels": names.labels()})
        await self._engine.post("make a container", "containers/create", params={"name": names.container}, body=body)
        if files is Files.KEPT:
            await self._check_kept(names)
        await self._engine.start(names.container)

    async def _check_kept(self, names: ThreadNames) -> None:
        """The engine makes a volume that a container names and that is missing; one without our label is such a one."""
        volume = await self._engine.find("look up a volume", f"volumes/{names.volume}")
        if volume is not None and (volume.get("Labels") or {}).get(LABEL_SANDBOX) == names.id:
            return
        await self._engine.remove_container(names.container)
        await self._engine.remove_volume(names.volume)
        raise WorkspaceUnusable(
            thread_id=names.thread_id,
            lifecycle="lost",
            reason="its volume is not on the engine",
            remedy="Delete the thread; its files were removed from outside.",
        )

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
        check = oom_check(client) if policy.resources.memory_mb is not None and Capability.OOM_CAUSE in self._capabilities else None
        return GuestSandbox(client, aclose=_nothing, oom_check=check), channel


async def _nothing() -> None:
    """The container is the thread's, not the connection's."""
