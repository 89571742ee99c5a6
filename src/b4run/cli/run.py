"""`b4 run ROUTE [TEXT|-]`: one turn as one JSON document, or a conversation on a terminal."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, redirect_stdout
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from b4run.cli.aio import read_line, run_async
from b4run.cli.approvals import ask
from b4run.cli.failure import UsageError, describe, report
from b4run.cli.main import EXIT_INTERRUPTED
from b4run.cli.output import note, print_json, printable
from b4run.cli.parser import add_json, add_metadata, metadata_of, seconds
from b4run.cli.screen import Screen
from b4run.errors import B4Error, DeadlinePassed, RouteUnknown

if TYPE_CHECKING:
    from b4run.agents import Interrupt, Route
    from b4run.app import App


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("route", metavar="ROUTE", help="a route's id, such as /fix, or its file")
    parser.add_argument("text", metavar="TEXT", nargs="?", help="what to tell the agent; `-` or nothing: JSON on standard input")
    parser.add_argument("--thread", metavar="ID", help="go on with this conversation (default: a new one)")
    parser.add_argument("--timeout", metavar="SECONDS", type=seconds, help="end the run after that time, with exit code 124")
    add_metadata(parser)
    add_json(parser)
    parser.set_defaults(execute=_run)


def _run(options: argparse.Namespace) -> int:
    thread_id = options.thread or f"t-cli-{uuid.uuid4()}"
    if options.json or not sys.stdout.isatty():
        return _as_document(options, thread_id)
    return run_async(_converse(options, thread_id))


@dataclass(slots=True)
class _Document:
    """The one JSON document that a run prints, whatever becomes of it."""

    route: str
    thread_id: str
    started: datetime = field(default_factory=lambda: datetime.now(UTC))
    clock: float = field(default_factory=time.monotonic)
    root: Path | None = None
    mode: str | None = None
    file: str | None = None
    output: Any = None
    error: dict[str, Any] | None = None
    diagnostics: list[dict[str, Any]] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        document = {
            "appRoot": None if self.root is None else str(self.root),
            "startedAt": self.started.isoformat(),
            "finishedAt": datetime.now(UTC).isoformat(),
            "durationMs": round((time.monotonic() - self.clock) * 1_000, 3),
            "executionSource": "in-process",
            "mode": self.mode,
            "output": self.output,
            "routeId": self.route,
            "routePath": self.file,
            "threadId": self.thread_id,
            "status": "passed" if self.error is None else "failed",
        }
        extra = {"diagnostics": self.diagnostics, "error": self.error}
        return document | {key: value for key, value in extra.items() if value}


def _as_document(options: argparse.Namespace, thread_id: str) -> int:
    document = _Document(options.route, thread_id)
    code = 0
    with redirect_stdout(sys.stderr):  # What the app prints is not the document.
        try:
            run_async(_turn(options, document))
        except KeyboardInterrupt:
            code, document.error = EXIT_INTERRUPTED, {"kind": "interrupted", "message": "The run was interrupted."}
        except Exception as error:  # noqa: BLE001 - whatever happens, there is one document
            code, document.error = report(error, debug=options.debug), _error(error)
    print_json(document.as_dict())
    return code


def _error(error: Exception) -> dict[str, Any]:
    if isinstance(error, B4Error):
        return {"kind": error.code, "message": error.message, "details": {"hint": error.remedy}}
    return {"kind": "usage" if isinstance(error, UsageError) else B4Error.code, "message": str(error) or type(error).__name__}


async def _turn(options: argparse.Namespace, document: _Document) -> None:
    from b4run.app import open_app
    from b4run.threads import holding

    given = _input(options.text)
    async with open_app(options.app, can_ask=False, metadata_of=metadata_of(options)) as app:
        document.root, document.diagnostics = app.root, [warning.as_dict() for warning in app.warnings]
        route = _route(app, options.route)
        document.route, document.mode, document.file = route.id, route.kind, str(app.root / route.file)
        async with holding(app.storage.slots, document.thread_id), _deadline(options):
            document.output = (await app.runtime.run(route.id, given, thread_id=document.thread_id)).output


def _route(app: App, given: str) -> Route:
    """Return the route of that id or file. Raises: RouteUnknown."""
    path = Path(given).resolve()
    for route in app.routes.values():
        if route.id == given or app.root / route.file == path:
            return route
    raise RouteUnknown(route=given, known=", ".join(app.routes))


def _input(text: str | None) -> Any:
    """Return the text given, or the JSON on standard input. Raises: UsageError: there is none."""
    if text is not None and text != "-":
        return text
    try:
        data = sys.stdin.buffer.read().decode()
        if not data.strip():
            raise UsageError("b4 run: standard input is empty\n    Give plain text as an argument: b4 run ROUTE 'text'")
        return json.loads(data)
    except ValueError as error:
        raise UsageError(f"b4 run: standard input is not JSON: {error}\n    Give plain text as an argument: b4 run ROUTE 'text'") from error


@asynccontextmanager
async def _deadline(options: argparse.Namespace) -> AsyncIterator[None]:
    """End what is inside after `--timeout`. Raises: DeadlinePassed."""
    try:
        async with asyncio.timeout(options.timeout) as timeout:
            yield
    except TimeoutError as late:
        if not timeout.expired():
            raise
        raise DeadlinePassed(operation=f"The run of {options.route}", seconds=options.timeout) from late


async def _converse(options: argparse.Namespace, thread_id: str) -> int:
    """Take turns until the input ends; with TEXT, or input that is piped in, take one."""
    from b4run.app import open_app
    from b4run.threads import holding

    at_terminal = sys.stdin.isatty()
    once = options.text is not None or not at_terminal
    given = _input(options.text) if once else None
    async with open_app(options.app, can_ask=at_terminal, metadata_of=metadata_of(options)) as app:
        route = _route(app, options.route)
        for warning in app.warnings:
            note(f"warning: {describe(warning.text, warning.code, warning.hint)}")
        note(f"{route.id} on thread {printable(thread_id)}")
        async with holding(app.storage.slots, thread_id), _deadline(options):
            waiting = await app.runtime.pending(route.id, thread_id=thread_id)
            if waiting and at_terminal:
                await _settle(app, route.id, thread_id, waiting)
            if once:
                await _take_turn(app, route.id, given, thread_id)
            while not once and (line := await _next_line()) is not None:
                try:
                    await _take_turn(app, route.id, line, thread_id)
                except B4Error as error:  # The conversation can go on from where it is.
                    note(describe(error.message, error.code, error.remedy))
    return 0


async def _next_line() -> str | None:
    """Return the next line that says something; None when the input has ended."""
    while True:
        print("> ", end="", file=sys.stderr, flush=True)
        line = await read_line()
        if line is None or line.strip():
            return line


async def _take_turn(app: App, route: str, given: Any, thread_id: str) -> None:
    with Screen() as screen:
        result = await app.runtime.run(route, given, thread_id=thread_id, on_event=screen.show)
    if result.interrupts:
        await _settle(app, route, thread_id, result.interrupts)


async def _settle(app: App, route: str, thread_id: str, waiting: Sequence[Interrupt]) -> None:
    """Ask for every approval that the run waits for, until it ends."""
    while waiting:
        answers = {interrupt.id: await ask(interrupt.prompt) for interrupt in waiting}
        with Screen() as screen:
            waiting = (await app.runtime.resume(route, answers, thread_id=thread_id, on_event=screen.show)).interrupts
