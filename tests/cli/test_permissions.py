"""`b4 permissions`."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from b4run.permissions import Grant, Key
from b4run.storage import app_storage_url, open_storage

from .conftest import B4


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text("config = {}")


def keep(root: Path, grants: Iterable[Grant]) -> list[int]:
    async def add() -> list[int]:
        async with open_storage(app_storage_url(root)) as storage:
            return [(await storage.grants.add(grant)).id for grant in grants]

    return asyncio.run(add())


def test_ls_shows_what_was_allowed(b4: B4, tmp_path: Path) -> None:
    empty = b4("permissions", "ls")
    assert (empty.code, empty.out) == (0, "")
    assert b4("permissions", "ls", "--json").json == []
    first, second = keep(
        tmp_path,
        [Grant(Key.BASH, "npm test\x1b[2J", thread_id="t-1", granted_by="ann"), Grant(Key.READ_FILE, "/etc/ssl/", exact=False)],
    )
    listed = b4("permissions", "ls", "--json").json
    assert [(g["id"], g["key"], g["pattern"], g["exact"], g["threadId"], g["grantedBy"]) for g in listed] == [
        (first, "bash", "npm test\x1b[2J", True, "t-1", "ann"),
        (second, "readFile", "/etc/ssl/", False, None, ""),
    ]
    table = b4("permissions", "ls").out
    assert "\x1b" not in table and "npm test\\x1b[2J" in table
    assert [grant["id"] for grant in b4("permissions", "ls", "--json", "--thread", "t-2").json] == [second]


def test_revoke_by_id_all_or_none(b4: B4, tmp_path: Path) -> None:
    first, second = keep(tmp_path, [Grant(Key.BASH, "ls", thread_id="t-1"), Grant(Key.BASH, "make", thread_id="t-1")])
    refused = b4("permissions", "revoke", str(first), "999")
    assert (refused.code, refused.err.splitlines()[0]) == (1, "There is no permission with the id 999.")
    assert len(b4("permissions", "ls", "--json").json) == 2
    assert b4("permissions", "revoke", str(first)).code == 0
    assert [grant["id"] for grant in b4("permissions", "ls", "--json").json] == [second]


def test_revoke_all_of_a_thread(b4: B4, tmp_path: Path) -> None:
    keep(tmp_path, [Grant(Key.BASH, "ls", thread_id="t-1"), Grant(Key.BASH, "make", thread_id="t-2")])
    assert b4("permissions", "revoke", "--thread", "t-1").err == "Revoked 1 permission.\n"
    assert [grant["threadId"] for grant in b4("permissions", "ls", "--json").json] == ["t-2"]
