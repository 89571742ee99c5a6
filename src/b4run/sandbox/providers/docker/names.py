"""Names and labels of everything the Docker provider creates; the engine is searched by them after a crash."""

from __future__ import annotations

from b4run.sandbox.scope import resource_id

LABEL_SANDBOX = "b4.sandbox"
"""On session containers and workspace volumes: the resource id of their thread."""
LABEL_IDENTITY = "b4.sandbox.identity"
"""On session containers: the digest of image and launch settings."""
LABEL_SCOPE = "b4.sandbox.scope"
"""On containers and volumes: the scope, so that a provider lists its own only."""
LABEL_THREAD = "b4.sandbox.thread"
LABEL_OPERATION = "b4.workspace.operation"
"""On what belongs to a managed workspace: the id of its creation."""
LABEL_OWNED_IMAGE = "b4.sandbox.owned-image"
"""On derived images: the id of the image that they add an owned workspace folder to."""
LABEL_READER = "b4.sandbox.reader"
"""On readers' containers: the resource id of the thread whose files they read."""
LABEL_GUEST = "b4.guest"
"""On guest volumes: the digest of the guest they hold."""


class ThreadNames:
    """The names of one thread's resources. A managed workspace brings an `id` and its creation's `operation_id`."""

    def __init__(self, scope: str, thread_id: str, *, id: str | None = None, operation_id: str | None = None) -> None:
        self.scope = scope
        self.thread_id = thread_id
        self.operation_id = operation_id
        self.id = id or resource_id(scope, thread_id)
        self.container = f"b4-sbx-{self.id}"
        self.volume = f"b4-sbx-vol-{self.id}"

    def labels(self) -> dict[str, str]:
        managed = {LABEL_OPERATION: self.operation_id} if self.operation_id else {}
        return {LABEL_SANDBOX: self.id, LABEL_SCOPE: self.scope, LABEL_THREAD: self.thread_id} | managed


def guest_volume_name(digest: str) -> str:
    return f"b4-guest-{digest[:40]}"
