"""Kubernetes keeps the whole contract."""

from __future__ import annotations

import asyncio

from b4run.sandbox.contract import SandboxHandle
from b4run.sandbox.providers.kubernetes import kubernetes_sandbox
from b4run.sandbox.scope import resource_id
from b4run.sandbox.testing import run_provider_conformance

from .kubernetes_cluster import IMAGE, NAMESPACE, SCOPE, kubectl, needs_kubernetes


async def kill_guest(sandbox: SandboxHandle) -> None:
    pod = f"b4-sbx-{resource_id(SCOPE, sandbox.thread_id)}"
    await asyncio.to_thread(kubectl, "delete", "pod", pod, "-n", NAMESPACE, "--grace-period=1")


TestKubernetes = needs_kubernetes(
    run_provider_conformance(
        name="kubernetes",
        make_provider=lambda: kubernetes_sandbox(scope=SCOPE, image=IMAGE, namespace=NAMESPACE),
        kill_guest=kill_guest,
        at_once=8,
    )
)
