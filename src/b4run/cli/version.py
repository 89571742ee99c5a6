"""`b4 version`."""

from __future__ import annotations

import argparse
from importlib.metadata import PackageNotFoundError, version


def configure(parser: argparse.ArgumentParser) -> None:
    parser.set_defaults(execute=_version)


def _version(options: argparse.Namespace) -> int:
    try:
        print(f"b4run {version('b4run')}")
    except PackageNotFoundError:
        print("b4run, not installed")
    return 0
