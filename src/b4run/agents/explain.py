"""Turns what went wrong in a tool call into a text that the model can act on: code, reason, remedy; nothing of the host."""

from __future__ import annotations

import os
import re
import site
import sys
import tempfile
from functools import cache
from pathlib import Path

from b4run.errors import B4Error, FileRefused, SandboxUnavailable, ToolFailed

_LONGEST = 2_000

_FILE_REMEDIES = {
    "not_found": "listDir shows what is there.",
    "is_directory": "Use listDir for a folder.",
    "not_directory": "Use readFile for a file.",
    "too_large": "Read a part of it with startLine and endLine, or search it with runBash.",
    "bad_range": "Ask for lines that the file has.",
    "changed": "Read it again, and edit what it holds now.",
    "outside": "Work inside the workspace.",
    "no_space": "Remove what is not needed.",
}


def explain(error: BaseException, tool: str) -> str:
    """Return the text of an error result."""
    known = error if isinstance(error, B4Error) else ToolFailed(tool=tool, reason=_reason(error))
    message, remedy = known.message.rstrip(), known.remedy
    if isinstance(known, FileRefused):
        message += _numbers(known)
        remedy = remedy or _FILE_REMEDIES.get(known.kind, "")
    elif isinstance(known, SandboxUnavailable):
        message = without_host_paths(message)
    if message and message[-1] not in ".!?":
        message += "."
    return f"[{known.code}] {message} {remedy}".rstrip()


def without_host_paths(text: str) -> str:
    """Return the text with each path below the host's own folders cut to its last part."""
    for folder in _host_folders():
        text = re.sub(re.escape(folder) + r"(?:/[^\s'\":,;]+)?", lambda found: found[0].rsplit("/", 1)[-1], text)
    return text


def _numbers(error: FileRefused) -> str:
    size, total = error.fields.get("size"), error.fields.get("total")
    told = ([f"{size} bytes"] if size is not None else []) + ([f"{total} lines in all"] if total is not None else [])
    return f" ({', '.join(told)})" if told else ""


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError) and error.strerror:
        name = f" ({Path(os.fsdecode(error.filename)).name})" if isinstance(error.filename, (str, bytes)) else ""
        return f"{error.strerror}{name}"
    if isinstance(error, TimeoutError):
        return "it took too long"
    text = without_host_paths(str(error)).strip()
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


@cache
def _host_folders() -> tuple[str, ...]:
    places = {str(Path.home()), str(Path.cwd()), sys.prefix, sys.base_prefix, tempfile.gettempdir(), *site.getsitepackages()}
    shared = {"/", "/usr", "/tmp", "/workspace"}
    return tuple(sorted((place for place in places if place not in shared), key=len, reverse=True))
