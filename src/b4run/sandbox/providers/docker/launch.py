"""From a policy to the body of one `POST /containers/create`. Nothing is asked of an engine here, so every field can be asserted."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from b4run.sandbox.contract import WORKSPACE_ROOT
from b4run.sandbox.environment import GUEST_PATH, PRIVATE_HOME
from b4run.sandbox.policy import Deny, SandboxPolicy, User
from b4run.sandbox.providers.containers import MIB, runtime_user, scratch_bytes
from b4run.sandbox.providers.docker.names import LABEL_IDENTITY, ThreadNames

GVISOR_TASKS_PER_PROCESS = 32
"""Host threads that gVisor's kernel may use for one process inside (measured: 5.7 on its ptrace platform)."""
GVISOR_OWN_TASKS = 512
GVISOR_OWN_MEMORY = 64 * MIB
"""What gVisor's kernel itself takes of a container's memory limit."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """One of the engine's runtimes; None is the engine's default."""

    name: str | None = None
    gvisor: bool = False
    """It has a kernel of its own, which counts processes inside, while the engine's limits count the kernel's own threads and memory."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image as the engine resolved it: nothing later depends on a tag that may move."""

    reference: str
    id: str
    """The immutable identity, `sha256:…`."""
    environment: tuple[str, ...]
    user: str
    """The image's own user, as its author wrote it; empty is root."""

    @property
    def path(self) -> str | None:
        return next((entry.removeprefix("PATH=") for entry in self.environment if entry.startswith("PATH=")), None)


def container_body(
    names: ThreadNames, image: Image, owned_image: str, guest_volume: str, policy: SandboxPolicy, runtime: Runtime
) -> dict[str, Any]:
    """Return the body that creates the session container of one thread."""
    user = runtime_user(policy)
    body: dict[str, Any] = {
        "Image": owned_image,
        "Entrypoint": [GUEST_PATH],
        "Cmd": ["serve", "--root", WORKSPACE_ROOT, "--listen"],
        "User": image.user if user is None else f"{user.uid}:{user.gid}",
        "WorkingDir": WORKSPACE_ROOT,
        "Hostname": "sandbox",
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": names.labels(),
        "HostConfig": _host_config(names, guest_volume, policy, user, runtime),
    }
    body["Labels"] |= {LABEL_IDENTITY: launch_identity(image, body)}
    return body


def _host_config(names: ThreadNames, guest_volume: str, policy: SandboxPolicy, user: User | None, runtime: Runtime) -> dict[str, Any]:
    security, resources = policy.security, policy.resources
    size = scratch_bytes(policy)
    owner = "" if user is None else f",uid={user.uid},gid={user.gid}"
    host: dict[str, Any] = {
        "Init": True,
        "NetworkMode": "none" if isinstance(policy.network, Deny) else "bridge",
        "PidsLimit": security.pids_limit,
        "ReadonlyRootfs": security.read_only_root_filesystem,
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},
        "RestartPolicy": {"Name": "no"},
        "Mounts": [
            {"Type": "volume", "Source": names.volume, "Target": WORKSPACE_ROOT},
            {"Type": "volume", "Source": guest_volume, "Target": GUEST_PATH.rpartition("/")[0], "ReadOnly": True},
        ],
        "Tmpfs": {
            "/tmp": f"rw,exec,nosuid,nodev,mode=1777,size={size}",
            # Older runtimes give it the mode that the image's own folder has, so the user must own it.
            "/run": f"rw,exec,nosuid,nodev,mode=0755,size={size}{owner}",
            PRIVATE_HOME: f"rw,exec,nosuid,nodev,mode=0700,size={size}{owner}",
        },
    }
    if security.drop_all_capabilities:
        host["CapDrop"] = ["ALL"]
    if security.no_new_privileges:
        host["SecurityOpt"] = ["no-new-privileges"]
    if resources.memory_mb is not None:
        host["Memory"] = host["MemorySwap"] = resources.memory_mb * MIB + (GVISOR_OWN_MEMORY if runtime.gvisor else 0)
    if resources.cpus is not None:
        host["NanoCpus"] = round(resources.cpus * 1e9)
    if runtime.name is not None:
        host["Runtime"] = runtime.name
    if runtime.gvisor:
        host["PidsLimit"] = security.pids_limit * GVISOR_TASKS_PER_PROCESS + GVISOR_OWN_TASKS
        host["Ulimits"] = [{"Name": "nproc", "Soft": security.pids_limit, "Hard": security.pids_limit}]
    return host


def launch_identity(image: Image, body: dict[str, Any]) -> str:
    """Digest of the image and every launch setting: a container with another one is replaced. The environment and the
    time limit belong to the handle, not to the container.
    """
    settings = {key: value for key, value in body.items() if key not in ("Labels", "Image")}
    text = json.dumps(["b4-sandbox-identity-v1", image.id, settings], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
