"""The Pods of threads: started, found again, held while they are used, removed."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Any
from weakref import WeakValueDictionary

from b4run.errors import B4Error, PolicyConflict, SandboxUnavailable
from b4run.sandbox.environment import GUEST_PATH, SYSTEM_PATH, sandbox_environment
from b4run.sandbox.guest import GuestClient, GuestSandbox, guest_binary
from b4run.sandbox.guest.channel import ChannelClosed
from b4run.sandbox.guest.client import Timing
from b4run.sandbox.guest.lasting_channel import RESUME_SECONDS, LastingChannel
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.providers.failures import as_unavailable
from b4run.sandbox.providers.kubernetes import controls
from b4run.sandbox.providers.kubernetes.cluster import CLAIMS, PODS, POLICIES, Cluster, ClusterRefused, ClusterUnreachable
from b4run.sandbox.providers.kubernetes.ending import still_waiting_for, why_gone, why_not_started
from b4run.sandbox.providers.kubernetes.exec_stream import ExecStream
from b4run.sandbox.providers.kubernetes.launch import CARRIER, SANDBOX, Launch, claim_body, pod_body, policy_body
from b4run.sandbox.providers.kubernetes.names import ANNOTATION_IDENTITY, ANNOTATION_UNUSED, ThreadNames
from b4run.sandbox.providers.kubernetes.watch import PodWatch

_HELLO_SECONDS = 30.0
_GONE_SECONDS = 60.0
"""Until a removed resource is gone; a Pod that takes longer is removed without its node's consent."""
_GRACE_S = 1
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.02, 0.25
_LOOK_EVERY_S = 0.5
_TIMING = Timing(answer_within=45.0 + RESUME_SECONDS, margin=10.0 + RESUME_SECONDS)
"""A connection that is being made again is not a guest that is silent."""


@dataclass(slots=True)
class _Held:
    names: ThreadNames
    policy: SandboxPolicy
    sandbox: GuestSandbox
    channel: LastingChannel
    uid: str


class Pods:
    """The Pods of one scope that this process holds."""

    def __init__(self, cluster: Cluster, scope: str, launch: Launch, startup_s: float) -> None:
        self._cluster = cluster
        self._launch = launch
        self._startup_s = startup_s
        self._paths: dict[str, str] = {}
        self._held: dict[str, _Held] = {}
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._watch = PodWatch(cluster, scope, self._changed, self._look_after_gap)
        self._looks: set[asyncio.Task[None]] = set()

    async def acquire(self, names: ThreadNames, policy: SandboxPolicy) -> GuestSandbox:
        """Return the sandbox: its running Pod, or a new one on its claim.

        Raises:
            SandboxUnavailable: it cannot be made; says what to do.
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
                self._held[names.id] = held = await self._start(names, policy)
            self._watch.start()
            return held.sandbox

    async def release(self, names: ThreadNames) -> None:
        """Remove the Pod and its policy; keep the claim."""
        async with self._lock(names.id):
            await self._forget(names.id)
            await self._remove_pod(names)
            # Until the Pod is gone its network stays closed.
            await self._cluster.delete(POLICIES, names.policy)

    async def remove_claim(self, names: ThreadNames) -> None:
        """Remove the claim, and wait until it is gone."""
        await self._cluster.delete(CLAIMS, names.claim)
        await self._gone(CLAIMS, names.claim)

    async def aclose(self) -> None:
        """Release everything held."""
        try:
            results = await asyncio.gather(*(self.release(held.names) for held in list(self._held.values())), return_exceptions=True)
        finally:
            await self._watch.aclose()
            for look in self._looks:
                look.cancel()
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise failures[0]

    def _lock(self, name: str) -> asyncio.Lock:
        """One at a time per thread; kept only while somebody uses it."""
        return self._locks.setdefault(name, asyncio.Lock())

    # What the cluster tells

    def _changed(self, name: str, pod: dict[str, Any] | None) -> None:
        held = self._held.get(name)
        if held is None or (pod is None and held.sandbox.lost):
            return
        if gone := why_gone(pod, held.uid, held.policy.resources.memory_mb):
            held.channel.end(gone)

    def _look_after_gap(self) -> None:
        """Deaths before now may not have been told."""
        for name in self._held:
            look = asyncio.create_task(self._look(name))
            self._looks.add(look)
            look.add_done_callback(self._looks.discard)

    async def _look(self, name: str) -> None:
        held = self._held[name]
        try:
            pod = await self._cluster.find(PODS, held.names.pod)
        except B4Error:
            return
        if self._held.get(name) is held:
            self._changed(name, pod)

    async def _forget(self, name: str) -> None:
        held = self._held.pop(name, None)
        if held is not None:
            await held.sandbox.aclose()

    # Starting

    async def _start(self, names: ThreadNames, policy: SandboxPolicy) -> _Held:
        until = time.monotonic() + self._startup_s
        body = pod_body(names, policy, self._launch)
        found = await self._usable(names, body["metadata"]["annotations"][ANNOTATION_IDENTITY])
        if found is not None:
            try:
                return await self._enter(names, policy, found["metadata"]["uid"], until)
            except SandboxUnavailable:
                # Its guest is gone, or no process can be started in it any more.
                await self._remove_pod(names)
        try:
            await self._provide_claim(names, policy)
            await self._provide_policy(names, policy)
            made = await self._cluster.create(PODS, body)
            if made is None:
                # Another process made it meanwhile.
                made = await self._cluster.find(PODS, names.pod)
            if made is None:
                raise SandboxUnavailable(thread_id=names.thread_id, reason="its Pod was removed while it started")
            return await self._enter(names, policy, made["metadata"]["uid"], until)
        except BaseException:
            await asyncio.shield(self._remove_pod(names))
            raise

    async def _usable(self, names: ThreadNames, identity: str) -> dict[str, Any] | None:
        """Return the thread's Pod if it lives and has these settings; any other is removed."""
        pod = await self._cluster.find(PODS, names.pod)
        if pod is None:
            return None
        same = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_IDENTITY) == identity
        if same and why_gone(pod, pod["metadata"]["uid"], None) is None and why_not_started(pod) is None:
            return pod
        await self._remove_pod(names)
        return None

    async def _provide_claim(self, names: ThreadNames, policy: SandboxPolicy) -> None:
        claim = await self._cluster.create(CLAIMS, claim_body(names, policy, self._launch))
        if claim is not None:
            return
        claim = await self._cluster.find(CLAIMS, names.claim)
        if claim is None or claim["metadata"].get("deletionTimestamp"):
            await self._gone(CLAIMS, names.claim)
            await self._cluster.create(CLAIMS, claim_body(names, policy, self._launch))
        elif ANNOTATION_UNUSED in (claim["metadata"].get("annotations") or {}):
            await self._cluster.annotate(CLAIMS, names.claim, {ANNOTATION_UNUSED: None})

    async def _provide_policy(self, names: ThreadNames, policy: SandboxPolicy) -> None:
        """The NetworkPolicy stands before its Pod; one of other settings is replaced."""
        body = policy_body(names, policy)
        if body is None:
            await self._cluster.delete(POLICIES, names.policy)
        elif await self._cluster.create(POLICIES, body) is None:
            await self._cluster.replace(POLICIES, names.policy, body)

    async def _enter(self, names: ThreadNames, policy: SandboxPolicy, uid: str, until: float) -> _Held:
        """Bring the guest into the Pod, unless it is there, and connect to it as soon as it answers."""
        pause, looked, installed = _FIRST_PAUSE_S, time.monotonic(), False
        while True:
            try:
                installed = installed or await self._install(names)
                return await self._connect(names, policy, uid)
            except (ClusterRefused, ClusterUnreachable, ChannelClosed):
                # Too early, or never: the Pod's own state knows.
                await asyncio.sleep(pause)
                pause = min(1.5 * pause, _LONGEST_PAUSE_S)
            now = time.monotonic()
            if now - looked >= _LOOK_EVERY_S or now > until:
                looked = now
                pod = await self._cluster.find(PODS, names.pod)
                if reason := why_not_started(pod):
                    raise SandboxUnavailable(thread_id=names.thread_id, reason=reason)
                if now > until:
                    reason = f"it did not start within {self._startup_s:g} s: {still_waiting_for(pod)}"
                    raise SandboxUnavailable(thread_id=names.thread_id, reason=reason)

    async def _install(self, names: ThreadNames) -> bool:
        """Send the guest to the container that takes it in. Whether it is in, or on its way from an image, the next step shows."""
        if self._launch.guest_image is not None:
            return True
        data = guest_binary().read_bytes()
        draft = f"{GUEST_PATH}.$$"
        script = f"head -c {len(data)} > {draft} && chmod 555 {draft} && mv {draft} {GUEST_PATH}"
        try:
            await self._cluster.run(names.pod, CARRIER, ["/bin/sh", "-c", script], stdin=data)
        except ClusterRefused:
            pod = await self._cluster.find(PODS, names.pod)
            statuses = ((pod or {}).get("status") or {}).get("containerStatuses") or ()
            if any(status.get("name") == CARRIER and (status.get("state") or {}).get("terminated") for status in statuses):
                return True
            raise
        return True

    async def _connect(self, names: ThreadNames, policy: SandboxPolicy, uid: str) -> _Held:
        environment = sandbox_environment(policy.env, path=await self._image_path(names))

        async def dial() -> ExecStream:
            try:
                return await self._cluster.exec(names.pod, SANDBOX, [GUEST_PATH, "connect", "--timeout-ms", "2000", "--lasting"])
            except B4Error as error:
                raise ChannelClosed(error.message) from error

        async def verdict() -> ChannelClosed | None:
            try:
                return why_gone(await self._cluster.find(PODS, names.pod), uid, policy.resources.memory_mb)
            except B4Error:
                return None

        channel = await LastingChannel.open(dial, verdict)
        client = await GuestClient.connect(
            channel, thread_id=names.thread_id, environment=environment, hello_deadline_s=_HELLO_SECONDS, timing=_TIMING
        )
        return _Held(names, policy, GuestSandbox(client, aclose=_nothing), channel, uid)

    async def _image_path(self, names: ThreadNames) -> str:
        """Return the image's own PATH, asked of the first of its Pods."""
        image = self._launch.image
        if image not in self._paths:
            said = await self._cluster.run(names.pod, SANDBOX, ["/bin/sh", "-c", 'printf %s "$PATH"'])
            self._paths[image] = said.decode(errors="replace").strip() or SYSTEM_PATH
        return self._paths[image]

    # Removing

    async def _remove_pod(self, names: ThreadNames) -> None:
        await self._cluster.delete(PODS, names.pod, grace_s=_GRACE_S)
        try:
            await self._gone(PODS, names.pod)
        except SandboxUnavailable:
            # Its node does not answer. What may still run there keeps the claim attached, and nothing else of the thread.
            await self._cluster.delete(PODS, names.pod, grace_s=0)

    async def _gone(self, kind: str, name: str) -> None:
        until, pause = time.monotonic() + _GONE_SECONDS, _FIRST_PAUSE_S
        while await self._cluster.find(kind, name) is not None:
            if time.monotonic() > until:
                raise SandboxUnavailable(thread_id=name, reason=f"{name} was not gone within {_GONE_SECONDS:g} s")
            await asyncio.sleep(pause)
            pause = min(1.5 * pause, _LONGEST_PAUSE_S)


async def _nothing() -> None:
    """The Pod is the thread's, not the connection's."""
