"""`b4 config show|schema`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue
from pydantic_core import core_schema

from b4run.cli.output import print_json, table
from b4run.cli.parser import add_command, add_commands, add_json
from b4run.config import CONFIG_FILE, Config, find_root, load_config


def configure(parser: argparse.ArgumentParser) -> None:
    commands = add_commands(parser)
    show = add_command(commands, "show", "show every value in force and where it comes from", _show)
    add_json(show)
    add_command(commands, "schema", "print the JSON schema of b4_config.py", _schema)


def _show(options: argparse.Namespace) -> int:
    loaded = load_config(find_root(options.app))
    values = list(_values(loaded.config, ""))
    if options.json:
        print_json({key: {"value": value, "source": source} for key, value, source in values})
    else:
        print(table(("KEY", "VALUE", "FROM"), [(key, str(value), source) for key, value, source in values]))
    return 0


def _values(model: BaseModel, prefix: str, given: bool = True) -> Iterator[tuple[str, Any, str]]:
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        chosen = given and (name in model.model_fields_set or _is_kind(field.annotation))
        if isinstance(value, BaseModel):
            yield from _values(value, f"{prefix}{name}.", chosen)
        else:
            yield f"{prefix}{name}", _plain(f"{prefix}{name}", value), CONFIG_FILE if chosen else "default"


def _is_kind(annotation: Any) -> bool:
    """Whether a field can only say which kind of block it is in, as `mode` does: it is chosen with the block."""
    return get_origin(annotation) is Literal and len(get_args(annotation)) == 1


def _plain(key: str, value: Any) -> Any:
    """Return what may be printed: of the environment the names only, of live objects what they are."""
    if key == "sandbox.env":
        return sorted(value)
    if key == "sandbox.provider":
        return value.name
    if callable(value):
        return f"{value.__module__}.{value.__qualname__}"
    return list(value) if isinstance(value, tuple) else value


class _Schema(GenerateJsonSchema):
    def handle_invalid_for_json_schema(self, schema: core_schema.CoreSchema, error_info: str) -> JsonSchemaValue:
        """Live objects, such as functions, have no JSON form."""
        return {"description": "a Python object"}


def _schema(options: argparse.Namespace) -> int:
    print_json(Config.model_json_schema(schema_generator=_Schema))
    return 0
