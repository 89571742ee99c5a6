"""Which tools and subagents an agent has, and what is wrong with how it says so. Imports no agent loop: `b4 check` uses it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from b4run.agents.definition import DISPATCH_TOOL, WORKSPACE_TOOLS, Agent, DelegationRule, Route
from b4run.errors import B4Error, DelegationInvalid, ToolScopeInvalid

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def children(route: Route) -> Mapping[str, Route]:
    """Return the subagents by name: those of folders, and those that the agent registers itself, which have no function tools."""
    registered = {
        name: Route(f"{route.id.rstrip('/')}/{name}", "agent", route.file, agent) for name, agent in route.entry.subagents.items()
    }
    return dict(sorted({**registered, **route.subagents}.items()))


def rule_for(agent: Agent, child: str) -> DelegationRule:
    """Return what becomes of a dispatch to that subagent."""
    return agent.delegation.rules.get(child) or DelegationRule(action=agent.delegation.default)


def dispatchable(route: Route) -> Mapping[str, Route]:
    """Return the subagents that the model is told of: all but those that are always denied."""
    return {name: child for name, child in children(route).items() if rule_for(route.entry, name).action != "deny"}


def selected_tools(route: Route, *, is_child: bool) -> tuple[str, ...]:
    """Return the names of the tools that the model sees, the dispatch tool apart."""
    scope = route.entry.tools
    granted = [name for name in WORKSPACE_TOOLS if not is_child or name in scope.allow]
    denied = set(scope.deny)
    if "writeFile" in denied and "editFile" not in scope.allow:
        denied.add("editFile")
    return tuple(name for name in dict.fromkeys([*granted, *route.tools]) if name not in denied)


def check_route(route: Route) -> list[B4Error]:
    """Return every defect of a route's tool scopes (`B4_E1001`) and delegations (`B4_E1004`), its subagents' included."""
    if route.kind != "agent":
        return []
    found = [*_scope_defects(route), *_delegation_defects(route)]
    for child in children(route).values():
        found += check_route(child)
    return found


def route_warnings(route: Route) -> list[str]:
    """Return what in a route's tool scopes has no effect."""
    if route.kind != "agent":
        return []
    scope = route.entry.tools
    own_gate = [name for name in scope.approve if name in WORKSPACE_TOOLS and name not in route.tools]
    found = [f"Route {route.id}: `tools.approve` has no effect on {name}, which the permissions gate." for name in own_gate]
    found += [
        f"Route {route.id}: `tools.constrain` decides for {name} before `tools.approve`."
        for name in scope.approve
        if name in scope.constrain
    ]
    return found + [warning for child in children(route).values() for warning in route_warnings(child)]


def _scope_defects(route: Route) -> Iterator[B4Error]:
    scope = route.entry.tools
    known = sorted({*WORKSPACE_TOOLS, *route.tools})
    fields = {"allow": scope.allow, "deny": scope.deny, "approve": scope.approve, "constrain": tuple(scope.constrain)}
    for field, names in fields.items():
        if DISPATCH_TOOL in names:
            yield DelegationInvalid(route=route.id, reason=f"`tools.{field}` names {DISPATCH_TOOL!r}; use `delegation` to rule dispatches")
        unknown = sorted(set(names) - {*known, DISPATCH_TOOL})
        if unknown:
            yield ToolScopeInvalid(route=route.id, field=field, names=", ".join(map(repr, unknown)), known=", ".join(known))
    if DISPATCH_TOOL in route.tools:
        yield DelegationInvalid(route=route.id, reason=f"a tool is called {DISPATCH_TOOL!r}, which is how work is handed to a subagent")


def _delegation_defects(route: Route) -> Iterator[B4Error]:
    agent: Agent = route.entry
    names = children(route)
    for name, child in names.items():
        if not _NAME.fullmatch(name):
            yield DelegationInvalid(route=route.id, reason=f"{name!r} cannot be the name of a subagent")
        if child.kind != "agent":
            yield DelegationInvalid(route=route.id, reason=f"subagent {name!r} is a graph; only agents can be subagents")
    for name in sorted(agent.subagents.keys() & route.subagents.keys()):
        yield DelegationInvalid(route=route.id, reason=f"subagent {name!r} is there twice: as a folder and under `subagents`")
    for name, rule in agent.delegation.rules.items():
        if name not in names:
            known = ", ".join(names) or "none"
            yield DelegationInvalid(route=route.id, reason=f"`delegation.rules` names {name!r}, which is no subagent of it ({known})")
        if (rule.action == "constrain") != (rule.predicate is not None):
            yield DelegationInvalid(route=route.id, reason=f"the rule for {name!r} needs a `predicate` if, and only if, it constrains")
