"""Makes the tools of an agent for LangChain: the workspace tools, and an app's functions with a schema from their signature."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, get_type_hints

from langchain_core.tools import BaseTool, StructuredTool
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic_core import to_json

from b4run.agents.calls import current_call
from b4run.agents.definition import Tool, ToolContext
from b4run.agents.explain import explain
from b4run.agents.workspace_tools import WorkspaceTool
from b4run.errors import ArgumentsRefused, ToolFileInvalid


def bind_workspace_tool(tool: WorkspaceTool) -> BaseTool:
    async def run(**arguments: Any) -> Any:
        return await tool.run(current_call.get(), **arguments)

    return _structured(tool.name, tool.description, tool.arguments, run)


def bind_function(function: Tool) -> BaseTool:
    """Return a tool whose name, schema and description are the function's own.

    Raises:
        ToolFileInvalid: a parameter has no type, or one that has no schema.
    """
    name = function.__name__
    arguments, context = _arguments(function)

    async def run(**given: Any) -> Any:
        call = current_call.get()
        if context is not None:
            given[context] = ToolContext(call.files, call.run.sandbox, call.run.thread_id)
        if inspect.iscoroutinefunction(function):
            value = await function(**given)
        else:
            value = await asyncio.to_thread(function, **given)
        return (value if isinstance(value, str) else to_json(value, fallback=str).decode()), value

    return _structured(name, inspect.getdoc(function) or name, arguments, run)


def _structured(name: str, description: str, arguments: type[BaseModel], run: Callable[..., Any]) -> BaseTool:
    def refused(error: ValidationError | Any) -> str:
        return explain(ArgumentsRefused(tool=name, reason=_faults(error)), name)

    return StructuredTool(
        name=name,
        description=description,
        args_schema=arguments,
        coroutine=run,
        response_format="content_and_artifact",
        handle_validation_error=refused,
    )


def _arguments(function: Tool) -> tuple[type[BaseModel], str | None]:
    """Return the model of what the caller gives, and the name of the parameter that takes the context."""
    hints = _hints(function)
    fields: dict[str, Any] = {}
    context = None
    for name, parameter in inspect.signature(function).parameters.items():
        hint = hints.get(name)
        if hint is ToolContext:
            context = name
        elif hint is None or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            raise ToolFileInvalid(
                file=function.__code__.co_filename, reason=f"parameter {name!r} of {function.__name__} needs a type hint and a name"
            )
        else:
            fields[name] = (hint, ... if parameter.default is parameter.empty else parameter.default)
    try:
        return create_model(function.__name__, __config__=ConfigDict(extra="forbid"), **fields), context
    except Exception as error:
        raise ToolFileInvalid(
            file=function.__code__.co_filename, reason=f"{function.__name__} has no schema ({type(error).__name__})"
        ) from error


def _hints(function: Tool) -> dict[str, Any]:
    """Return the types of the parameters. What the function returns makes no schema, so its type may be known to the function alone."""
    defined = inspect.unwrap(function)
    written = {name: hint for name, hint in inspect.get_annotations(defined).items() if name != "return"}
    try:
        return get_type_hints(SimpleNamespace(__annotations__=written), globalns=defined.__globals__, include_extras=True)
    except NameError as error:
        raise ToolFileInvalid(
            file=defined.__code__.co_filename, reason=f"a type of {function.__name__} is not known at the top of its file: {error.name!r}"
        ) from error


def _faults(error: Any) -> str:
    if not isinstance(error, ValidationError):
        return str(error)
    return "; ".join(
        f"{'.'.join(map(str, fault['loc'])) or 'the call'}: {fault['msg']}"
        for fault in error.errors(include_url=False, include_input=False)
    )
