"""Turns what pydantic refused into findings that name the key, the bound and the value: the only place that reads its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from b4run.config.issues import Issue, did_you_mean
from b4run.config.models import Config, Staging
from b4run.errors import B4Error, ConfigurationError
from b4run.sandbox.contract import Severity
from b4run.sandbox.policy import Allow, Deny, User
from b4run.strict import Fault
from b4run.workspace import WorkspaceDefinition

_SECRET_KEYS = ("sandbox.env",)
_SHOWN_VALUE = 60

_EXPECTED = {
    "int_type": "a whole number",
    "int_parsing": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "string_type": "text",
    "bool_type": "True or False",
    "tuple_type": "a list",
    "list_type": "a list",
    "mapping_type": "a mapping of names to values",
    "callable_type": "a function",
}
_UNIONS: Mapping[str, Mapping[str, type[BaseModel] | None]] = {
    "sandbox.network": {"allow": Allow, "deny": Deny},
    "sandbox.security.run_as_non_root": {"flag": None, "user": User},
    "sandbox.workspace": {"resolver": None, "definition": WorkspaceDefinition},
    "sandbox.staged_workspaces": {"flag": None, "staging": Staging},
}
"""Where pydantic puts the branch it took into an error's location, and the model behind each."""

_BOUNDS = {"greater_than_equal": ("at least", "ge"), "greater_than": ("more than", "gt"), "less_than_equal": ("at most", "le")}


def issues_of(fault: Fault, file: str, kind: type[B4Error] = ConfigurationError) -> list[Issue]:
    """Return one finding for each key that was refused in one model; a model outside the configuration is named by its class."""
    prefix = _places().get(fault.model, fault.model.__name__)
    return [_issue(detail, fault, prefix, file, kind) for detail in fault.error.errors(include_url=False)]


def _issue(detail: ErrorDetails, fault: Fault, prefix: str, file: str, kind: type[B4Error]) -> Issue:
    key, owner = _walk(fault.model, prefix, detail["loc"])
    key = f"{key}.mode" if detail["type"].startswith("union_tag") else key
    return Issue(Severity.ERROR, kind.code, key, _text(detail, key, owner), kind.hint, file, fault.line)


def _text(detail: ErrorDetails, key: str, owner: type[BaseModel]) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    got = _shown(key, value)
    if kind == "extra_forbidden":
        known = tuple(owner.model_fields)
        return f"unknown key; known: {', '.join(known)}{did_you_mean(str(detail['loc'][-1]), known)}"
    if kind == "missing":
        return "is required"
    if kind in _BOUNDS:
        word, name = _BOUNDS[kind]
        return f"must be {word} {context[name]:,.15g}, got {got}"
    if kind in _EXPECTED:
        return f"must be {_EXPECTED[kind]}, got {got}"
    if kind == "model_attributes_type":
        return f"must be `Allow(...)` or `Deny(...)`, got {got}"
    if kind == "model_type":
        return f"must be a block of keys ({', '.join(owner.model_fields)}), got {got}"
    if kind == "literal_error":
        return f"must be {context['expected']}, got {got}"
    if kind == "union_tag_invalid":
        return f"must be {context['expected_tags'].replace(', ', ' or ')}, got {context['tag']!r}"
    if kind == "union_tag_not_found":
        return f"is required: 'allow' or 'deny'; got {_keys(value) or got}"
    if kind == "value_error":
        return str(context["error"])
    return f"{detail['msg'][0].lower()}{detail['msg'][1:]}, got {got}"


def _keys(value: Any) -> str:
    """Name the keys of a block without `mode`, each with a near match."""
    return ", ".join(f"`{name}`{did_you_mean(str(name), ('mode',))}" for name in value) if isinstance(value, Mapping) else ""


def _shown(key: str, value: Any) -> str:
    """Show a value in short; of what may be a secret only its type."""
    kind = type(value).__name__
    if any(key.startswith(secret) for secret in _SECRET_KEYS):
        return f"a value of type {kind}"
    shown = repr(value) if isinstance(value, (str, int, float, bool, type(None), list, tuple, dict, set)) else f"an object of type {kind}"
    if len(shown) > _SHOWN_VALUE:
        shown = f"{shown[:_SHOWN_VALUE]}…"
    return f"{shown} ({kind})" if isinstance(value, str) else shown


def _walk(model: type[BaseModel], prefix: str, loc: Sequence[str | int]) -> tuple[str, type[BaseModel]]:
    """Return the dotted key of a location, without pydantic's union tags, and the model that its last item belongs to."""
    key, owner = prefix, model
    branches: Mapping[str, type[BaseModel] | None] = {}
    for item in loc:
        if item in branches:
            owner, branches = branches[str(item)] or owner, {}
            continue
        field = owner.model_fields.get(str(item))
        inner = list(_models_in(field.annotation)) if field else []
        owner = inner[0] if len(inner) == 1 else owner
        key = f"{key}.{item}" if key else str(item)
        branches = _UNIONS.get(key, {})
    return key, owner


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in get_args(annotation):
        yield from _models_in(inner)


@cache
def _places() -> Mapping[type[BaseModel], str]:
    """Return where each model of the configuration stands; `a|b` when it stands at several keys."""
    found: dict[type[BaseModel], str] = {}

    def visit(model: type[BaseModel], place: str) -> None:
        known = found.get(model)
        found[model] = place if known is None else f"{known}|{place.rsplit('.', 1)[-1]}"
        for name, field in model.model_fields.items():
            for inner in _models_in(field.annotation):
                visit(inner, f"{place}.{name}" if place else name)

    visit(Config, "")
    return found
