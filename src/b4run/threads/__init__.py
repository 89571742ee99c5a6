"""Threads: what each starts from, who has it to itself, what runs on it, how it goes; all of it recorded, and recovered after a crash."""

from b4run.threads.deletion import ThreadDeletion
from b4run.threads.expiry import keep_expiring
from b4run.threads.record import ThreadRecord, merged_policy
from b4run.threads.resolving import WorkspaceResolver
from b4run.threads.runs import OnBusy, RunRequest, Runs
from b4run.threads.sandboxes import SharedSandboxes
from b4run.threads.slots import Slot, Slots, holding
from b4run.threads.staging import StagedWorkspaces
from b4run.threads.workspaces import ManagedWorkspaces, Step

__all__ = [
    "ManagedWorkspaces",
    "OnBusy",
    "RunRequest",
    "Runs",
    "SharedSandboxes",
    "Slot",
    "Slots",
    "StagedWorkspaces",
    "Step",
    "ThreadDeletion",
    "ThreadRecord",
    "WorkspaceResolver",
    "holding",
    "keep_expiring",
    "merged_policy",
]
