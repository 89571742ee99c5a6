"""Argument parsing that all commands share."""

from __future__ import annotations

import argparse
import io
import json
import logging
import os
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from b4run.cli.main import EXIT_USAGE


class Parser(argparse.ArgumentParser):
    """Takes no abbreviated options, so that a new option never changes what a script means."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"allow_abbrev": False} | settings)

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n    `{self.prog} --help` tells what it takes.\n")


def parse(command: str, summary: str, arguments: Sequence[str]) -> argparse.Namespace:
    """Load the module of `command` and parse what it was given; exits with code 2 when that cannot be used."""
    parser = Parser(prog=f"b4 {command}", description=_sentence(summary))
    add_common(parser)
    import_module(f"b4run.cli.{command}").configure(parser)
    options = parser.parse_args(arguments)
    if not hasattr(options, "execute"):
        parser.error("name one of its commands")
    _set_up_streams(options.debug)
    return options


def _set_up_streams(debug: bool) -> None:
    """Let file names that are not UTF-8 pass. What a command has to say it says itself; the log is for `--debug`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")
    if debug:
        logging.basicConfig(level=logging.DEBUG, format="%(name)s: %(message)s")
    else:
        logging.getLogger("b4run").addHandler(logging.NullHandler())


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."


Execute = Callable[[argparse.Namespace], int]


def add_common(parser: argparse.ArgumentParser, *, defaults: bool = True) -> None:
    """Add the options that every command takes; a command below another one repeats them without `defaults`."""
    suppressed = argparse.SUPPRESS
    app = os.environ.get("B4_APP") or None
    parser.add_argument(
        "--app",
        metavar="DIR",
        type=Path,
        default=(Path(app) if app else None) if defaults else suppressed,
        help="the app's folder, or one beneath it (default: $B4_APP, else the current folder)",
    )
    parser.add_argument("--debug", action="store_true", default=False if defaults else suppressed, help="print tracebacks")


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add `--json` for commands that scripts read."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def seconds(text: str) -> float:
    """Read the value of `--timeout`: seconds from 0.001 to a year."""
    value = float(text)
    if not 0.001 <= value <= 365 * 86_400:
        raise argparse.ArgumentTypeError("must be between 0.001 and a year")
    return value


def add_metadata(parser: argparse.ArgumentParser) -> None:
    """Add `--metadata`, which resolvers of workspaces are told of a thread."""
    parser.add_argument("--metadata", metavar="JSON", type=_object, default={}, help="what a new thread is created with, for its resolver")


def _object(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise argparse.ArgumentTypeError('must be a JSON object, such as \'{"task": "one"}\'')
    return found


def metadata_of(options: argparse.Namespace) -> Callable[[str], Awaitable[Mapping[str, Any]]]:
    """Return what `--metadata` says, for any thread."""

    async def given(_: str) -> Mapping[str, Any]:
        return dict(options.metadata)

    return given


def add_commands(parser: argparse.ArgumentParser) -> argparse._SubParsersAction[Parser]:
    """Give a command commands of its own."""
    return parser.add_subparsers(metavar="COMMAND", title="commands", parser_class=Parser)


def add_command(commands: argparse._SubParsersAction[Parser], name: str, summary: str, execute: Execute) -> Parser:
    """Add one command below another."""
    parser = commands.add_parser(name, help=summary, description=_sentence(summary))
    add_common(parser, defaults=False)
    parser.set_defaults(execute=execute)
    return parser
