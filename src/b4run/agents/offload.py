"""Keeps what is too long for the conversation in a file of the workspace. Such a file is never removed: the transcript names it."""

from __future__ import annotations

import hashlib
import re

from b4run.errors import FileRefused
from b4run.sandbox.contract import FileBackend

FOLDER = "tool-outputs"
THRESHOLD = 40_000
"""Characters of a result that stay in the conversation."""

PREVIEW_LINES = 10
_PREVIEW_CHARACTERS = 2_000
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")


async def keep(files: FileBackend, tool: str, call_id: str, text: str) -> str:
    """Write a text beside the earlier ones and return its path in the workspace. Raises: FileRefused, SandboxLost."""
    data = text.encode(errors="replace")
    digest = hashlib.sha256(data).hexdigest()
    name = _NOT_IN_NAMES.sub("_", f"{tool}-{call_id or digest[:16]}")[:120]
    path = f"{FOLDER}/{name}.txt"
    try:
        await files.write(path, data, create=True)
    except FileRefused as error:
        if error.kind != "exists":
            raise
        path = f"{FOLDER}/{name}-{digest[:16]}.txt"
        await files.write(path, data)
    return path


async def shortened(files: FileBackend, tool: str, call_id: str, text: str) -> str:
    """Return the text itself, or where the whole of it is and how it begins."""
    if len(text) <= THRESHOLD:
        return text
    try:
        path = await keep(files, tool, call_id, text)
    except FileRefused as error:
        half = THRESHOLD // 2
        return f"{text[:half]}\n[... {len(text) - THRESHOLD} characters left out; they could not be kept: {error.kind} ...]\n{text[-half:]}"
    return (
        f"[The result has {len(text)} characters, more than the {THRESHOLD} that fit here. The whole is in {path}: "
        f"read it with readFile, by lines with startLine and endLine. It begins:]\n{beginning(text)}"
    )


def beginning(text: str) -> str:
    return _lines(text[:_PREVIEW_CHARACTERS].splitlines(keepends=True)[:PREVIEW_LINES])


def end(text: str) -> str:
    return _lines(text[-_PREVIEW_CHARACTERS:].splitlines(keepends=True)[-PREVIEW_LINES:])


def _lines(lines: list[str]) -> str:
    return "".join(lines)
