"""`b4 check`."""

from __future__ import annotations

import argparse
import sys

from b4run.app import Report, check_app
from b4run.cli.aio import run_async
from b4run.cli.failure import describe
from b4run.cli.main import EXIT_FAILED
from b4run.cli.output import coloured, note, print_json, printable
from b4run.cli.parser import add_json
from b4run.config import find_root
from b4run.sandbox.contract import Severity

_COLOURS = {Severity.ERROR: "red", Severity.WARNING: "yellow", Severity.OK: "green"}


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.add_argument("--no-preflight", action="store_true", help="do not ask the sandbox provider what this host enforces")
    parser.set_defaults(execute=_check)


def _check(options: argparse.Namespace) -> int:
    report = run_async(check_app(find_root(options.app), preflight=not options.no_preflight))
    if options.json:
        print_json(report.as_dict())
    else:
        _print(report)
    return 0 if report.ok else EXIT_FAILED


def _print(report: Report) -> None:
    for issue in report.issues:
        label = coloured(issue.severity.value, _COLOURS[issue.severity], sys.stderr)
        note(f"{label}: {describe(printable(issue.text), issue.code, issue.hint)}")
    errors, warnings = report.count(Severity.ERROR), report.count(Severity.WARNING)
    if not report.ok:
        note(f"The app in {report.root} cannot run: {_number(errors, 'error')}, {_number(warnings, 'warning')}.")
        return
    for route in report.routes:
        print(f"{route.id}  {route.kind}  {route.file}")
    print(f"Workspace: {report.workspace}.")
    print(f"The app is valid: {_number(len(report.routes), 'route')}, {_number(warnings, 'warning')}.")


def _number(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"
