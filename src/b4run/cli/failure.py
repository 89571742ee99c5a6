"""The one place that maps what a command raised to a message on stderr and an exit code."""

from __future__ import annotations

import sys
import traceback

from b4run.cli.main import EXIT_FAILED, EXIT_TIMEOUT, EXIT_USAGE
from b4run.errors import B4Error, DeadlinePassed


class UsageError(Exception):
    """The command line or its input cannot be used as it stands; exit code 2."""


def report(error: Exception, *, debug: bool) -> int:
    """Print the message, then code and hint; a traceback only when asked for. Return the exit code."""
    if debug:
        traceback.print_exception(error)
    if isinstance(error, UsageError):
        print(error, file=sys.stderr)
        return EXIT_USAGE
    if isinstance(error, B4Error):
        print(describe(error.message, error.code, error.remedy), file=sys.stderr)
        return EXIT_TIMEOUT if isinstance(error, DeadlinePassed) else EXIT_FAILED
    hint = "This was not expected. Run it again with --debug to see where it happened."
    print(describe(f"{type(error).__name__}: {error}", B4Error.code, hint), file=sys.stderr)
    return EXIT_FAILED


def describe(message: str, code: str, hint: str) -> str:
    """Return a message with its code and hint on an indented line below."""
    return f"{message}\n    [{code}] {hint}".rstrip()
