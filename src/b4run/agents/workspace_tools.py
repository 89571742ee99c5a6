"""The five workspace tools: what they do with a call. Names and arguments are what the model sees."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainValidator, WithJsonSchema

from b4run.agents import offload
from b4run.agents.calls import Call
from b4run.agents.command_result import command_answer
from b4run.agents.editing import replace_exactly
from b4run.errors import ArgumentsRefused, EditRefused, FileRefused
from b4run.permissions import CommandRequest

READ_LIMIT = 262_144
"""Bytes of a file, or of a range of it, that one readFile returns; editFile takes files up to it."""

KEPT_READ_LIMIT = 67_108_864
"""The same for files under tool-outputs/."""

OUTPUT_LIMIT = 65_536
"""Bytes of each output stream that runBash keeps, half from the beginning, half from the end."""

_NOT_UTF8 = re.compile("[\ud800-\udfff]")
_LISTED = 10_000
_COUNTED = 1_000_000

Answer = tuple[str, Any]
"""What the model reads, and the whole result for the program."""


def _path(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("must be a text that is not empty")
    return value


def _text(value: str) -> str:
    if _NOT_UTF8.search(value):
        raise ValueError("holds half a surrogate pair, which is no text")
    return value


Text = Annotated[str, AfterValidator(_text)]
Path = Annotated[str, PlainValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]
"""Not pydantic's own string, which refuses the surrogate escapes of a name that is not UTF-8."""

PathInWorkspace = Annotated[Path, Field(description="Relative to the workspace.")]
Line = Annotated[int, Field(ge=1)]


class Arguments(BaseModel):
    model_config = ConfigDict(extra="forbid")


class ReadFile(Arguments):
    path: PathInWorkspace
    startLine: Annotated[Line | None, Field(description="First line to read, from 1.")] = None
    endLine: Annotated[Line | None, Field(description="Last line to read; may lie beyond the end.")] = None


class WriteFile(Arguments):
    path: PathInWorkspace
    content: Annotated[Text, Field(description="The whole new content.")]


class EditFile(Arguments):
    path: PathInWorkspace
    oldText: Annotated[str, Field(min_length=1, description="The exact text to replace, as the file has it.")]
    newText: Annotated[Text, Field(description="What stands there afterwards.")]
    replaceAll: Annotated[bool | None, Field(description="Replace every occurrence; otherwise oldText must occur once.")] = None


class ListDir(Arguments):
    path: Annotated[Path, Field(description="A folder, relative to the workspace.")] = "."


class RunBash(Arguments):
    command: Annotated[str, Field(min_length=1, description="Run by /bin/sh -c in the workspace's root.")]


async def read_file(call: Call, path: str, startLine: int | None = None, endLine: int | None = None) -> Answer:
    limit = KEPT_READ_LIMIT if await _kept_by_us(call, path) else READ_LIMIT
    if startLine is None and endLine is None:
        content = await call.files.read(path, max_size=limit)
        return _decoded(content.data, path), content
    if startLine is not None and endLine is not None and startLine > endLine:
        raise ArgumentsRefused(tool=call.tool, reason=f"startLine {startLine} is after endLine {endLine}")
    lines = await call.files.read_lines(path, first=startLine or 1, last=endLine, limit=limit)
    text = _decoded(lines.data, path).removesuffix("\n")
    return f"[{path}: lines {lines.first}-{lines.last} of {lines.total}]\n{text}", lines


async def write_file(call: Call, path: str, content: str) -> Answer:
    data = content.encode()
    entry = await call.files.write(path, data)
    return f"Wrote {len(data)} bytes to {path}.", entry


async def edit_file(call: Call, path: str, oldText: str, newText: str, replaceAll: bool | None = None) -> Answer:
    content = await call.files.read(path, max_size=READ_LIMIT)
    try:
        text = content.data.decode()
    except UnicodeDecodeError:
        raise EditRefused(path=path, reason="it is not UTF-8 text", remedy="Change it with runBash.") from None
    edit = replace_exactly(text, oldText, newText, every=bool(replaceAll), path=path)
    if edit.changed:
        await call.files.write(path, edit.text.encode(), expect=content.version)
    return edit.told(path), edit


async def list_dir(call: Call, path: str = ".") -> Answer:
    page = await call.files.list(path, limit=_LISTED)
    names, total = list(page.names), len(page.names)
    more, last = page.more, names[-1] if names else None
    while more and total < _COUNTED:
        page = await call.files.list(path, after=last, limit=100_000)
        total, more, last = total + len(page.names), page.more, page.names[-1] if page.names else last
    text = json.dumps(names, ensure_ascii=False)
    if _NOT_UTF8.search(text):
        text = json.dumps(names)
    if total > len(names):
        text += f"\n[The first {len(names)} of {total}{' or more' if more else ''} names; list a subfolder, or search with runBash.]"
    return text, names


async def run_bash(call: Call, command: str, *, timeout_ms: int | None = None) -> Answer:
    await call.gate.require(CommandRequest(command))
    result = await call.run.sandbox.exec.run(command, deadline_ms=whole_seconds(timeout_ms), output_limit=OUTPUT_LIMIT)
    return await command_answer(call.run.sandbox.files, call.tool, call.id, result), result


def whole_seconds(timeout_ms: int | None) -> int | None:
    """Return the time rounded up to a whole second."""
    return None if timeout_ms is None else math.ceil(timeout_ms / 1_000) * 1_000


@dataclass(frozen=True, slots=True)
class WorkspaceTool:
    """One of the five, as the toolkit binds it."""

    name: str
    description: str
    arguments: type[BaseModel]
    run: Callable[..., Awaitable[Answer]]


def workspace_tools(timeout_ms: int | None) -> dict[str, WorkspaceTool]:
    """Return the five by name; `timeout_ms` bounds each command."""

    async def run_bounded(call: Call, command: str) -> Answer:
        return await run_bash(call, command, timeout_ms=timeout_ms)

    seconds = whole_seconds(timeout_ms)
    bound = "" if seconds is None else f" It is ended after {seconds // 1_000} s."
    tools = (
        WorkspaceTool(
            "readFile",
            "Read a text file. Without a range it returns the file as it is, up to 256 KiB. With startLine or endLine it returns those "
            "lines of a file of any size, under a header that names them and the number of lines.",
            ReadFile,
            read_file,
        ),
        WorkspaceTool(
            "writeFile", "Write a file as a whole. Missing folders are made; an existing file is replaced.", WriteFile, write_file
        ),
        WorkspaceTool(
            "editFile",
            "Replace an exact piece of a text file. It must occur once, unless replaceAll is set. The rest of the file stays as it is.",
            EditFile,
            edit_file,
        ),
        WorkspaceTool("listDir", "List the names in a folder, as a JSON array in byte order.", ListDir, list_dir),
        WorkspaceTool(
            "runBash",
            "Run a shell command in the workspace's root and return its stdout, stderr and exitCode. Each call is a fresh /bin/sh: "
            f"files stay, folder changes and variables do not; there is no input.{bound} Long output loses its middle. "
            "A person may be asked first.",
            RunBash,
            run_bounded,
        ),
    )
    return {tool.name: tool for tool in tools}


async def _kept_by_us(call: Call, path: str) -> bool:
    real = await call.files.real_path(path)
    return real.inside and real.path.startswith(f"{call.run.sandbox.workspace_root.rstrip('/')}/{offload.FOLDER}/")


def _decoded(data: bytes, path: str) -> str:
    """Decode, or say plainly what it is. A NUL marks a binary file."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise FileRefused(kind="not_text", path=path, reason=f"This is not UTF-8 text but binary data of {len(data)} bytes")
    return text
