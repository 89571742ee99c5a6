"""The cluster that tests use: what `KUBECONFIG` or the current context names, if `B4_TEST_KUBERNETES_IMAGE` says that they may.

The images must be on its nodes; tests pull nothing. A cluster that nobody named for tests is not touched.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
from typing import Any

import pytest

IMAGE = os.environ.get("B4_TEST_KUBERNETES_IMAGE", "python:3.12-bookworm")
NAMESPACE = os.environ.get("B4_TEST_KUBERNETES_NAMESPACE", "b4-tests")
SCOPE = "b4-tests"
_RESTRICTED = {
    "pod-security.kubernetes.io/enforce": "restricted",
    "pod-security.kubernetes.io/enforce-version": "latest",
}


@functools.cache
def absence() -> str | None:
    """Return why there is no cluster to test with, or None; makes the namespace, with Pod Security `restricted`."""
    if "B4_TEST_KUBERNETES_IMAGE" not in os.environ:
        return "B4_TEST_KUBERNETES_IMAGE names no image on the nodes of a cluster that is there for tests"
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
    absence() is not None and not os.environ.get("B4_TEST_SMOKE_E2E"), reason=f"{absence()}; with B4_TEST_SMOKE_E2E=1 this is a failure"
)
