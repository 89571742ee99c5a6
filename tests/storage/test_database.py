"""The database of an app: where it is made, how it is kept current, what it says when it cannot be used."""

import asyncio
import sqlite3
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import text

import b4run.storage
from b4run.errors import StorageUnusable
from b4run.permissions import Grant, Key
from b4run.storage import app_storage_url, open_storage, state_folder
from b4run.storage.tables import HEAD, metadata


def test_importing_the_package_loads_no_database_library():
    code = "import sys, b4run.storage; print(sorted(m for m in ('sqlalchemy', 'alembic', 'aiosqlite') if m in sys.modules))"
    result = subprocess.run(
        [sys.executable, "-c", code], check=False, capture_output=True, text=True, timeout=30, env={"PYTHONPATH": "src"}
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = b4run.storage.nothing


def test_the_state_folder_is_private_and_ignored_by_git(tmp_path):
    folder = state_folder(tmp_path)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_gitignore_that_is_there_stays(tmp_path):
    (tmp_path / ".b4").mkdir()
    (tmp_path / ".b4/.gitignore").write_text("mine\n")
    assert (state_folder(tmp_path) / ".gitignore").read_text() == "mine\n"


def test_a_file_in_the_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / ".b4").write_text("")
    with pytest.raises(StorageUnusable, match=r"\.b4 cannot be made"):
        state_folder(tmp_path)


async def test_sqlite_waits_for_writers_and_keeps_a_write_ahead_log(tmp_path):
    async with open_storage(app_storage_url(tmp_path)) as storage, storage.engines.durable.connect() as connection:
        pragmas = {name: await connection.scalar(text(f"PRAGMA {name}")) for name in ("journal_mode", "busy_timeout", "foreign_keys")}
    assert pragmas == {"journal_mode": "wal", "busy_timeout": 10_000, "foreign_keys": 1}


async def test_the_migrations_end_at_the_schema_of_the_tables(tmp_path):
    def differences(connection):
        return compare_metadata(MigrationContext.configure(connection), metadata)

    async with open_storage(app_storage_url(tmp_path)) as storage, storage.engines.durable.connect() as connection:
        assert await connection.run_sync(differences) == []


def test_the_newest_migration_is_the_one_the_tables_name():
    config = Config()
    config.set_main_option("script_location", str(Path(b4run.storage.__file__).with_name("migrations")))
    config.set_main_option("path_separator", "os")
    assert ScriptDirectory.from_config(config).get_heads() == [HEAD]


async def test_what_was_kept_is_there_after_reopening(tmp_path):
    url = app_storage_url(tmp_path)
    async with open_storage(url) as storage:
        kept = await storage.grants.add(Grant(Key.BASH, "npm test", thread_id="t-1"))
    async with open_storage(url) as storage:
        assert list(await storage.grants.list("t-1")) == [kept]


async def test_several_processes_may_open_a_new_database_at_once(tmp_path):
    code = (
        "import asyncio, sys\n"
        "from b4run.storage import open_storage\n"
        "async def main():\n"
        "    async with open_storage(sys.argv[1]) as storage:\n"
        "        print(len(await storage.grants.list()))\n"
        "asyncio.run(main())\n"
    )
    url = app_storage_url(tmp_path)
    pipe = asyncio.subprocess.PIPE
    started = [
        await asyncio.create_subprocess_exec(sys.executable, "-c", code, url, stdout=pipe, stderr=pipe, env={"PYTHONPATH": "src"})
        for _ in range(4)
    ]
    ended = await asyncio.wait_for(asyncio.gather(*(process.communicate() for process in started)), 60)
    assert [out for out, _ in ended] == [b"0\n"] * 4, ended


async def test_a_database_of_a_newer_version_is_refused(tmp_path):
    url = app_storage_url(tmp_path)
    async with open_storage(url) as storage, storage.engines.durable.begin() as connection:
        await connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(StorageUnusable, match="a newer version of b4run made it") as refused:
        async with open_storage(url):
            pass
    assert refused.value.code == "B4_E5301"


async def test_a_file_that_is_no_database_is_refused(tmp_path):
    url = app_storage_url(tmp_path)
    (tmp_path / ".b4/b4.sqlite").write_bytes(b"not a database, by far " * 100)
    with pytest.raises(StorageUnusable, match="file is not a database"):
        async with open_storage(url):
            pass


@pytest.mark.parametrize(
    ("url", "reason"),
    [("no url", "its URL is no database URL"), ("postgresql+asyncpg://user:secret@db/app", "the driver 'asyncpg' is not installed")],
)
async def test_a_url_that_cannot_work_is_refused_without_its_password(url, reason):
    with pytest.raises(StorageUnusable, match=reason) as refused:
        async with open_storage(url):
            pass
    assert "secret" not in str(refused.value)


async def test_a_failed_migration_leaves_nothing_behind(tmp_path):
    url = app_storage_url(tmp_path)
    database = sqlite3.connect(tmp_path / ".b4/b4.sqlite")
    database.execute("CREATE TABLE other (x)")
    database.execute("CREATE INDEX grants_thread ON other (x)")
    database.commit()
    with pytest.raises(StorageUnusable, match="index grants_thread already exists"):
        async with open_storage(url):
            pass
    tables = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    database.close()
    assert tables == [("other",)]
