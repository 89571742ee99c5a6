"""`b4`: finds the command, loads only that one, and turns what it raises into a message and an exit code.

This module is imported by every call, so it imports next to nothing; see docs/decisions/0003-argparse.md.

Exit codes: 0 done; 1 refused or failed; 2 used wrongly; 124 out of time; 130 interrupted; 141 the reader of the output went away.
`b4 sandbox exec` passes on its command's code.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "check": "validate the app, and what its sandbox needs from this host",
    "run": "run one turn of a route: JSON in, JSON out, or live on a terminal",
    "dev": "serve the app on this machine, and restart it when a file changes",
    "start": "serve the app, for production",
    "routes": "list the app's routes",
    "sandbox": "list sandboxes, run a command in one, read its files, remove it",
    "workspace": "capture a folder, upload it to a server, read what a thread made of it",
    "permissions": "list and revoke what was allowed for good",
    "config": "show the effective configuration, or its JSON schema",
    "doctor": "tell what this host can enforce, and the remedy where it cannot",
    "demo": "watch an agent repair a failing test suite in a sandbox",
    "version": "print the version",
}
"""Every command and its line in the help; `b4run.cli.<name>` has `configure(parser)`, which sets the default `execute`."""

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_TIMEOUT = 124
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code."""
    leading, command, rest = _split(sys.argv[1:] if argv is None else argv)
    if command is None:
        return _without_command(leading)
    if command not in COMMANDS:
        return _usage(f"there is no command {command!r}{_near(command)}")
    try:
        return _execute(command, [*leading, *rest])
    except BrokenPipeError:
        # The interpreter must not write the rest of its buffer into the closed pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _split(arguments: Sequence[str]) -> tuple[list[str], str | None, list[str]]:
    """Return the options before the command, the command, and what follows it."""
    position = 0
    while position < len(arguments) and arguments[position].startswith("-"):
        position += 2 if arguments[position] == "--app" else 1
    leading, rest = list(arguments[:position]), list(arguments[position:])
    return leading, rest[0] if rest else None, rest[1:]


def _without_command(options: list[str]) -> int:
    if "-h" in options or "--help" in options:
        print(help_text())
        return 0
    if "--version" in options:
        return _execute("version", [])
    unknown = [option for option in options if option.startswith("-") and option.partition("=")[0] not in ("--app", "--debug")]
    return _usage(f"there is no option {unknown[0]}" if unknown else "name a command")


def help_text() -> str:
    """Return what `b4 --help` prints."""
    width = max(map(len, COMMANDS))
    return "\n".join(
        [
            "usage: b4 [--app DIR] [--debug] COMMAND ...",
            "",
            "An execution sandbox for AI agents.",
            "",
            "commands:",
            *(f"  {name:{width}}  {summary}" for name, summary in COMMANDS.items()),
            "",
            "options, before or after the command:",
            "  --app DIR   the app's folder, or one beneath it (default: $B4_APP, else the current folder)",
            "  --debug     print tracebacks",
            "  --version   print the version",
            "  -h, --help  print this, or after a command what that command takes",
        ]
    )


def _execute(command: str, arguments: list[str]) -> int:
    from b4run.cli.parser import parse

    options = None
    try:
        options = parse(command, COMMANDS[command], arguments)
        code = int(options.execute(options))
        sys.stdout.flush()
        return code
    except (BrokenPipeError, KeyboardInterrupt):
        raise
    except Exception as error:  # noqa: BLE001 - the one place where every failure becomes a message
        from b4run.cli.failure import report

        return report(error, debug=options.debug if options else "--debug" in arguments)


def _usage(message: str) -> int:
    print(f"b4: {message}\n    `b4 --help` lists the commands.", file=sys.stderr)
    return EXIT_USAGE


def _near(command: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(command, COMMANDS, n=1)
    return f"; did you mean `{near[0]}`?" if near else ""
