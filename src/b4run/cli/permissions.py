"""`b4 permissions ls|revoke`: what people allowed for good, and taking it back."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from b4run.cli.aio import run_async
from b4run.cli.failure import UsageError
from b4run.cli.output import note, print_json, table
from b4run.cli.parser import add_command, add_commands, add_json
from b4run.config import find_root, load_config
from b4run.errors import GrantUnknown
from b4run.permissions import Grant
from b4run.storage import app_storage_url, open_storage


def configure(parser: argparse.ArgumentParser) -> None:
    commands = add_commands(parser)
    ls = add_command(commands, "ls", "list what was allowed for good", _ls)
    ls.add_argument("--thread", metavar="ID", help="only what holds for this thread")
    add_json(ls)
    revoke = add_command(commands, "revoke", "take permissions back; the next such call asks again", _revoke)
    revoke.add_argument("grants", metavar="ID", nargs="*", type=int, help="as `b4 permissions ls` shows it")
    revoke.add_argument("--thread", metavar="ID", help="everything that was allowed to this thread alone")


def _ls(options: argparse.Namespace) -> int:
    grants = run_async(_list(options))
    if options.json:
        print_json([_document(grant) for grant in grants])
    elif grants:
        rows = [
            (
                str(g.id),
                g.key.value,
                g.pattern,
                "exactly" if g.exact else "as a rule",
                g.thread_id or "every thread",
                f"{g.granted_at:%Y-%m-%d %H:%M}",
            )
            for g in grants
        ]
        print(table(("ID", "KIND", "PATTERN", "COVERS", "THREAD", "SINCE"), rows))
    else:
        note("Nothing was allowed for good.")
    return 0


def _document(grant: Grant) -> dict[str, object]:
    return {
        "id": grant.id,
        "key": grant.key.value,
        "pattern": grant.pattern,
        "exact": grant.exact,
        "threadId": grant.thread_id,
        "grantedBy": grant.granted_by,
        "grantedAt": grant.granted_at.isoformat() if grant.granted_at else None,
        "expiresAt": grant.expires_at.isoformat() if grant.expires_at else None,
    }


async def _list(options: argparse.Namespace) -> Sequence[Grant]:
    async with open_storage(_url(options)) as storage:
        return await storage.grants.list(options.thread)


def _url(options: argparse.Namespace) -> str:
    return app_storage_url(load_config(find_root(options.app)).root)


def _revoke(options: argparse.Namespace) -> int:
    if not options.grants and options.thread is None:
        raise UsageError("b4 permissions revoke: name an ID, or a thread with --thread")
    count = run_async(_take_back(options))
    note(f"Revoked {count} permission{'' if count == 1 else 's'}.")
    return 0


async def _take_back(options: argparse.Namespace) -> int:
    async with open_storage(_url(options)) as storage:
        known = {grant.id for grant in await storage.grants.list()}
        for grant_id in options.grants:
            if grant_id not in known:
                raise GrantUnknown(grant_id=grant_id)
        count = 0 if options.thread is None else await storage.grants.forget_thread(options.thread)
        return count + sum([await storage.grants.revoke(grant_id) for grant_id in options.grants])
