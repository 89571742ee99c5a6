"""`b4 start`: serve the app, for production."""

from __future__ import annotations

import argparse
import os
import socket
from ipaddress import ip_address

from b4run.cli.aio import run_async
from b4run.cli.failure import UsageError
from b4run.cli.output import note
from b4run.cli.parser import seconds

DEFAULT_PORT = 8_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", metavar="ADDRESS", default=os.environ.get("HOST") or "0.0.0.0", help="default: $HOST, else 0.0.0.0")
    parser.add_argument("--port", metavar="PORT", type=port, default=_default_port(), help="0 for any free one (default: $PORT, else 8000)")
    parser.add_argument(
        "--open", action="store_true", help="serve beyond this machine without an access policy: everybody may do everything"
    )
    parser.add_argument(
        "--drain", metavar="SECONDS", type=seconds, default=30.0, help="how long runs may go on after SIGTERM or SIGINT (default: 30)"
    )
    parser.add_argument("--log-format", choices=("json", "text"), default="json", help="of the log on standard error (default: json)")
    parser.set_defaults(execute=_start)


def port(text: str) -> int:
    """Read a port: 0 to 65535."""
    if not text.isascii() or not text.isdigit() or int(text) > 65_535:
        raise argparse.ArgumentTypeError("must be a number from 0 to 65535")
    return int(text)


def _default_port() -> int:
    text = os.environ.get("PORT", "")
    return int(text) if text.isascii() and text.isdigit() and int(text) <= 65_535 else DEFAULT_PORT


def _start(options: argparse.Namespace) -> int:
    return run_async(_serve(options))


async def _serve(options: argparse.Namespace) -> int:
    from b4run.app import open_app
    from b4run.app.access import load_access
    from b4run.config import find_root
    from b4run.server.logs import set_up_logging
    from b4run.server.serving import serve

    set_up_logging(options.log_format, debug=options.debug)
    root = find_root(options.app)
    if load_access(root).policy is None and not options.open and not is_loopback(options.host):
        raise UsageError(
            f"b4 start: {options.host} is reachable from elsewhere, and the app has no thread_access.py: anybody could use every thread\n"
            "    Add thread_access.py, listen on 127.0.0.1 with --host, or accept it with --open."
        )
    listening = listen(options.host, options.port)
    try:
        async with open_app(root) as app:
            for warning in app.warnings:
                note(f"warning: {warning.text} [{warning.code}]")
            await serve(app, listening, drain_s=options.drain, on_ready=lambda _: note(f"Serving on {url_of(listening)}"))
    finally:
        listening.close()
    return 0


def listen(host: str, number: int) -> socket.socket:
    """Return a listening socket. Raises: UsageError: the address cannot be had."""
    from b4run.server.serving import bind

    try:
        return bind(host, number)
    except (OSError, OverflowError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"b4: cannot listen on {host} port {number}: {reason}\n    Name another with --port.") from error


def url_of(listening: socket.socket) -> str:
    """Return where a socket is reached."""
    host, number = listening.getsockname()[:2]
    return f"http://[{host}]:{number}" if ":" in host else f"http://{host}:{number}"


def is_loopback(host: str) -> bool:
    """Whether an address is this machine's alone."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
