"""What a managed workspace starts from: the shape of its definition."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field, model_validator

from b4run.strict import StrictModel


class ExtraFile(StrictModel):
    """A file laid into the workspace at `path`: a copy of the app's `file`, or `text` itself."""

    path: str
    file: str | None = None
    text: str | None = None
    executable: bool | None = None
    """Of `text` only; a copied file brings its mode."""

    @model_validator(mode="after")
    def _one_content(self) -> ExtraFile:
        if (self.file is None) == (self.text is None):
            raise ValueError("needs exactly one of `file` and `text`")
        if self.file is not None and self.executable is not None:
            raise ValueError("`executable` goes with `text` only; a copied file brings its own mode")
        return self


class WorkspaceSource(StrictModel):
    """The files of the app that a workspace gets. `include` names every file under `directory` outside `exclude_directories`."""

    directory: str
    include: tuple[str, ...] = Field(strict=False)
    exclude_directories: tuple[str, ...] = Field(default=(), strict=False)
    files: tuple[ExtraFile, ...] = Field(default=(), strict=False)


class WorkspaceDefinition(StrictModel):
    """A workspace's first content. `environment_links` maps paths in the workspace to absolute targets in the image."""

    source: WorkspaceSource
    environment_links: Mapping[str, str] = Field(default_factory=dict)
    baseline: Literal["git"] | None = None
