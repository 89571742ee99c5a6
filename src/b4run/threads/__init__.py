"""Threads: what each starts from, how that is recorded, and how it is found, finished or removed after a crash."""

from b4run.threads.record import ThreadRecord, merged_policy
from b4run.threads.resolving import WorkspaceResolver
from b4run.threads.workspaces import ManagedWorkspaces, Step

__all__ = ["ManagedWorkspaces", "Step", "ThreadRecord", "WorkspaceResolver", "merged_policy"]
