"""Sandboxes: one per conversation thread; its compute dies when idle, its files stay until it is destroyed.

    from b4run.sandbox import bubblewrap_sandbox, open_sandbox

    async with open_sandbox(bubblewrap_sandbox(scope="demo"), thread_id="t-1") as sandbox:
        result = await sandbox.exec.run("pytest -q")

Names are resolved on first use, so that importing this costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from b4run.sandbox.contract import (
        WORKSPACE_ROOT,
        Capability,
        Cause,
        Command,
        DirectoryPage,
        ExecBackend,
        ExecResult,
        ExecStream,
        FileBackend,
        FileContent,
        FileEntry,
        FileKind,
        FileLines,
        FileReader,
        FileTree,
        Job,
        JobInfo,
        ListingProvider,
        LogPart,
        Output,
        OutputChunk,
        Preflight,
        PreflightProvider,
        ReaderProvider,
        RealPath,
        SandboxHandle,
        SandboxProvider,
        SandboxRecord,
        Stream,
        WorkspaceReader,
    )
    from b4run.sandbox.policy import Allow, Deny, Resources, SandboxPolicy, Security, User
    from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox
    from b4run.sandbox.providers.docker import docker_sandbox
    from b4run.sandbox.providers.kubernetes import kubernetes_sandbox
    from b4run.sandbox.scope import resource_id
    from b4run.sandbox.supervisor import SandboxSupervisor, ThreadStatus, open_sandbox

__all__ = [
    "WORKSPACE_ROOT",
    "Allow",
    "Capability",
    "Cause",
    "Command",
    "Deny",
    "DirectoryPage",
    "ExecBackend",
    "ExecResult",
    "ExecStream",
    "FileBackend",
    "FileContent",
    "FileEntry",
    "FileKind",
    "FileLines",
    "FileReader",
    "FileTree",
    "Job",
    "JobInfo",
    "ListingProvider",
    "LogPart",
    "Output",
    "OutputChunk",
    "Preflight",
    "PreflightProvider",
    "ReaderProvider",
    "RealPath",
    "Resources",
    "SandboxHandle",
    "SandboxPolicy",
    "SandboxProvider",
    "SandboxRecord",
    "SandboxSupervisor",
    "Security",
    "Stream",
    "ThreadStatus",
    "User",
    "WorkspaceReader",
    "bubblewrap_sandbox",
    "docker_sandbox",
    "kubernetes_sandbox",
    "open_sandbox",
    "resource_id",
]

_ELSEWHERE = {
    "policy": ("Allow", "Deny", "Resources", "SandboxPolicy", "Security", "User"),
    "providers.bubblewrap": ("bubblewrap_sandbox",),
    "providers.docker": ("docker_sandbox",),
    "providers.kubernetes": ("kubernetes_sandbox",),
    "scope": ("resource_id",),
    "supervisor": ("SandboxSupervisor", "ThreadStatus", "open_sandbox"),
}
_MODULES = {name: module for module, names in _ELSEWHERE.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'contract')}"), name)
    globals()[name] = value
    return value
