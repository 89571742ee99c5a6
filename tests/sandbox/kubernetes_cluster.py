"""The cluster that tests use: whatever `KUBECONFIG` or the current context names. The images must be on its nodes; tests pull nothing."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from typing import Any

import pytest

IMAGE = os.environ.get("B4_TEST_KUBERNETES_IMAGE", "python:3.12-bookworm")
BUSYBOX = os.environ.get("B4_TEST_KUBERNETES_BUSYBOX", "busybox:stable-musl")
NAMESPACE = os.environ.get("B4_TEST_KUBERNETES_NAMESPACE", "b4-tests")
SCOPE = "b4-tests"
_RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}


@functools.cache
def absence() -> str | None:
    """Return why there is no cluster to test with, or None; makes the namespace, with Pod Security `restricted`."""
    manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": _RESTRICTED}}
    try:
        kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    except subprocess.CalledProcessError as error:
        return f"`kubectl apply` fails: {error.stderr.strip()[-200:]}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"the kubectl command does not work ({type(error).__name__})"
    return None


def kubectl(*arguments: str, stdin: str | None = None) -> str:
    """Run the cluster's own command, for what only it can do."""
    command = ["kubectl", "--request-timeout=30s", *arguments]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=90, check=True).stdout.strip()


def find(kind: str, name: str | None = None, *, selector: str | None = None) -> Any:
    """Return a resource of the tests' namespace, None where there is none; with `selector` all that it names."""
    arguments = ["get", kind, "-n", NAMESPACE, "-o", "json", "--ignore-not-found"]
    text = kubectl(*arguments, *([name] if name else []), *(["-l", selector] if selector else []))
    found = json.loads(text) if text else None
    return found["items"] if selector is not None and found is not None else found


needs_kubernetes = pytest.mark.skipif(
    not os.environ.get("B4_TEST_SMOKE_E2E") and absence() is not None,
    reason="no Kubernetes cluster answers `kubectl`; with B4_TEST_SMOKE_E2E=1 this is a failure",
)
