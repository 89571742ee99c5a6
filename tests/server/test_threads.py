"""Threads over HTTP: created, read, changed, listed, deleted."""

from __future__ import annotations

import re

from .conftest import code_of


async def test_a_thread_is_created_read_and_deleted(serve):
    server = await serve()
    made = await server.http.post("/threads", json={"metadata": {"task": "one"}})
    assert made.status_code == 200
    thread = made.json()
    assert set(thread) == {"thread_id", "created_at", "updated_at", "metadata", "status"}
    assert re.fullmatch(r"t-[0-9a-f]{32}", thread["thread_id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", thread["created_at"])
    assert (thread["metadata"], thread["status"]) == ({"task": "one"}, "idle")
    path = f"/threads/{thread['thread_id']}"
    read = await server.http.get(path)
    assert (read.status_code, read.json(), read.headers["cache-control"]) == (200, thread, "no-store")
    gone = await server.http.delete(path)
    assert (gone.status_code, gone.content) == (204, b"")
    assert code_of(await server.http.get(path)) == (404, "thread_not_found")
    assert (await server.http.delete(path)).status_code == 204


async def test_an_empty_body_creates_a_thread(serve):
    server = await serve()
    assert (await server.http.post("/threads")).json()["metadata"] == {}


async def test_the_reserved_key_is_stripped(serve):
    server = await serve()
    thread = await server.create(metadata={"b4:access": {"ownerId": "me"}, "a": 1})
    assert (await server.http.get(f"/threads/{thread}")).json()["metadata"] == {"a": 1}
    changed = await server.http.patch(f"/threads/{thread}", json={"metadata": {"b4:access": {"ownerId": "me"}, "a": None, "b": 2}})
    assert changed.json()["metadata"] == {"b": 2}


async def test_bad_bodies_are_refused(serve):
    server = await serve()
    for content in (
        b"{",
        b"[]",
        b'"x"',
        b"NaN",
        b'{"metadata": []}',
        b'{"metadata": 1}',
        b'{"metadata": {"a": "\\ud800"}}',
        b'{"metadata": {"a": 1e999}}',
        b'{"metadata": {"a": [-1e999]}}',
        b'{"metadata": {"a": ' + b"9" * 5_000 + b"}}",
        b"[" * 100_000,
    ):
        assert code_of(await server.http.post("/threads", content=content)) == (400, "invalid_request"), content[:40]
    assert code_of(await server.http.post("/threads", content=b" " * 1_048_577)) == (413, "payload_too_large")


async def test_ids_that_cannot_be_are_refused(serve):
    server = await serve()
    for name in ("%00", "a%0Ab", "%FF", "%20", "x" * 1_025):
        assert code_of(await server.http.get(f"/threads/{name}")) == (400, "invalid_request"), name


async def test_unknown_paths_and_methods(serve):
    server = await serve()
    assert code_of(await server.http.get("/nothing")) == (404, "not_found")
    answer = await server.http.put("/threads")
    assert code_of(answer) == (405, "method_not_allowed")
    assert set(answer.headers["allow"].split(", ")) >= {"GET", "POST"}


async def test_threads_are_listed_page_by_page(serve):
    server = await serve()
    made = [await server.create(metadata={"number": number}) for number in range(5)]
    await server.http.patch(f"/threads/{made[0]}", json={"metadata": {"touched": True}})
    seen, after = [], {}
    while True:
        page = (await server.http.get("/threads", params={"limit": 2, **after})).json()
        seen += [thread["thread_id"] for thread in page["threads"]]
        if page["next"] is None:
            break
        after = {"after": page["next"]}
    assert seen[0] == made[0]
    assert sorted(seen) == sorted(made)
    assert code_of(await server.http.get("/threads", params={"limit": 0})) == (400, "invalid_request")
    assert code_of(await server.http.get("/threads", params={"after": "x"})) == (400, "invalid_request")
    assert code_of(await server.http.get("/threads", params={"status": "x"})) == (400, "invalid_request")


async def test_probes(serve):
    server = await serve()
    assert (await server.http.get("/healthz")).json() == {"status": "ready"}
    ready = await server.http.get("/readyz")
    assert ready.status_code == 200
    assert ready.json() == {
        "status": "ready",
        "checks": {"threads": {"status": "ok"}, "checkpoints": {"status": "ok"}, "permissions": {"status": "ok"}},
    }
