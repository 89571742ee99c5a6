"""What a workspace starts from once it is settled: verified files, links into the image, and whether git begins with them.

Formats are those of the specification's `formats.md`, sections "Workspace definition and capture" and "Staged reference".
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from b4run.errors import WorkspaceInvalid
from b4run.workspace.bundle import SourceBundle, is_digest, verify_source_bundle
from b4run.workspace.paths import LONGEST_PATH, PathSet, check_path, path_fault

Baseline = Literal["git"]
GIT_FOLDER = ".git"


@dataclass(frozen=True, slots=True, order=True)
class EnvironmentLink:
    """A symbolic link in the workspace, at a portable path, to an absolute path in the image."""

    path: str
    target: str

    def __post_init__(self) -> None:
        check_path(self.path, "link")
        if not isinstance(self.target, str) or len(self.target) > LONGEST_PATH or self.target[:1] != "/" or path_fault(self.target[1:]):
            raise WorkspaceInvalid(reason=f"link {self.path!r} has a target that is not an absolute portable path")

    def as_dict(self) -> dict[str, str]:
        return {"path": self.path, "target": self.target}


@dataclass(frozen=True, slots=True)
class CapturedWorkspace:
    """A captured definition. Links are in ascending order of their paths and stand beside the files.

    Raises:
        WorkspaceInvalid: a link conflicts with a file or another link, or something stands where the baseline's `.git` will.
    """

    source: SourceBundle
    environment_links: tuple[EnvironmentLink, ...] = ()
    baseline: Baseline | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "environment_links", tuple(sorted(self.environment_links)))
        check_fit((file.path for file in self.source.files), self.environment_links, self.baseline)

    def as_dict(self) -> dict[str, Any]:
        """Return the captured form, as JSON has it."""
        return {"version": 1, "source": json.loads(self.source.to_json())} | shape_dict(self.environment_links, self.baseline)


def check_fit(paths: Iterable[str], links: Iterable[EnvironmentLink], baseline: Baseline | None) -> None:
    """Check that files, links and the baseline can stand side by side. Raises: WorkspaceInvalid."""
    if baseline not in (None, "git"):
        raise WorkspaceInvalid(reason=f"the baseline {baseline!r} is not 'git'")
    taken = PathSet(paths)
    for link in links:
        taken.add(link.path)
    if baseline == "git":
        taken.add(GIT_FOLDER)


def captured_workspace(value: Any) -> CapturedWorkspace:
    """Return the workspace whose captured form `value` is. Raises: WorkspaceInvalid: it is off by anything."""
    body = check_keys(value, ("version", "source", "environmentLinks"), ("baseline",), "the captured workspace")
    if type(body["version"]) is not int or body["version"] != 1:
        raise WorkspaceInvalid(reason="the captured workspace's version is not 1")
    return CapturedWorkspace(verify_source_bundle(body["source"]), read_links(body["environmentLinks"]), body.get("baseline"))


@dataclass(frozen=True, slots=True)
class StagedReference:
    """Names a source that was uploaded before, and what stands beside its files."""

    source_digest: str
    environment_links: tuple[EnvironmentLink, ...] = ()
    baseline: Baseline | None = None

    def to_json(self) -> str:
        """Return the canonical JSON; links are always there."""
        return compact({"sourceDigest": self.source_digest} | shape_dict(self.environment_links, self.baseline))


def staged_reference(value: Any, paths: Iterable[str]) -> StagedReference:
    """Return the reference that `value` is. `paths` are those of the source's files, as recorded at its upload.

    Raises:
        WorkspaceInvalid: it is off by anything, or its links cannot stand beside the files.
    """
    body = check_keys(value, ("sourceDigest",), ("environmentLinks", "baseline"), "the staged workspace")
    if not is_digest(body["sourceDigest"]):
        raise WorkspaceInvalid(reason="`sourceDigest` is not 64 lower-case hexadecimal digits")
    links = read_links(sorted_links(body.get("environmentLinks", [])))
    check_fit(paths, links, body.get("baseline"))
    return StagedReference(body["sourceDigest"], links, body.get("baseline"))


def sorted_links(value: Any) -> Any:
    """Return a list of links in order; whatever else it is comes back as it is, to be refused."""
    if isinstance(value, list) and all(isinstance(link, Mapping) and isinstance(link.get("path"), str) for link in value):
        return sorted(value, key=lambda link: str(link["path"]))
    return value


def read_links(value: Any) -> tuple[EnvironmentLink, ...]:
    """Return the links of a stored list, which are in order. Raises: WorkspaceInvalid."""
    if not isinstance(value, (list, tuple)):
        raise WorkspaceInvalid(reason="the environment links are not a list")
    found = [check_keys(link, ("path", "target"), (), "an environment link") for link in value]
    links = tuple(EnvironmentLink(link["path"], link["target"]) for link in found)
    if any(first.path >= second.path for first, second in pairwise(links)):
        raise WorkspaceInvalid(reason="the environment links are not in ascending order of their paths")
    return links


def shape_dict(links: Iterable[EnvironmentLink], baseline: Baseline | None) -> dict[str, Any]:
    """Return what stands beside a source in every stored form."""
    return {"environmentLinks": [link.as_dict() for link in links]} | ({"baseline": baseline} if baseline else {})


def check_keys(value: Any, required: tuple[str, ...], optional: tuple[str, ...], what: str) -> Mapping[str, Any]:
    """Return a mapping with exactly these keys. Raises: WorkspaceInvalid: it names the first key that is off."""
    if not isinstance(value, Mapping):
        raise WorkspaceInvalid(reason=f"{what} is not an object")
    for key in required:
        if key not in value:
            raise WorkspaceInvalid(reason=f"{what} has no `{key}`")
    for key in value:
        if key not in required and key not in optional:
            raise WorkspaceInvalid(reason=f"{what} has an unknown key {str(key)[:80]!r}")
    return value


def compact(value: Any) -> str:
    """Return JSON as JavaScript writes it: no spaces, nothing beyond ASCII escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
