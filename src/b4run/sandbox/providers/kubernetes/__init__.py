"""Sandboxes as Pods of a Kubernetes cluster. Needs the extra `b4run[kubernetes]`."""

from __future__ import annotations

try:
    import kubernetes_asyncio as _  # noqa: F401 - looked for here, so that its absence is told in one place
except ImportError as error:
    raise ImportError("kubernetes_sandbox needs the package kubernetes-asyncio: pip install 'b4run[kubernetes]'") from error

from b4run.sandbox.providers.kubernetes.provider import KubernetesProvider, kubernetes_sandbox

__all__ = ["KubernetesProvider", "kubernetes_sandbox"]
