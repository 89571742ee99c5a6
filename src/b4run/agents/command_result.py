"""How a command's result reads to the model: one JSON object, in which only what is true is said."""

from __future__ import annotations

import json
import signal
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from b4run.agents import offload
from b4run.errors import FileRefused
from b4run.sandbox.contract import Cause, ExecResult, FileBackend


async def command_answer(files: FileBackend, tool: str, call_id: str, result: ExecResult) -> str:
    """Return the object as text; output that is too long for the conversation goes to a file, and its beginning and end stay."""
    facts = _facts(result)
    whole = _json({"stdout": result.stdout, "stderr": result.stderr} | facts)
    if len(whole) <= offload.THRESHOLD:
        return whole
    where = "and could not be kept"
    with suppress(FileRefused):
        kept = await offload.keep(files, tool, call_id, _both(result))
        where = f"the whole that was kept is in {kept}: read it with readFile"
    return _json({"stdout": _cut(result.stdout, where), "stderr": _cut(result.stderr, where)} | facts | _counted(result))


def _facts(result: ExecResult) -> dict[str, Any]:
    facts: dict[str, Any] = {"exitCode": result.exit_code}
    if result.cause is Cause.TIMEOUT:
        facts["timedOut"] = True
    if result.signal is not None:
        facts["signal"] = _signal_name(result.signal)
    if result.cause is Cause.OOM:
        facts["oom"] = True
    if result.out.truncated or result.err.truncated:
        facts |= _counted(result)
    return facts


def _counted(result: ExecResult) -> dict[str, Any]:
    return {"truncated": True, "totalBytes": result.out.total + result.err.total}


def _signal_name(number: int) -> str:
    with suppress(ValueError):
        return signal.Signals(number).name
    return str(number)


def _both(result: ExecResult) -> str:
    if not result.err.total:
        return result.stdout
    return f"{result.stdout}\n--- stderr ---\n{result.stderr}" if result.out.total else result.stderr


def _cut(text: str, where: str) -> str:
    first, last = offload.beginning(text), offload.end(text)
    missing = len(text) - len(first) - len(last)
    return text if missing <= 0 else f"{first}\n[... {missing} characters left out; {where} ...]\n{last}"


def _json(answer: Mapping[str, Any]) -> str:
    return json.dumps(answer, ensure_ascii=False)
