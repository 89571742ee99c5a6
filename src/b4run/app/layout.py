"""Finds an app's routes, tools and subagents by their folders alone; nothing is imported here.

`app/<route>/agent.py` is a route. Folders named `_x` or `.x` are skipped with all beneath, `(group)` folders vanish from the path,
`[name]`, `[...name]` and `[[...name]]` are dynamic. `tools/` and `subagents/` belong to the route they stand in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from b4run.errors import AppInvalid

ENTRY_FILE = "agent.py"
TOOLS_FOLDER = "tools"
SUBAGENTS_FOLDER = "subagents"

_GROUP = re.compile(r"\([A-Za-z0-9._-]+\)")
_SEGMENT = re.compile(r"[A-Za-z0-9._~-]+|\[[A-Za-z_]\w*\]|\[\.\.\.[A-Za-z_]\w*\]|\[\[\.\.\.[A-Za-z_]\w*\]\]")
_SUBAGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class EntryFile:
    """An agent's file, its own tool files and its subagents by name."""

    name: str
    """The route's id, such as `/fix`; of a subagent the name of its folder."""
    path: Path
    tools: tuple[Path, ...]
    subagents: tuple[EntryFile, ...] = ()


@dataclass(slots=True)
class Layout:
    """What the folders say: routes by id, shared tools, and everything that is wrong."""

    routes: dict[str, EntryFile] = field(default_factory=dict)
    shared_tools: tuple[Path, ...] = ()
    defects: list[AppInvalid] = field(default_factory=list)


def find_layout(root: Path, app_dir: str) -> Layout:
    """Read the folders of the app in `root`; defects are gathered, not raised."""
    layout = Layout(shared_tools=_python_files(root / TOOLS_FOLDER))
    folder = root / app_dir
    if not folder.is_dir():
        layout.defects.append(AppInvalid(reason=f"{root} has no folder {app_dir}/ for its routes"))
        return layout
    for route, entry in _routes(root, folder, (), layout.defects):
        other = layout.routes.get(route)
        if other is None:
            layout.routes[route] = entry
        else:
            both = f"{other.path.relative_to(root)} and {entry.path.relative_to(root)}"
            layout.defects.append(AppInvalid(reason=f"route {route} is there twice: {both}"))
    if not layout.routes and not layout.defects:
        layout.defects.append(AppInvalid(reason=f"{app_dir}/ holds no {ENTRY_FILE}, so the app has no route"))
    layout.routes = dict(sorted(layout.routes.items()))
    return layout


def _routes(root: Path, folder: Path, segments: tuple[str, ...], defects: list[AppInvalid]) -> Iterator[tuple[str, EntryFile]]:
    if (folder / ENTRY_FILE).is_file():
        route = "/" + "/".join(segments)
        yield route, _entry(root, route, folder, defects)
    for child in _folders(folder):
        if child.name in (TOOLS_FOLDER, SUBAGENTS_FOLDER):
            if (child / ENTRY_FILE).is_file():
                defects.append(
                    AppInvalid(reason=f"{child.relative_to(root)} cannot be a route: {child.name}/ belongs to the route above it")
                )
        elif _GROUP.fullmatch(child.name):
            yield from _routes(root, child, segments, defects)
        elif _SEGMENT.fullmatch(child.name):
            yield from _routes(root, child, (*segments, child.name), defects)
        else:
            defects.append(AppInvalid(reason=f"folder {child.relative_to(root)} cannot be part of a route's path"))


def _entry(root: Path, name: str, folder: Path, defects: list[AppInvalid]) -> EntryFile:
    return EntryFile(
        name, folder / ENTRY_FILE, _python_files(folder / TOOLS_FOLDER), tuple(_subagents(root, folder / SUBAGENTS_FOLDER, defects))
    )


def _subagents(root: Path, folder: Path, defects: list[AppInvalid]) -> Iterator[EntryFile]:
    for child in _folders(folder):
        if not (child / ENTRY_FILE).is_file():
            defects.append(AppInvalid(reason=f"subagent folder {child.relative_to(root)} has no {ENTRY_FILE}"))
        elif not _SUBAGENT.fullmatch(child.name):
            defects.append(AppInvalid(reason=f"{child.relative_to(root)}: a subagent's name is letters, digits, `_` and `-`"))
        else:
            yield _entry(root, child.name, child, defects)


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(child for child in folder.iterdir() if child.name[0] not in "_." and child.is_dir() and not child.is_symlink())


def _python_files(folder: Path) -> tuple[Path, ...]:
    if not folder.is_dir():
        return ()
    return tuple(sorted(child for child in folder.glob("*.py") if child.name[0] not in "_." and child.is_file()))
