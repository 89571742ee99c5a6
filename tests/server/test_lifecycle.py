"""Workspaces that are not as they should be, deletions that do not finish, and what a boot finds and refuses."""

from __future__ import annotations

import json

import pytest

from b4run.config import ConfigInvalid
from b4run.errors import SandboxUnavailable, WorkspaceUnusable
from b4run.sandbox.testing import fake_sandbox
from b4run.storage.slots import SlotKind
from b4run.storage.statements import now_ms
from b4run.testing import script
from b4run.workspace import SourceFile, create_source_bundle, inspection

from .conftest import BY_HEADER, OWNED, ROUTE, code_of, until

CONFIG = """
from b4run.config import Config, Permissions, Sandbox, Staging, ThreadSandbox, WorkspaceDefinition, WorkspaceSource
from b4run.sandbox.testing import fake_sandbox

async def thread(thread):
    if thread.metadata.get("refuse"):
        raise ValueError("not this one")
    if thread.staged is not None:
        return ThreadSandbox(workspace=thread.staged)
    return ThreadSandbox(workspace=WorkspaceDefinition(source=WorkspaceSource(directory="files", include=("README.md",))))

config = Config(
    sandbox=Sandbox(provider=fake_sandbox(), thread=thread, workspace_read="http", staged_workspaces=Staging(retention_ms=60_000)),
    permissions=Permissions(mode="bypass"),
)
"""
FILES = {"b4_config.py": CONFIG, "files/README.md": "own\n", "thread_access.py": OWNED, "auth.py": BY_HEADER}
ALICE = {"x-user": "alice"}
BUNDLE = create_source_bundle([SourceFile("a.txt", b"a\n")])
TEXT = BUNDLE.to_json()


def model():
    told = script()
    for _ in range(6):
        told = told.user("go").replies("done")
    return told.model()


async def created(server, **body):
    answer = await server.http.post("/threads", json=body, headers=ALICE)
    assert answer.status_code == 200, answer.text
    return answer.json()["thread_id"]


async def run(server, thread):
    return await server.http.post(f"/threads/{thread}/runs/wait", json={"route": ROUTE, "input": "go"}, headers=ALICE)


async def inspect(server, thread):
    return await server.http.post(f"/threads/{thread}/workspace/inspect", headers=ALICE)


LIFECYCLES = {
    "lost": (404, "workspace_lost"),
    "expired": (410, "workspace_expired"),
    "conflict": (409, "workspace_conflict"),
    "retryable": (503, "workspace_unavailable"),
    "uncertain": (503, "workspace_unavailable"),
}


@pytest.mark.parametrize("lifecycle", LIFECYCLES)
async def test_a_workspace_that_cannot_be_used_says_why(serve, monkeypatch, lifecycle):
    server = await serve(FILES, model=model())
    thread = await created(server)
    assert (await run(server, thread)).status_code == 200

    async def unusable(self, thread_id):
        raise WorkspaceUnusable(thread_id=thread_id, lifecycle=lifecycle, reason="so it is", remedy="Begin another.")

    monkeypatch.setattr(type(server.service.app.managed), "recorded", unusable)
    assert code_of(await inspect(server, thread)) == LIFECYCLES[lifecycle]
    assert server.service.slots.held == 0


async def test_a_workspace_in_the_making_is_not_ready(serve, monkeypatch):
    provider = fake_sandbox()
    server = await serve(FILES, model=model(), provider=provider)
    thread = await created(server)
    make = type(provider).create_workspace

    async def fails(self, *arguments):
        raise SandboxUnavailable(thread_id=thread, reason="the engine is down")

    monkeypatch.setattr(type(provider), "create_workspace", fails)
    failed = await run(server, thread)
    assert code_of(failed) == (500, "run_failed")
    assert failed.json()["error"]["code"] == "B4_E2001"
    assert code_of(await inspect(server, thread)) == (409, "workspace_not_ready")
    monkeypatch.setattr(type(provider), "create_workspace", make)
    assert (await run(server, thread)).status_code == 200
    assert (await inspect(server, thread)).json()["inspection"]["files"] == {"README.md": "own\n"}


async def test_a_refusing_resolver_is_the_runs_failure_and_records_nothing(serve):
    server = await serve(FILES, model=model())
    thread = await created(server, metadata={"refuse": True})
    failed = await run(server, thread)
    assert code_of(failed) == (500, "run_failed")
    assert "not this one" in failed.json()["error"]["message"]
    assert code_of(await inspect(server, thread)) == (404, "workspace_not_found")
    await server.http.patch(f"/threads/{thread}", json={"metadata": {"refuse": None}}, headers=ALICE)
    assert (await run(server, thread)).status_code == 200


async def test_what_grows_under_a_read_and_what_is_too_large_to_answer(serve, monkeypatch):
    server = await serve(FILES, model=model())
    thread = await created(server)
    await run(server, thread)
    monkeypatch.setattr("b4run.server.reading.MAX_ANSWER_BYTES", 100)
    large = await inspect(server, thread)
    assert code_of(large) == (422, "workspace_response_too_large")
    assert large.json()["error"]["details"]["maxBytes"] == 100

    async def grows(*_, **__):
        raise inspection.InspectionRefused(kind="changed", path="README.md", reason="'README.md' changed while it was read")

    monkeypatch.setattr("b4run.server.reading.inspect_workspace", grows)
    assert code_of(await inspect(server, thread)) == (409, "workspace_changed")


async def test_a_deletion_that_fails_is_kept_told_and_retried(serve, monkeypatch):
    provider = fake_sandbox()
    server = await serve(FILES, model=model(), provider=provider)
    thread = await created(server)
    await run(server, thread)
    destroy = type(provider).destroy_workspace

    async def fails(self, *arguments):
        raise SandboxUnavailable(thread_id=thread, reason="the engine at tcp://secret is down")

    monkeypatch.setattr(type(provider), "destroy_workspace", fails)
    failed = await server.http.delete(f"/threads/{thread}", headers=ALICE)
    assert code_of(failed) == (500, "deletion_unfinished")
    assert "secret" not in failed.text
    assert (await server.http.get("/readyz")).json()["checks"]["deletions"] == {"status": "ok", "unfinished": 1}
    # The conversation is gone before anything else, the row is still there, and nobody may use it.
    assert (await server.http.get(f"/threads/{thread}", headers=ALICE)).status_code == 200
    assert code_of(await server.http.get(f"/threads/{thread}/state", headers=ALICE)) == (404, "thread_not_found")
    assert code_of(await run(server, thread)) == (409, "thread_deleting")
    monkeypatch.setattr(type(provider), "destroy_workspace", destroy)
    again = await serve(model=model(), provider=provider, root=server.service.app.root)

    async def gone():
        return (await again.http.get(f"/threads/{thread}", headers=ALICE)).status_code == 404

    await until(gone)
    assert "deletions" not in (await again.http.get("/readyz")).json()["checks"]


async def test_a_deleted_thread_takes_its_reference_and_its_grants_with_it(serve):
    server = await serve(FILES, model=model())
    uploads = server.service.app.storage.uploads
    path = f"/workspace/sources/{BUNDLE.digest}"
    assert (await server.http.put(path, content=BUNDLE.to_json(), headers=ALICE)).status_code == 201
    thread = await created(server, workspace={"sourceDigest": BUNDLE.digest})
    assert (await uploads.reference(thread)).source_digest == BUNDLE.digest
    assert (await server.http.delete(f"/threads/{thread}", headers=ALICE)).status_code == 204
    assert await uploads.reference(thread) is None
    # Nothing of it is passed on to a thread that is called the same.
    assert (await run(server, thread)).status_code == 200
    assert (await inspect(server, thread)).json()["inspection"]["files"] == {"README.md": "own\n"}


async def test_a_boot_forgets_references_of_threads_that_are_gone_and_old_uploads(serve):
    server = await serve(FILES, model=model())
    storage = server.service.app.storage
    await server.http.put(f"/workspace/sources/{BUNDLE.digest}", content=BUNDLE.to_json(), headers=ALICE)
    thread = await created(server, workspace={"sourceDigest": BUNDLE.digest})
    assert await storage.threads.delete(thread)
    assert await storage.uploads.reference(thread) is not None
    await serve(model=model(), root=server.service.app.root)
    assert await storage.uploads.reference(thread) is None


async def test_threads_that_nobody_uses_are_deleted_after_their_time(serve, monkeypatch):
    provider = fake_sandbox()
    config = CONFIG.replace("from b4run.config import ", "from b4run.config import Server, ").replace(
        "    permissions=", "    server=Server(idle_thread_ttl_ms=60_000),\n    permissions="
    )
    server = await serve(FILES | {"b4_config.py": config}, model=model(), provider=provider)
    storage = server.service.app.storage
    old, used, held, young = [await created(server) for _ in range(4)]
    for thread in (old, used, held, young):
        assert (await run(server, thread)).status_code == 200
    from sqlalchemy import update

    from b4run.storage.tables import threads

    async def age(*names):
        async with storage.engines.durable.begin() as connection:
            changed = update(threads).where(threads.c.thread_id.in_(names))
            await connection.execute(changed.values(updated_ms=threads.c.updated_ms - 61_000))

    slot = await server.service.slots.claim(held, SlotKind.READ)
    await age(used, held)
    found = await storage.threads.untouched_since(now_ms() - 60_000, limit=10)
    assert set(found) == {used, held}
    # It is used after it was found to be old, and before its turn comes.
    await run(server, used)
    await server.service.deletion.delete(used, untouched_since_ms=now_ms() - 60_000)
    await age(old)
    again = await serve(model=model(), provider=provider, root=server.service.app.root)

    async def gone(thread):
        return (await again.http.get(f"/threads/{thread}", headers=ALICE)).status_code == 404

    await until(lambda: gone(old))
    assert [await gone(thread) for thread in (used, held, young)] == [False] * 3
    assert ("destroy", old) in provider.log
    await slot.release()


STAMPS = """
from b4run.access import ThreadAccess, allow
STAMPS = {"one": {"a": 1, "b": {"c": 2, "d": 3}}, "same": {"b": {"d": 3, "c": 2}, "a": 1}, "large": {"x": "y" * 16_384}, "list": [1], "none": None}

def decide(request):
    return allow(STAMPS[request.principal.id])

policy = ThreadAccess(fallback=decide)
"""


async def test_stamps_of_uploaders_are_objects_of_bounded_size_and_compared_by_value(serve):
    server = await serve(FILES | {"thread_access.py": STAMPS}, model=model())
    path = f"/workspace/sources/{BUNDLE.digest}"

    async def put(name, content=TEXT):
        return await server.http.put(path, content=content, headers={"x-user": name})

    # Before the body is read.
    for name in ("large", "list"):
        assert code_of(await put(name, content=b"{")) == (422, "workspace_uploader_invalid")
    assert (await put("one")).status_code == 201
    assert (await put("same")).status_code == 200
    assert (await put("none")).status_code == 200
    assert await server.service.app.storage.uploads.uploaders(BUNDLE.digest) == [{"a": 1, "b": {"c": 2, "d": 3}}]


async def test_what_a_tampered_upload_is_worth(serve):
    server = await serve(FILES, model=model())
    await server.http.put(f"/workspace/sources/{BUNDLE.digest}", content=BUNDLE.to_json(), headers=ALICE)
    thread = await created(server, workspace={"sourceDigest": BUNDLE.digest})
    from sqlalchemy import update

    from b4run.storage.tables import source_rows

    async with server.service.app.storage.engines.durable.begin() as connection:
        await connection.execute(update(source_rows).where(source_rows.c.part == 1).values(data=b"b\n"))
    failed = await run(server, thread)
    assert code_of(failed) == (500, "run_failed")
    assert "was changed" in failed.json()["error"]["message"]
    assert code_of(await inspect(server, thread)) == (404, "workspace_not_found")


@pytest.mark.parametrize("key", ['workspace_read="http"', "staged_workspaces=True"])
async def test_showing_or_taking_workspaces_needs_a_policy(serve, key):
    text = CONFIG.replace('workspace_read="http", staged_workspaces=Staging(retention_ms=60_000)', key)
    with pytest.raises(ConfigInvalid, match="access policy"):
        await serve({"b4_config.py": text, "files/README.md": "own\n"})


async def test_pages_of_other_origins(serve):
    config = 'from b4run.config import Config, Cors, Server\nconfig = Config(server=Server(cors=Cors(origins=("https://app.example",))))\n'
    server = await serve({"b4_config.py": config})
    asked = {"origin": "https://app.example", "access-control-request-method": "PUT", "access-control-request-headers": "x-a"}
    preflight = await server.http.options("/workspace/sources/x", headers=asked)
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, "https://app.example")
    assert "PUT" in preflight.headers["access-control-allow-methods"]
    refused = await server.http.get("/threads/t-none", headers={"origin": "https://app.example"})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (404, "https://app.example")
    stranger = await server.http.get("/healthz", headers={"origin": "https://evil.example"})
    assert (stranger.status_code, "access-control-allow-origin" in stranger.headers) == (200, False)


async def test_what_an_agent_answers_is_json_whatever_it_holds(serve):
    server = await serve(FILES, model=script().user("go").calls("runBash", command="x").replies("done").model())
    thread = await created(server)
    answer = await run(server, thread)
    tool = next(message for message in answer.json()["messages"] if message["type"] == "tool")
    assert set(json.loads(tool["content"])) >= {"stdout", "stderr", "exitCode"}
    assert "artifact" not in tool
