"""`b4 dev`: serve the app on this machine and start it anew whenever one of its files changes.

A parent owns port and watch; a child serves. So the port and the URL stay, connections that arrive during a restart wait, and an edit
that breaks the app only ends the child.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from b4run.cli.aio import run_async
from b4run.cli.output import note
from b4run.cli.start import listen, port, url_of
from b4run.config import find_root

DEFAULT_PORT = 2_024
LOOK_EVERY_S = 0.4
STOP_S = 5.0
"""How long a child may take to end; then it is killed."""
_NOT_WATCHED = frozenset({"workspace", "node_modules", "__pycache__", ".git", ".venv", "venv"})
"""Where agents and tools write; besides, every folder whose `.gitignore` leaves out all of it, as `.b4` and sandboxes' have it."""
_MAX_WATCHED = 20_000


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", metavar="PORT", type=port, help="default: 2024, or any free one if that is taken")
    parser.add_argument("--inherited", type=int, help=argparse.SUPPRESS)
    parser.set_defaults(execute=_dev)


def _dev(options: argparse.Namespace) -> int:
    if options.inherited is not None:
        return run_async(_serve(options))
    root = find_root(options.app)
    listening = _listen(options.port)
    note(f"Serving {root.name} on {url_of(listening)}; a change of its files restarts it, Ctrl-C ends it")
    listening.set_inheritable(True)
    parent = _Parent(root, listening.fileno(), options.debug)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        return parent.watch()
    except KeyboardInterrupt:
        return 0
    finally:
        parent.stop()
        listening.close()


def _listen(asked: int | None):  # type: ignore[no-untyped-def]
    from b4run.cli.failure import UsageError

    if asked is not None:
        return listen("127.0.0.1", asked)
    try:
        return listen("127.0.0.1", DEFAULT_PORT)
    except UsageError:
        return listen("127.0.0.1", 0)


class _Parent:
    def __init__(self, root: Path, descriptor: int, debug: bool) -> None:
        self._root = root
        self._descriptor = descriptor
        self._debug = debug
        self._child: subprocess.Popen[bytes] | None = None

    def watch(self) -> int:
        """Restart the child for every change, until interrupted; ends when the first child cannot start."""
        seen = snapshot(self._root)
        began = time.monotonic()
        served = False
        self._start()
        while True:
            time.sleep(LOOK_EVERY_S)
            now = snapshot(self._root)
            if now != seen:
                changed = sorted(set(now.items()) ^ set(seen.items()))[0][0]
                note(f"Restarting: {changed} changed")
                seen = now
                self.stop()
                self._start()
                continue
            if self._child is not None and (code := self._child.poll()) is not None:
                self._child = None
                if not served and time.monotonic() - began < 60:
                    return code or 1
                note(f"The app ended with code {code}; it starts again when a file changes")
            elif self._child is not None and time.monotonic() - began > 1:
                served = True

    def stop(self) -> None:
        """End the child, by force if it takes long."""
        child, self._child = self._child, None
        if child is None:
            return
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _start(self) -> None:
        command = [sys.executable, "-m", "b4run.cli", "dev", "--app", str(self._root), "--inherited", str(self._descriptor)]
        self._child = subprocess.Popen(command + (["--debug"] if self._debug else []), pass_fds=[self._descriptor], start_new_session=True)


def snapshot(root: Path) -> dict[str, tuple[int, int]]:
    """Return what the app's files look like now: time and size by path, without places that agents write to."""
    found: dict[str, tuple[int, int]] = {}
    for folder, folders, files in os.walk(root):
        if ".gitignore" in files and _ignores_all(os.path.join(folder, ".gitignore")):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if name not in _NOT_WATCHED)
        for name in files:
            path = os.path.join(folder, name)
            try:
                status = os.stat(path)
            except OSError:
                continue
            found[os.path.relpath(path, root)] = (status.st_mtime_ns, status.st_size)
            if len(found) >= _MAX_WATCHED:
                return found
    return found


def _ignores_all(path: str) -> bool:
    try:
        with open(path, "rb") as file:
            return b"*" in file.read(1_024).splitlines()
    except OSError:
        return False


async def _serve(options: argparse.Namespace) -> int:
    """The child: the same server as in production, with a short drain and a log for people."""
    import socket

    from b4run.app import open_app
    from b4run.server.logs import set_up_logging
    from b4run.server.serving import serve

    set_up_logging("text", debug=options.debug)
    listening = socket.socket(fileno=options.inherited)
    async with open_app(options.app) as app:
        for warning in app.warnings:
            note(f"warning: {warning.text} [{warning.code}]")
        await serve(app, listening, drain_s=1.0, on_ready=lambda _: note(f"Ready: {', '.join(app.routes)}"))
    return 0
