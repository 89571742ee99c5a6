"""A provider on a real cluster; what a test made is removed after it."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from b4run.sandbox.providers.kubernetes import KubernetesProvider, kubernetes_sandbox
from b4run.sandbox.providers.kubernetes.names import scope_selector

from ...kubernetes_cluster import IMAGE, NAMESPACE, kubectl

Make = Callable[..., KubernetesProvider]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Make providers of one scope of this test's; at the end its Pods, claims and policies are removed."""
    scope = f"test-{uuid.uuid4().hex[:12]}"
    made: list[KubernetesProvider] = []

    def provider(**options: Any) -> KubernetesProvider:
        made.append(kubernetes_sandbox(**{"scope": scope, "image": IMAGE, "namespace": NAMESPACE} | options))
        return made[-1]

    yield provider
    for one in made:
        await one.aclose()
    kubectl("delete", "pods,pvc,networkpolicies", "-n", NAMESPACE, "-l", scope_selector(scope), "--grace-period=1", "--wait=false")
