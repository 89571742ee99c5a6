"""Both grant stores, by the same cases, and what the SQL one adds: other processes, time, failure."""

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import text

from b4run.errors import StorageUnusable
from b4run.permissions import Grant, GrantNotRecorded, GrantScope, Key, MemoryGrantStore
from b4run.storage import app_storage_url, open_storage

MINE = Grant(Key.BASH, "npm test", thread_id="t-1", granted_by="ada")
OTHERS = Grant(Key.BASH, "npm test", thread_id="t-2")
EVERYONES = Grant(Key.READ_FILE, "/etc/", exact=False)


@pytest.fixture(params=["memory", "sql"])
async def store(request, tmp_path):
    if request.param == "memory":
        yield MemoryGrantStore()
        return
    async with open_storage(app_storage_url(tmp_path)) as storage:
        yield storage.grants


async def test_a_thread_sees_its_own_grants_and_the_apps(store):
    mine, others, everyones = [await store.add(grant) for grant in (MINE, OTHERS, EVERYONES)]
    assert list(await store.list("t-1")) == [mine, everyones]
    assert list(await store.list()) == [mine, others, everyones]
    assert (mine.scope, everyones.scope) == (GrantScope.THREAD, GrantScope.APP)


async def test_a_grant_says_who_and_when(store):
    kept = await store.add(MINE)
    assert (kept.key, kept.pattern, kept.exact, kept.thread_id, kept.granted_by) == (Key.BASH, "npm test", True, "t-1", "ada")
    assert abs(kept.granted_at - datetime.now(UTC)) < timedelta(minutes=1)


async def test_the_same_grant_is_kept_once(store):
    first = await store.add(MINE)
    assert await store.add(MINE) == first
    assert list(await store.list()) == [first]


async def test_exact_and_wide_grants_of_one_text_are_two(store):
    await store.add(MINE)
    await store.add(Grant(Key.BASH, "npm test", exact=False, thread_id="t-1"))
    assert [grant.exact for grant in await store.list("t-1")] == [True, False]


async def test_a_revoked_grant_is_gone_and_its_id_is_not_used_again(store):
    kept = await store.add(MINE)
    assert await store.revoke(kept.id)
    assert not await store.revoke(kept.id)
    assert list(await store.list()) == []
    assert (await store.add(MINE)).id != kept.id


async def test_forgetting_a_thread_leaves_the_others(store):
    await store.add(MINE)
    others = await store.add(OTHERS)
    everyones = await store.add(EVERYONES)
    assert await store.forget_thread("t-1") == 1
    assert list(await store.list()) == [others, everyones]


@pytest.mark.parametrize("pattern", ["", " \n", "a\0b", "x" * 4_097, "lone \udc80 byte"])
async def test_what_cannot_be_kept_is_refused(store, pattern):
    with pytest.raises(GrantNotRecorded):
        await store.add(Grant(Key.BASH, pattern))
    assert list(await store.list()) == []


async def test_the_longest_pattern_is_kept(store):
    assert (await store.add(Grant(Key.BASH, "é" * 4_096))).pattern == "é" * 4_096


async def test_another_connection_sees_a_grant_at_once(tmp_path):
    url = app_storage_url(tmp_path)
    async with open_storage(url) as one, open_storage(url) as other:
        kept = await one.grants.add(MINE)
        assert list(await other.grants.list("t-1")) == [kept]
        assert await other.grants.revoke(kept.id)
        assert list(await one.grants.list("t-1")) == []


async def test_a_broken_database_grants_nothing_and_says_so(tmp_path):
    async with open_storage(app_storage_url(tmp_path)) as storage:
        async with storage.engines.durable.begin() as connection:
            await connection.execute(text("DROP TABLE grants"))
        with pytest.raises(StorageUnusable, match="cannot be read"):
            await storage.grants.list("t-1")
        with pytest.raises(GrantNotRecorded, match="cannot be written"):
            await storage.grants.add(MINE)
        with pytest.raises(StorageUnusable, match="cannot be changed"):
            await storage.grants.revoke(1)
