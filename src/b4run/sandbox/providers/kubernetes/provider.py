"""The Kubernetes provider: one Pod for each thread's compute, one claim for its files, one NetworkPolicy for its network."""

from __future__ import annotations

from collections.abc import Sequence

from b4run.errors import B4Error, ConfigurationError, SandboxUnavailable
from b4run.sandbox.contract import Capability, Preflight, SandboxRecord
from b4run.sandbox.guest import GuestSandbox
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.providers.kubernetes import controls
from b4run.sandbox.providers.kubernetes.cluster import CLAIMS, PODS, Cluster
from b4run.sandbox.providers.kubernetes.compute import Pods
from b4run.sandbox.providers.kubernetes.launch import Launch
from b4run.sandbox.providers.kubernetes.names import LABEL_THREAD, ThreadNames, scope_selector, thread_of
from b4run.sandbox.scope import check_scope

NAMESPACE = "b4-sandboxes"
STARTUP_TIMEOUT_MS = 60_000


class KubernetesProvider:
    """Sandboxes as Pods of a cluster. Made by `kubernetes_sandbox`.

    Pods outlive the provider: another process with the same scope finds them again by name and label. `aclose` removes those that this
    provider holds.
    """

    name = "kubernetes"
    capabilities: frozenset[Capability] = controls.CAPABILITIES

    def __init__(self, *, scope: str, launch: Launch, cluster: Cluster, startup_timeout_ms: int = STARTUP_TIMEOUT_MS) -> None:
        self._scope = check_scope(scope)
        self._launch = launch
        self._cluster = cluster
        self._pods = Pods(cluster, self._scope, launch, startup_timeout_ms / 1_000)

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> GuestSandbox:
        """Return the thread's sandbox: its running Pod, or a new one on its claim.

        Raises:
            SandboxUnavailable: it cannot be made; says what to do.
            PolicyConflict: it is held here with other launch settings.
        """
        return await self._pods.acquire(ThreadNames(self._scope, thread_id), policy)

    async def release(self, thread_id: str) -> None:
        """Remove the thread's Pod and its NetworkPolicy; keep its claim.

        Raises:
            SandboxUnavailable: something of it cannot be removed.
        """
        names = ThreadNames(self._scope, thread_id)
        try:
            await self._pods.release(names)
        except B4Error as error:
            raise SandboxUnavailable(thread_id=thread_id, reason=f"it was not released ({error.message})") from error

    async def destroy(self, thread_id: str) -> None:
        """Remove the thread's Pod, NetworkPolicy and claim; return when they are gone.

        Raises:
            SandboxUnavailable: something of it cannot be removed.
        """
        names = ThreadNames(self._scope, thread_id)
        try:
            await self._pods.release(names)
            await self._pods.remove_claim(names)
        except B4Error as error:
            raise SandboxUnavailable(thread_id=thread_id, reason=f"it was not removed ({error.message})") from error

    async def aclose(self) -> None:
        """Release every thread that this provider holds, and close the connection to the cluster."""
        try:
            await self._pods.aclose()
        finally:
            await self._cluster.aclose()

    async def list_sandboxes(self) -> Sequence[SandboxRecord]:
        """Return the threads of this scope that the cluster has a claim of."""
        selector = scope_selector(self._scope)
        running = {
            pod["metadata"]["labels"].get(LABEL_THREAD)
            for pod in await self._cluster.list(PODS, selector)
            if (pod.get("status") or {}).get("phase") == "Running"
        }
        records = []
        for claim in await self._cluster.list(CLAIMS, selector):
            id = claim["metadata"]["labels"].get(LABEL_THREAD)
            if id is not None:
                records.append(SandboxRecord(id, thread_of(claim), id in running))
        return sorted(records, key=lambda record: record.resource_id)

    async def preflight(self, policy: SandboxPolicy) -> Preflight:
        """Ask the cluster whether it allows what `policy` needs, and start a sandbox to see that it is so."""
        from b4run.sandbox.providers.kubernetes.preflight import examine

        return await examine(self, self._cluster, policy)


def kubernetes_sandbox(
    *,
    scope: str,
    image: str,
    namespace: str = NAMESPACE,
    storage_class: str | None = None,
    startup_timeout_ms: int = STARTUP_TIMEOUT_MS,
    runtime_class: str | None = None,
    guest_image: str | None = None,
    kubeconfig: str | None = None,
    context: str | None = None,
) -> KubernetesProvider:
    """Return the provider of sandboxes on a Kubernetes cluster.

    `scope` keeps the threads of several apps in one namespace apart. `image` is what sandboxes start from; it needs `/bin/sh`, and
    `head`, `chmod` and `mv` unless `guest_image` names an image that brings the guest at `/b4-guest`. `storage_class` None is the
    cluster's default. `startup_timeout_ms`, 1,000 to 3,600,000, bounds the start of a Pod. `runtime_class` names one of the cluster's,
    such as `gvisor`. The credentials are those of the Pod that the app runs in, unless `kubeconfig`, `context` or `KUBECONFIG` say
    otherwise.

    Raises:
        ConfigurationError: an option is blank or out of its range.
    """
    for key, value in {"image": image, "namespace": namespace}.items():
        if not isinstance(value, str) or not value.strip():
            raise ConfigurationError(reason=f"`{key}` must not be blank")
    optional = {"storage_class": storage_class, "runtime_class": runtime_class, "guest_image": guest_image}
    for key, given in (optional | {"kubeconfig": kubeconfig, "context": context}).items():
        if given is not None and (not isinstance(given, str) or not given.strip()):
            raise ConfigurationError(reason=f"`{key}` must not be blank; leave it out instead")
    if type(startup_timeout_ms) is not int or not 1_000 <= startup_timeout_ms <= 3_600_000:
        raise ConfigurationError(reason="`startup_timeout_ms` must be a number from 1,000 to 3,600,000")
    launch = Launch(image.strip(), guest_image, storage_class, runtime_class)
    cluster = Cluster(namespace, kubeconfig, context)
    return KubernetesProvider(scope=scope, launch=launch, cluster=cluster, startup_timeout_ms=startup_timeout_ms)
