"""Loads the files that the layout found: agents and graphs, their tools, their subagents; every defect is told, not the first."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from b4run.agents import DISPATCH_TOOL, Agent, Route, Tool, check_route
from b4run.app.layout import EntryFile, Layout, find_layout
from b4run.config import Issue, LoadedConfig
from b4run.config.issues import issue_of
from b4run.config.render import issues_of
from b4run.config.source import load_source
from b4run.errors import AppInvalid, B4Error, RouteAmbiguous, RouteUnrecognised, ToolFileInvalid
from b4run.strict import collect_faults


@dataclass(slots=True)
class Entries:
    """What could be loaded, and every defect of what could not."""

    routes: dict[str, Route] = field(default_factory=dict)
    defects: list[Issue] = field(default_factory=list)


class AppDefective(AppInvalid):
    """{reason}"""

    hint = "`b4 check` lists all that is wrong with the app."

    def __init__(self, defects: Sequence[Issue]) -> None:
        self.defects = tuple(defects)
        super().__init__(reason="\n".join(f"{defect.text} [{defect.code}]" for defect in defects))


def load_routes(loaded: LoadedConfig) -> dict[str, Route]:
    """Load every route of an app.

    Raises:
        AppDefective: some of its files cannot be used; lists all of them.
    """
    entries = load_entries(loaded.root, find_layout(loaded.root, loaded.config.app_dir))
    if entries.defects:
        raise AppDefective(entries.defects)
    return entries.routes


def load_entries(root: Path, layout: Layout) -> Entries:
    """Run every file of the layout once."""
    entries = Entries(defects=[issue_of(defect) for defect in layout.defects])
    loader = _Loader(root, entries.defects)
    shared = loader.tools(layout.shared_tools)
    for route, file in layout.routes.items():
        loaded = loader.entry(route, file, shared)
        if loaded is not None:
            entries.routes[route] = loaded
            entries.defects += [issue_of(defect) for defect in check_route(loaded)]
    return entries


@dataclass(slots=True)
class _Loader:
    root: Path
    defects: list[Issue]

    def entry(self, route: str, file: EntryFile, shared: Mapping[str, Tool]) -> Route | None:
        """Load one agent and all that is its own; an agent's tool shadows a shared one of the same name."""
        module = self._module(file.path)
        tools = {**shared, **self.tools(file.tools)}
        subagents = {child.name: self.entry(f"{route.rstrip('/')}/{child.name}", child, shared) for child in file.subagents}
        if module is None:
            return None
        name = str(file.path.relative_to(self.root))
        try:
            kind, entry = _bound(module, name)
        except B4Error as defect:
            self.defects.append(issue_of(defect))
            return None
        return Route(route, kind, name, entry, tools, {name: child for name, child in subagents.items() if child is not None})

    def tools(self, files: Iterable[Path]) -> dict[str, Tool]:
        found: dict[str, Tool] = {}
        for path in files:
            module = self._module(path)
            if module is None:
                continue
            file = str(path.relative_to(self.root))
            try:
                tool = _tool(module, file)
                if tool.__name__ in found:
                    raise ToolFileInvalid(file=file, reason=f"another file of the same folder already has a tool {tool.__name__!r}")
                found[tool.__name__] = tool
            except B4Error as defect:
                self.defects.append(issue_of(defect))
        return found

    def _module(self, path: Path) -> ModuleType | None:
        """Run one file; the models that it builds wrongly are told with their keys and lines, all of them."""
        module = None
        with collect_faults(str(path)) as faults:
            try:
                module = load_source(path, self.root)
            except B4Error as defect:
                if not faults:
                    self.defects.append(issue_of(defect))
        file = str(path.relative_to(self.root))
        self.defects += [issue for fault in faults for issue in issues_of(fault, file, AppInvalid)]
        return None if faults else module


def _bound(module: ModuleType, file: str) -> tuple[Literal["agent", "graph"], Any]:
    agent, graph = getattr(module, "agent", None), getattr(module, "graph", None)
    if agent is not None and graph is not None:
        raise RouteAmbiguous(file=file)
    if isinstance(agent, Agent):
        return "agent", agent
    if graph is not None and callable(getattr(graph, "ainvoke", None)):
        return "graph", graph
    raise RouteUnrecognised(file=file)


def _tool(module: ModuleType, file: str) -> Tool:
    """Return the one public function that the file itself defines."""
    functions = [
        value
        for name, value in vars(module).items()
        if not name.startswith("_") and inspect.isfunction(value) and value.__module__ == module.__name__
    ]
    if len(functions) != 1:
        names = ", ".join(function.__name__ for function in functions)
        raise ToolFileInvalid(
            file=file, reason=f"has {len(functions)} public functions ({names}), not one" if functions else "has no public function"
        )
    tool = functions[0]
    if not (tool.__doc__ or "").strip():
        raise ToolFileInvalid(file=file, reason=f"{tool.__name__} has no docstring, which the model needs to know what it does")
    if tool.__name__ == DISPATCH_TOOL:
        raise ToolFileInvalid(file=file, reason=f"a tool cannot be called {DISPATCH_TOOL!r}: that is how work is handed to a subagent")
    return tool
