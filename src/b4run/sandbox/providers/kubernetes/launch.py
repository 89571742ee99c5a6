"""From a policy to the manifests of one thread. Nothing is asked of a cluster here, so every field can be asserted."""

from __future__ import annotations

import hashlib
import ipaddress
import json
import math
from dataclasses import dataclass
from typing import Any

from b4run.sandbox.contract import WORKSPACE_ROOT
from b4run.sandbox.environment import GUEST_PATH, PRIVATE_HOME
from b4run.sandbox.policy import Deny, SandboxPolicy, User
from b4run.sandbox.providers.containers import MIB, runtime_user, scratch_bytes
from b4run.sandbox.providers.kubernetes.names import ANNOTATION_IDENTITY, LABEL_THREAD, ThreadNames

SANDBOX = "sandbox"
"""The container that jobs run in."""
CARRIER = "guest"
"""The container that takes the guest in and ends."""
GUEST_IN_IMAGE = "/b4-guest"
"""Where an image that brings the guest has it."""
_GUEST_FOLDER = GUEST_PATH.rpartition("/")[0]
_DEFAULT_DISK_GB = 1
_CARRIER_MEMORY = 64 * MIB
_GUEST_ROOM = 64 * MIB

_UNTIL_INSTALLED = (
    f"tries=0; until [ -x {GUEST_PATH} ]; do tries=$((tries + 1)); [ $tries -lt 3000 ] || exit 78; sleep 0.04 2>/dev/null || sleep 1; done"
)
"""Who waits for a guest that never comes ends by itself: its host may have died."""


@dataclass(frozen=True, slots=True)
class Launch:
    """What all Pods of a provider have in common."""

    image: str
    guest_image: str | None = None
    storage_class: str | None = None
    runtime_class: str | None = None


def claim_body(names: ThreadNames, policy: SandboxPolicy, launch: Launch) -> dict[str, Any]:
    """Return the claim of a thread's files."""
    spec: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": f"{math.ceil((policy.resources.disk_gb or _DEFAULT_DISK_GB) * 1_024)}Mi"}},
    }
    if launch.storage_class is not None:
        spec["storageClassName"] = launch.storage_class
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": names.metadata(names.claim), "spec": spec}


def policy_body(names: ThreadNames, policy: SandboxPolicy) -> dict[str, Any] | None:
    """Return the thread's NetworkPolicy; None when its network is open without exception."""
    network = policy.network
    spec: dict[str, Any] = {"podSelector": {"matchLabels": {LABEL_THREAD: names.id}}}
    if isinstance(network, Deny):
        # Both directions, in both families: what is not listed is closed.
        spec |= {"policyTypes": ["Ingress", "Egress"], "ingress": [], "egress": _allowed(network)}
    elif network.denylist:
        spec |= {"policyTypes": ["Egress"], "egress": [{"to": [{"ipBlock": block} for block in _all_but(network.denylist)]}]}
    else:
        return None
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": names.metadata(names.policy), "spec": spec}


def _allowed(network: Deny) -> list[dict[str, Any]]:
    """The listed networks, and with them the cluster's DNS; without any, no names either, which would carry data out."""
    if not network.allowlist:
        return []
    resolver = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}},
        "podSelector": {"matchLabels": {"k8s-app": "kube-dns"}},
    }
    dns = {"to": [resolver], "ports": [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]}
    return [dns, {"to": [{"ipBlock": {"cidr": str(ipaddress.ip_network(entry))}} for entry in network.allowlist]}]


def _all_but(denylist: tuple[str, ...]) -> list[dict[str, Any]]:
    networks = [ipaddress.ip_network(entry) for entry in denylist]
    blocks: list[dict[str, Any]] = []
    for version, everything in ((4, "0.0.0.0/0"), (6, "::/0")):
        without = [str(network) for network in networks if network.version == version]
        blocks.append({"cidr": everything} | ({"except": without} if without else {}))
    return blocks


def pod_body(names: ThreadNames, policy: SandboxPolicy, launch: Launch) -> dict[str, Any]:
    """Return the Pod of a thread's compute, admitted under Pod Security `restricted` unless the policy loosens it."""
    user = runtime_user(policy)
    # Tmpfs, as elsewhere: a full one refuses a write, where a full disk would evict the Pod.
    scratch = {"medium": "Memory", "sizeLimit": str(scratch_bytes(policy))}
    spec: dict[str, Any] = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "hostname": "sandbox",
        "terminationGracePeriodSeconds": 1,
        "securityContext": _pod_security(policy, user),
        "containers": [_carrier(policy, launch), _sandbox(policy, launch)],
        "volumes": [
            {"name": "workspace", "persistentVolumeClaim": {"claimName": names.claim}},
            {"name": "guest", "emptyDir": {"sizeLimit": str(_GUEST_ROOM)}},
            {"name": "tmp", "emptyDir": scratch},
            {"name": "run", "emptyDir": scratch},
            {"name": "home", "emptyDir": scratch},
        ],
    }
    if launch.runtime_class is not None:
        spec["runtimeClassName"] = launch.runtime_class
    metadata = names.metadata(names.pod)
    metadata["annotations"][ANNOTATION_IDENTITY] = _identity(spec, policy)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _pod_security(policy: SandboxPolicy, user: User | None) -> dict[str, Any]:
    context: dict[str, Any] = {"seccompProfile": {"type": "RuntimeDefault"}}
    if user is not None:
        context |= {"runAsUser": user.uid, "runAsGroup": user.gid, "runAsNonRoot": user.uid != 0}
        context |= {"fsGroup": user.gid, "fsGroupChangePolicy": "OnRootMismatch"}
    return context


def _container_security(policy: SandboxPolicy) -> dict[str, Any]:
    security = policy.security
    context: dict[str, Any] = {
        "privileged": False,
        "allowPrivilegeEscalation": not security.no_new_privileges,
        "readOnlyRootFilesystem": security.read_only_root_filesystem,
    }
    if security.drop_all_capabilities:
        context["capabilities"] = {"drop": ["ALL"]}
    return context


def _carrier(policy: SandboxPolicy, launch: Launch) -> dict[str, Any]:
    """Takes the guest in, beside the sandbox instead of before it: an init container would cost a second, the kubelet's round."""
    installs = [GUEST_IN_IMAGE, "install", GUEST_PATH]
    command = ["/bin/sh", "-c", _UNTIL_INSTALLED] if launch.guest_image is None else installs
    return {
        "name": CARRIER,
        "image": launch.guest_image or launch.image,
        "command": command,
        "securityContext": _container_security(policy) | {"readOnlyRootFilesystem": True},
        "resources": {"requests": {"cpu": "0", "memory": "0"}, "limits": {"cpu": "1", "memory": str(_CARRIER_MEMORY)}},
        "volumeMounts": [{"name": "guest", "mountPath": _GUEST_FOLDER}],
    }


def _sandbox(policy: SandboxPolicy, launch: Launch) -> dict[str, Any]:
    serve = f"exec {GUEST_PATH} serve --root {WORKSPACE_ROOT} --listen"
    if isinstance(policy.network, Deny):
        # Nobody is listened to before the cluster has closed the network, as seen from inside.
        serve += ' --closed-to "$KUBERNETES_SERVICE_HOST" "$KUBERNETES_SERVICE_PORT"'
    resources = policy.resources
    limits: dict[str, str] = {}
    if resources.memory_mb is not None:
        limits["memory"] = f"{resources.memory_mb}Mi"
    if resources.cpus is not None:
        limits["cpu"] = f"{max(1, round(resources.cpus * 1_000))}m"
    return {
        "name": SANDBOX,
        "image": launch.image,
        "command": ["/bin/sh", "-c", f"{_UNTIL_INSTALLED}; {serve}"],
        "workingDir": WORKSPACE_ROOT,
        "securityContext": _container_security(policy),
        "resources": {"limits": limits} if limits else {},
        "volumeMounts": [
            {"name": "workspace", "mountPath": WORKSPACE_ROOT},
            {"name": "guest", "mountPath": _GUEST_FOLDER, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "run", "mountPath": "/run"},
            {"name": "home", "mountPath": PRIVATE_HOME},
        ],
    }


def _identity(spec: dict[str, Any], policy: SandboxPolicy) -> str:
    """Digest of every launch setting; the environment and the time limit belong to the handle, not to the Pod."""
    network = policy.network.model_dump(mode="json")
    text = json.dumps(["b4-sandbox-identity-v1", spec, network], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
