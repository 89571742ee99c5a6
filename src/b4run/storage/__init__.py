"""What an app keeps between processes, in SQLite under its `.b4/` or in another database.

`async with open_storage(app_storage_url(root)) as storage: await storage.grants.list()`. Nothing heavy is imported before that.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from b4run.storage.database import Storage, app_storage_url, open_storage, state_folder
    from b4run.storage.grants import SqlGrantStore
    from b4run.storage.workspaces import RecordChanged, RecordState, SqlWorkspaceStore, WorkspaceRecord

__all__ = [
    "RecordChanged",
    "RecordState",
    "SqlGrantStore",
    "SqlWorkspaceStore",
    "Storage",
    "WorkspaceRecord",
    "app_storage_url",
    "open_storage",
    "state_folder",
]
_MODULES = {
    "SqlGrantStore": "grants",
    "RecordChanged": "workspaces",
    "RecordState": "workspaces",
    "SqlWorkspaceStore": "workspaces",
    "WorkspaceRecord": "workspaces",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES.get(name, 'database')}"), name)
