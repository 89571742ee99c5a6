"""What workspaces start from: definitions, source bundles and their digests, intents; and inspection of what a thread produced."""

from b4run.workspace.bundle import (
    SourceBundle,
    SourceEntry,
    SourceFile,
    create_source_bundle,
    read_source_file,
    verify_source_bundle,
)
from b4run.workspace.capture import capture_workspace_definition, capture_workspace_source
from b4run.workspace.captured import (
    CapturedWorkspace,
    EnvironmentLink,
    StagedReference,
    captured_workspace,
    staged_reference,
)
from b4run.workspace.definition import ExtraFile, WorkspaceDefinition, WorkspaceSource
from b4run.workspace.inspection import Inspection, inspect_workspace
from b4run.workspace.intent import (
    Binding,
    Creation,
    CreationState,
    Environment,
    Provenance,
    ReadyWorkspace,
    Retention,
    WorkspaceIntent,
    WorkspaceReference,
    create_workspace_intent,
    workspace_id,
)
from b4run.workspace.reading import with_workspace_reader

__all__ = [
    "Binding",
    "CapturedWorkspace",
    "Creation",
    "CreationState",
    "Environment",
    "EnvironmentLink",
    "ExtraFile",
    "Inspection",
    "Provenance",
    "ReadyWorkspace",
    "Retention",
    "SourceBundle",
    "SourceEntry",
    "SourceFile",
    "StagedReference",
    "WorkspaceDefinition",
    "WorkspaceIntent",
    "WorkspaceReference",
    "WorkspaceSource",
    "capture_workspace_definition",
    "capture_workspace_source",
    "captured_workspace",
    "create_source_bundle",
    "create_workspace_intent",
    "inspect_workspace",
    "read_source_file",
    "staged_reference",
    "verify_source_bundle",
    "with_workspace_reader",
    "workspace_id",
]
