"""Workspace definitions, source bundles and their digests; inspection of what a thread produced."""

from b4run.workspace.definition import ExtraFile, WorkspaceDefinition, WorkspaceSource
from b4run.workspace.inspection import Inspection, inspect_workspace
from b4run.workspace.reading import with_workspace_reader

__all__ = [
    "ExtraFile",
    "Inspection",
    "WorkspaceDefinition",
    "WorkspaceSource",
    "inspect_workspace",
    "with_workspace_reader",
]
