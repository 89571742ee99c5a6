"""Names and labels of everything the Kubernetes provider creates; the cluster is searched by them after a crash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from b4run.sandbox.scope import resource_id

LABEL_MANAGED = "app.kubernetes.io/managed-by"
MANAGER = "b4"
LABEL_THREAD = "b4.run/thread"
"""On everything of a thread: its resource id."""
LABEL_SCOPE = "b4.run/scope"
"""On everything: a digest of the scope, since a scope may hold what a label may not."""
ANNOTATION_THREAD = "b4.run/thread-id"
"""On claims: the thread's own id, as JSON in ASCII."""
ANNOTATION_IDENTITY = "b4.run/identity"
"""On Pods: the digest of their launch settings; a Pod with another one is replaced."""
ANNOTATION_UNUSED = "b4.run/unused-since"
"""On claims: when the reaper first found them unused, in seconds since 1970; use removes it."""


class ThreadNames:
    """The names of one thread's resources."""

    def __init__(self, scope: str, thread_id: str) -> None:
        self.scope = scope
        self.thread_id = thread_id
        self.id = resource_id(scope, thread_id)
        self.pod = f"b4-sbx-{self.id}"
        self.claim = f"b4-sbx-vol-{self.id}"
        self.policy = f"b4-sbx-net-{self.id}"

    def labels(self) -> dict[str, str]:
        return {LABEL_MANAGED: MANAGER, LABEL_SCOPE: scope_label(self.scope), LABEL_THREAD: self.id}

    def metadata(self, name: str) -> dict[str, Any]:
        return {"name": name, "labels": self.labels(), "annotations": {ANNOTATION_THREAD: json.dumps(self.thread_id)}}


def scope_label(scope: str) -> str:
    """Return the label value that stands for a scope."""
    return hashlib.sha256(scope.encode(errors="surrogatepass")).hexdigest()[:40]


def scope_selector(scope: str) -> str:
    """Return the selector of everything of a scope."""
    return f"{LABEL_MANAGED}={MANAGER},{LABEL_SCOPE}={scope_label(scope)}"


def thread_of(resource: dict[str, Any]) -> str | None:
    """Return the thread id that a resource says it is of; None when it says nothing usable."""
    try:
        said = json.loads((resource["metadata"].get("annotations") or {})[ANNOTATION_THREAD])
    except (KeyError, ValueError):
        return None
    return said if isinstance(said, str) else None
