"""`b4 routes`."""

from __future__ import annotations

import argparse

from b4run.app import load_routes
from b4run.cli.output import print_json, table
from b4run.cli.parser import add_json
from b4run.config import find_root, load_config


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.set_defaults(execute=_routes)


def _routes(options: argparse.Namespace) -> int:
    routes = load_routes(load_config(find_root(options.app)))
    if options.json:
        documents = [
            {"id": r.id, "kind": r.kind, "file": r.file, "tools": sorted(r.tools), "subagents": sorted(r.subagents)}
            for r in routes.values()
        ]
        print_json(documents)
    else:
        rows = [(r.id, r.kind, r.file, ", ".join(sorted(r.tools)) or "-", ", ".join(sorted(r.subagents)) or "-") for r in routes.values()]
        print(table(("ROUTE", "KIND", "FILE", "TOOLS", "SUBAGENTS"), rows))
    return 0
