"""Workspace definitions, source bundles and their digests."""

from b4run.workspace.definition import ExtraFile, WorkspaceDefinition, WorkspaceSource

__all__ = ["ExtraFile", "WorkspaceDefinition", "WorkspaceSource"]
