"""Uploaded workspaces: what a new thread may be made from, if whoever created it named an upload."""

from __future__ import annotations

import asyncio
import logging

from b4run.config import Staging
from b4run.errors import WorkspaceUnusable
from b4run.storage.uploads import SqlUploadStore, UploadLimits
from b4run.storage.workspaces import SqlWorkspaceStore
from b4run.workspace import CapturedWorkspace, SourceBundle, SourceFile, create_source_bundle
from b4run.workspace.content import SourceContent, by_file

logger = logging.getLogger("b4run.threads")


def upload_limits(staging: Staging) -> UploadLimits:
    """Return the bounds that an app's configuration sets."""
    each = staging.max_staged_bytes if staging.max_uploader_bytes is None else staging.max_uploader_bytes
    return UploadLimits(staging.max_staged_bytes, each, staging.retention_ms)


class StagedWorkspaces:
    """What threads wait to be made from."""

    def __init__(self, uploads: SqlUploadStore, workspaces: SqlWorkspaceStore) -> None:
        self._uploads = uploads
        self._workspaces = workspaces

    async def of(self, thread_id: str) -> CapturedWorkspace | None:
        """Return the workspace that a thread was created with, every byte checked again; None when it named none.

        Raises:
            WorkspaceUnusable: its bytes are gone, or not what they were.
        """
        reference = await self._uploads.reference(thread_id)
        if reference is None:
            return None
        content = await self._workspaces.source(reference.source_digest)
        bundle = None if content is None else await _bundle(content)
        if bundle is None or bundle.digest != reference.source_digest:
            reason = "the source that it was created with is gone" if bundle is None else "the source that it was created with was changed"
            remedy = "Upload it again, and create another thread."
            raise WorkspaceUnusable(thread_id=thread_id, lifecycle="lost", reason=reason, remedy=remedy)
        return CapturedWorkspace(bundle, reference.environment_links, reference.baseline)


async def _bundle(content: SourceContent) -> SourceBundle | None:
    files: list[SourceFile] = []
    data = bytearray()
    try:
        async for entry, piece, last in by_file(content):
            data += piece
            if last:
                files.append(SourceFile(entry.path, bytes(data), entry.executable))
                data.clear()
    except ValueError:
        return None
    return await asyncio.to_thread(create_source_bundle, files)
