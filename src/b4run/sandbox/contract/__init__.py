"""What a sandbox provider implements and what a holder of a sandbox gets.

A provider creates a place, gives out a handle on it and removes it again. A handle has two backends: `exec` runs commands, `files` works
on the workspace. All limits are in the units of their names.
"""

from b4run.sandbox.contract.commands import (
    DEFAULT_OUTPUT_LIMIT,
    Cause,
    Command,
    ExecBackend,
    ExecResult,
    ExecStream,
    Job,
    JobInfo,
    LogPart,
    Output,
    OutputChunk,
    Stdin,
    Stream,
)
from b4run.sandbox.contract.files import (
    DirectoryPage,
    FileBackend,
    FileContent,
    FileEntry,
    FileKind,
    FileLines,
    FileReader,
    FileTree,
    RealPath,
)
from b4run.sandbox.contract.providers import (
    WORKSPACE_ROOT,
    Capability,
    Finding,
    ListingProvider,
    Preflight,
    PreflightProvider,
    SandboxHandle,
    SandboxProvider,
    SandboxRecord,
    Severity,
)

__all__ = [
    "DEFAULT_OUTPUT_LIMIT",
    "WORKSPACE_ROOT",
    "Capability",
    "Cause",
    "Command",
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
    "Finding",
    "Job",
    "JobInfo",
    "ListingProvider",
    "LogPart",
    "Output",
    "OutputChunk",
    "Preflight",
    "PreflightProvider",
    "RealPath",
    "SandboxHandle",
    "SandboxProvider",
    "SandboxRecord",
    "Severity",
    "Stdin",
    "Stream",
]
