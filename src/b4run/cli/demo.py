"""`b4 demo`: an agent repairs a small Python project in a sandbox; the tests decide whether it did."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from b4run.cli.aio import run_async
from b4run.cli.main import EXIT_FAILED
from b4run.cli.output import print_json
from b4run.cli.parser import add_json

if TYPE_CHECKING:
    from b4run.cli.demo_run import Python, Repair
    from b4run.cli.demo_view import View
    from b4run.sandbox.contract import SandboxProvider


def _bubblewrap(options: argparse.Namespace, state_dir: Path) -> tuple[SandboxProvider, Python]:
    from b4run.cli.demo_run import find_python
    from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox

    python = find_python()
    return bubblewrap_sandbox(scope="demo", state_dir=state_dir, read_only_paths=python.read_only_paths), python


def _docker(options: argparse.Namespace, state_dir: Path) -> tuple[SandboxProvider, Python]:
    from b4run.cli.demo_run import Python
    from b4run.sandbox.providers.docker import docker_sandbox

    return docker_sandbox(scope="b4-demo", image=options.image), Python("python3")


Make = Callable[[argparse.Namespace, Path], tuple["SandboxProvider", "Python"]]
PROVIDERS: Mapping[str, Make] = {"bubblewrap": _bubblewrap, "docker": _docker}


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", metavar="PROVIDER:NAME", help="a real model instead of the scripted one; it needs that provider's key")
    parser.add_argument("--provider", choices=sorted(PROVIDERS), default="bubblewrap", help="what makes the sandbox (default: bubblewrap)")
    parser.add_argument(
        "--image",
        default="python:3.12-slim",
        help="for docker: an image with Python 3.11 or newer (default: python:3.12-slim, pulled if missing)",
    )
    add_json(parser)
    parser.set_defaults(execute=_demo)


def _demo(options: argparse.Namespace) -> int:
    from rich.console import Console

    from b4run.cli.demo_files import packaged_files
    from b4run.cli.demo_run import repair
    from b4run.cli.demo_view import View

    view = View(Console(highlight=False, quiet=options.json))
    view.note(f"{len(packaged_files())} files of a Python project go into a {options.provider} sandbox, its network closed.")
    view.note(f"The agent is {'scripted' if options.model is None else options.model}; every call below really runs in there.\n")
    with tempfile.TemporaryDirectory(prefix="b4-demo-") as folder:
        provider, python = PROVIDERS[options.provider](options, Path(folder, "sandboxes"))
        result = run_async(repair(provider, options.model, python.tests, view.call))
    if options.json:
        print_json({"provider": options.provider, "model": options.model or "scripted"} | result.as_dict())
    else:
        _conclude(view, result, python.tests)
    return 0 if result.fixed else EXIT_FAILED


def _conclude(view: View, result: Repair, tests: str) -> None:
    view.note(f"\n{result.reply}\n")
    view.diff(result.diff or "Nothing was changed.")
    last = (result.after.stderr.strip() or result.after.stdout.strip()).rpartition("\n")[2]
    told = f"`{tests}` in the sandbox ends with exit code {result.after.exit_code}: {last}"
    view.note(f"\n{'Fixed' if result.fixed else 'Not fixed'}. {told}", "green" if result.fixed else "red")
