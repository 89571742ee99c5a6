"""Uploads, threads that start from them, and reading what became of them, on real sandboxes."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import tarfile
from pathlib import Path

import httpx
import pytest

from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox
from b4run.testing import script
from b4run.workspace import SourceFile, create_source_bundle

from .conftest import BY_HEADER, OWNED, ROUTE, code_of, until

CONFIG = """
from b4run.config import Config, Deny, Permissions, Sandbox, Staging, ThreadSandbox, WorkspaceDefinition, WorkspaceSource
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox

async def thread(thread):
    if thread.staged is not None:
        return ThreadSandbox(workspace=thread.staged)
    return ThreadSandbox(workspace=WorkspaceDefinition(source=WorkspaceSource(directory="files", include=("README.md",))))

config = Config(
    sandbox=Sandbox(
        provider=bubblewrap_sandbox(scope="server"), network=Deny(), thread=thread, workspace_read="http",
        workspace_read_timeout_ms=READ_TIMEOUT, staged_workspaces=STAGING,
    ),
    permissions=Permissions(mode="bypass"),
)
"""
OFF = """
from b4run.config import Config, Deny, Sandbox
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox
config = Config(sandbox=Sandbox(provider=bubblewrap_sandbox(scope="server"), network=Deny()))
"""
ALICE, BOB = {"x-user": "alice"}, {"x-user": "bob"}
BUNDLE = create_source_bundle([SourceFile("README.md", b"# hi\n"), SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True)])
TEXT_ONLY = create_source_bundle([SourceFile("README.md", b"# hi\n"), SourceFile("src/a.txt", b"a\n")])


def files(staging: str = "True", config: str = CONFIG, read_timeout: int = 120_000) -> dict[str, str]:
    text = config.replace("STAGING", staging).replace("READ_TIMEOUT", str(read_timeout))
    return {"b4_config.py": text, "files/README.md": "own\n", "thread_access.py": OWNED, "auth.py": BY_HEADER}


@pytest.fixture
async def start(serve, tmp_path: Path):
    tmp_path.chmod(0o700)

    async def begin(command: str = "true", **options):
        told = script()
        for _ in range(3):
            told = told.user("go").calls("runBash", command=command).replies("done")
        model = told.model()
        provider = bubblewrap_sandbox(scope="server", state_dir=tmp_path / "sandboxes")
        return await serve(files(**options), model=model, provider=provider)

    return begin


async def put(server, bundle=BUNDLE, headers=ALICE, digest=None, content=None):
    body = bundle.to_json() if content is None else content
    return await server.http.put(f"/workspace/sources/{digest or bundle.digest}", content=body, headers=headers)


async def create(server, bundle=BUNDLE, headers=ALICE, **more):
    return await server.http.post("/threads", json={"workspace": {"sourceDigest": bundle.digest} | more}, headers=headers)


async def run(server, thread, headers=ALICE):
    answer = await server.http.post(f"/threads/{thread}/runs/wait", json={"route": ROUTE, "input": "go"}, headers=headers)
    assert answer.status_code == 200, answer.text
    return json.loads(next(message["content"] for message in answer.json()["messages"] if message["type"] == "tool"))


async def test_the_other_implementations_bundle_is_taken_and_given_back_byte_for_byte(start):
    server = await start()
    # The vector of `formats.md`, as JSON.stringify writes it.
    text = (
        '{"version":1,"digest":"deedbddc57d3f71a4ba6b2eba2d742007de1b9deb26caf56409e3b54bc1d4b8a","files":['
        '{"path":"README.md","base64":"IyBoaQo=","executable":false},'
        '{"path":"bin/run.sh","base64":"IyEvYmluL3NoCmVjaG8gb2sK","executable":true}]}'
    )
    digest = "deedbddc57d3f71a4ba6b2eba2d742007de1b9deb26caf56409e3b54bc1d4b8a"
    path = f"/workspace/sources/{digest}"
    first = await server.http.put(path, content=text, headers=ALICE)
    assert (first.status_code, first.json()) == (201, {"digest": digest, "status": "created"})
    second = await server.http.put(path, content=json.dumps(json.loads(text), indent=1), headers=ALICE)
    assert (second.status_code, second.json()) == (200, {"digest": digest, "status": "held"})
    back = await server.http.get(path, headers=ALICE)
    assert back.text == text
    listed = (await server.http.get("/workspace/sources", headers=ALICE)).json()["sources"]
    assert [(source["digest"], source["files"], source["bytes"]) for source in listed] == [(digest, 2, 23)]
    assert (await server.http.get("/workspace/sources", headers=BOB)).json() == {"sources": []}
    assert code_of(await server.http.get(path, headers=BOB)) == (404, "workspace_source_not_held")


async def test_a_thread_starts_from_an_upload(start):
    server = await start("cat README.md; ./bin/run.sh")
    assert (await put(server)).status_code == 201
    made = await create(server, environmentLinks=[{"path": "deps", "target": "/usr/lib"}], baseline="git")
    assert made.status_code == 200, made.text
    assert "deedbdd" not in made.text
    assert (await run(server, made.json()["thread_id"]))["stdout"] == "# hi\nok\n"
    plain = (await server.http.post("/threads", headers=ALICE)).json()["thread_id"]
    assert (await run(server, plain))["stdout"] == "own\n"
    assert (await server.http.delete(f"/threads/{made.json()['thread_id']}", headers=ALICE)).status_code == 204


async def test_a_tar_of_the_same_files_is_the_same_upload(start):
    server = await start("./bin/run.sh")
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for file in BUNDLE.files:
            info = tarfile.TarInfo(f"./{file.path}")
            info.size, info.mode = len(file.data), 0o755 if file.executable else 0o644
            tar.addfile(info, io.BytesIO(file.data))
    headers = ALICE | {"content-type": "application/gzip"}
    first = await put(server, content=packed.getvalue(), headers=headers)
    assert (first.status_code, first.json()) == (201, {"digest": BUNDLE.digest, "status": "created"})
    assert (await put(server)).json()["status"] == "held"
    assert code_of(await put(server, bundle=TEXT_ONLY, content=packed.getvalue(), headers=headers)) == (400, "digest_mismatch")
    assert code_of(await put(server, content=b"no tar", headers=headers)) == (400, "invalid_request")
    thread = (await create(server)).json()["thread_id"]
    assert (await run(server, thread))["stdout"] == "ok\n"


async def test_a_read_may_wait_for_its_turn(start):
    server = await start("sleep 1; echo b > b.txt")
    thread = (await server.http.post("/threads", headers=ALICE)).json()["thread_id"]
    await run(server, thread)
    begun = asyncio.create_task(run(server, thread))
    await until(lambda: server.service.runs.on_thread(thread))
    path = f"/threads/{thread}/workspace/inspect"
    assert code_of(await server.http.post(path, headers=ALICE)) == (409, "run_in_flight")
    waited = await server.http.post(path, headers=ALICE | {"prefer": "wait=20"})
    assert waited.status_code == 200
    await begun


async def test_what_an_upload_may_not_be(start):
    server = await start()
    assert code_of(await put(server, digest="x")) == (400, "invalid_request")
    assert code_of(await put(server, digest="a" * 64)) == (400, "digest_mismatch")
    assert code_of(await put(server, content=b"{")) == (400, "invalid_request")
    assert code_of(await put(server, content=b"")) == (400, "invalid_request")
    assert code_of(await put(server, content=b"[1, 2")) == (400, "invalid_request")
    assert code_of(await put(server, content=b"[1, 2]")) == (422, "workspace_source_invalid")
    forged = json.loads(BUNDLE.to_json()) | {"files": []}
    assert code_of(await put(server, content=json.dumps(forged).encode())) == (422, "workspace_source_invalid")
    assert code_of(await put(server, headers={})) == (403, "thread_access_denied")
    assert server.service.uploading == 0
    assert (await server.http.get("/workspace/sources", headers=ALICE)).json() == {"sources": []}
    assert (await put(server)).status_code == 201


async def test_an_upload_has_bounds(start):
    server = await start(staging="Staging(max_upload_bytes=1_000, upload_timeout_ms=2_000, max_staged_bytes=400)")
    declared = await put(server, content=b" " * 1_001)
    assert code_of(declared) == (413, "payload_too_large")
    assert declared.json()["error"]["details"]["maxBytes"] == 1_000

    async def pieces(count, pause=0.0):
        for _ in range(count):
            yield b" " * 100
            await asyncio.sleep(pause)

    assert code_of(await put(server, content=pieces(11))) == (413, "payload_too_large")
    stalled = await put(server, content=pieces(9, 0.5))
    assert code_of(stalled) == (408, "upload_timeout")
    assert stalled.json()["error"]["details"]["deadlineMs"] == 2_000
    assert (await put(server)).status_code == 201
    assert code_of(await put(server, bundle=TEXT_ONLY)) == (507, "staged_quota_exceeded")
    assert (await put(server)).status_code == 200
    assert (await server.http.delete(f"/workspace/sources/{BUNDLE.digest}", headers=BOB)).status_code == 404
    assert (await server.http.delete(f"/workspace/sources/{BUNDLE.digest}", headers=ALICE)).status_code == 204
    assert (await put(server, bundle=TEXT_ONLY)).status_code == 201


async def test_one_upload_at_a_time(start):
    server = await start()
    go_on = asyncio.Event()

    async def slowly():
        yield BUNDLE.to_json()[:50]
        await go_on.wait()
        yield BUNDLE.to_json()[50:]

    first = asyncio.create_task(put(server, content=slowly()))
    await until(lambda: server.service.uploading)
    second = await put(server, bundle=TEXT_ONLY)
    assert code_of(second) == (429, "upload_in_flight")
    assert second.headers["retry-after"] == "1"
    go_on.set()
    assert (await first).status_code == 201
    assert (await put(server, bundle=TEXT_ONLY)).status_code == 201


async def test_what_a_create_may_not_name(start):
    server = await start()
    assert code_of(await create(server)) == (422, "workspace_source_not_held")
    await put(server)
    for bad in (
        {"baseline": "svn"},
        {"more": 1},
        {"environmentLinks": [{"path": "a"}]},
        {"environmentLinks": [{"path": "a", "target": "/b"}] * 1_025},
    ):
        assert code_of(await create(server, **bad)) == (400, "invalid_request")
    assert code_of(await server.http.post("/threads", json={"workspace": {"sourceDigest": "A" * 64}}, headers=ALICE)) == (
        400,
        "invalid_request",
    )
    taken = [{"path": "README.md", "target": "/b"}]
    assert code_of(await create(server, environmentLinks=taken)) == (422, "workspace_invalid")
    assert code_of(await create(server, headers=BOB)) == (403, "thread_access_denied")
    assert (await server.http.get("/threads", headers=ALICE)).json()["threads"] == []
    # A source that only an admission stored is as unknown as any.
    thread = (await server.http.post("/threads", headers=ALICE)).json()["thread_id"]
    await run(server, thread)
    own = create_source_bundle([SourceFile("README.md", b"own\n")])
    assert code_of(await create(server, bundle=own)) == (422, "workspace_source_not_held")


async def test_with_the_options_off_it_looks_like_nothing_is_there(start):
    server = await start(config=OFF)
    assert code_of(await put(server)) == (404, "not_found")
    assert code_of(await put(server, headers={})) == (403, "thread_access_denied")
    assert code_of(await create(server)) == (400, "workspace_not_accepted")
    thread = (await server.http.post("/threads", headers=ALICE)).json()["thread_id"]
    assert code_of(await server.http.post(f"/threads/{thread}/workspace/inspect", headers=ALICE)) == (404, "not_found")
    assert code_of(await server.http.post(f"/threads/{thread}/workspace/inspect", headers=BOB)) == (404, "thread_not_found")


async def test_a_workspace_is_inspected(start):
    server = await start("echo new > new.txt; mkdir -p out; echo b > out/b.txt")
    await put(server, bundle=TEXT_ONLY)
    thread = (await create(server, bundle=TEXT_ONLY)).json()["thread_id"]
    path = f"/threads/{thread}/workspace/inspect"
    assert code_of(await server.http.post(path, headers=ALICE)) == (404, "workspace_not_found")
    await run(server, thread)
    found = await server.http.post(path, headers=ALICE)
    assert found.status_code == 200, found.text
    answer = found.json()
    assert set(answer) == {"threadId", "sourceDigest", "intentDigest", "inspection"}
    assert (answer["threadId"], answer["sourceDigest"]) == (thread, TEXT_ONLY.digest)
    texts = {"README.md": "# hi\n", "new.txt": "new\n", "out/b.txt": "b\n", "src/a.txt": "a\n"}
    assert answer["inspection"] == {"files": texts, "symlinks": {}, "totalBytes": 13, "entries": 6}
    part = await server.http.post(path, headers=ALICE, json={"root": "out"})
    assert (part.json()["root"], part.json()["inspection"]["files"]) == ("out", {"b.txt": "b\n"})
    fewer = await server.http.post(path, headers=ALICE, json={"ignorePrefixes": ["out/", "src"], "excludeRootDirectories": ["src"]})
    assert set(fewer.json()["inspection"]["files"]) == {"README.md", "new.txt"}
    gone = await server.http.post(path, headers=ALICE, json={"root": "nowhere"})
    assert code_of(gone) == (422, "workspace_root_missing")
    assert (gone.json()["error"]["details"]["root"], gone.json()["error"]["details"]["kind"]) == ("nowhere", "absent")
    assert code_of(await server.http.post(path, headers=ALICE, json={"maxTotalBytes": 5})) == (422, "workspace_inspection_refused")
    for bad in (
        {"more": 1},
        {"root": "../x"},
        {"root": 1},
        {"maxEntries": 10_001},
        {"maxFileBytes": -1},
        {"maxTotalBytes": 1.5},
        {"maxEntries": True},
        {"ignorePrefixes": ["/a"]},
        {"ignorePrefixes": [""]},
        {"ignorePrefixes": ["a"] * 65},
        {"expectedRootSymlinks": {"a": ""}},
        [],
    ):
        assert code_of(await server.http.post(path, headers=ALICE, json=bad)) == (400, "invalid_request"), bad
    assert code_of(await server.http.post(path, headers=ALICE, content=b" " * 65_537)) == (413, "payload_too_large")
    assert (await server.http.get(f"/threads/{thread}", headers=ALICE)).json()["status"] == "idle"


async def test_entries_files_archive_and_diff(start):
    server = await start("printf '\\000\\377' > binary; chmod +x binary; ln -s README.md link; rm bin/run.sh; echo changed > README.md")
    await put(server)
    thread = (await create(server)).json()["thread_id"]
    await run(server, thread)
    base = f"/threads/{thread}/workspace"
    entries = {entry["path"]: entry for entry in (await server.http.get(f"{base}/entries", headers=ALICE)).json()["entries"]}
    assert set(entries) == {"README.md", "bin", "binary", "link"}
    assert entries["binary"] == {
        "path": "binary",
        "kind": "file",
        "mode": "0755",
        "size": 2,
        "sha256": hashlib.sha256(b"\0\xff").hexdigest(),
    }
    assert entries["link"]["target"] == "README.md"
    got = await server.http.get(f"{base}/files/binary", headers=ALICE)
    assert (got.content, got.headers["x-file-mode"]) == (b"\0\xff", "0755")
    again = await server.http.get(f"{base}/files/binary", headers=ALICE | {"if-none-match": got.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert code_of(await server.http.get(f"{base}/files/none", headers=ALICE)) == (404, "file_not_found")
    assert code_of(await server.http.get(f"{base}/files/link", headers=ALICE)) == (422, "workspace_not_a_file")
    assert code_of(await server.http.get(f"{base}/files/a//b", headers=ALICE)) == (400, "invalid_request")
    diff = (await server.http.get(f"{base}/diff", headers=ALICE)).json()
    assert (diff["added"], diff["changed"], diff["removed"]) == (["binary", "link"], ["README.md"], ["bin/run.sh"])
    packed = await server.http.get(f"{base}/archive", headers=ALICE)
    with tarfile.open(fileobj=io.BytesIO(packed.content)) as tar:
        assert sorted(tar.getnames()) == ["README.md", "bin", "binary", "link"]
        assert tar.extractfile("README.md").read() == b"changed\n"


async def test_a_read_and_a_run_exclude_each_other_and_a_read_is_cancelled(start, monkeypatch):
    server = await start()
    thread = (await server.http.post("/threads", headers=ALICE)).json()["thread_id"]
    await run(server, thread)
    entered = asyncio.Event()
    managed = type(server.service.app.managed)
    opened = managed.open_workspace_reader

    async def hang(self, thread_id, **options):
        entered.set()
        await asyncio.sleep(60)
        return await opened(self, thread_id, **options)

    monkeypatch.setattr(managed, "open_workspace_reader", hang)
    path = f"/threads/{thread}/workspace/inspect"
    reading = asyncio.create_task(server.http.post(path, headers=ALICE))
    await entered.wait()
    body = {"route": ROUTE, "input": "go"}
    assert code_of(await server.http.post(f"/threads/{thread}/runs/wait", json=body, headers=ALICE)) == (409, "run_in_flight")
    assert code_of(await server.http.post(path, headers=ALICE)) == (409, "run_in_flight")
    assert code_of(await server.http.delete(f"/threads/{thread}", headers=ALICE)) == (409, "run_in_flight")
    assert (await server.http.post(f"/threads/{thread}/cancel", headers=ALICE)).status_code == 200
    assert code_of(await reading) == (409, "read_cancelled")
    # A client that goes away frees the thread, too.
    entered.clear()
    with pytest.raises(httpx.ReadTimeout):
        await server.http.post(path, headers=ALICE, timeout=0.3)
    await until(lambda: not server.service.slots.held)
    monkeypatch.setattr(managed, "open_workspace_reader", opened)
    assert (await server.http.post(path, headers=ALICE)).status_code == 200


async def test_a_read_has_a_deadline(start, monkeypatch):
    server = await start(read_timeout=1_000)
    thread = (await server.http.post("/threads", headers=ALICE)).json()["thread_id"]
    await run(server, thread)

    async def hang(self, thread_id, **options):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(3)

    monkeypatch.setattr(type(server.service.app.managed), "open_workspace_reader", hang)
    late = await server.http.post(f"/threads/{thread}/workspace/inspect", headers=ALICE)
    assert code_of(late) == (504, "workspace_read_timeout")
    assert server.service.slots.held == 0
    assert (await run(server, thread))["exitCode"] == 0


async def test_a_source_that_goes_meanwhile_leaves_no_thread(start, monkeypatch):
    server = await start()
    await put(server)
    uploads = type(server.service.app.storage.uploads)
    attach = uploads.attach

    async def too_late(self, thread_id, reference):
        assert await self.withdraw(reference.source_digest, {"ownerId": "alice"})
        return await attach(self, thread_id, reference)

    monkeypatch.setattr(uploads, "attach", too_late)
    assert code_of(await create(server)) == (409, "workspace_source_not_held")
    assert (await server.http.get("/threads", headers=ALICE)).json()["threads"] == []


async def test_at_most_four_creates_from_uploads_at_once(start, monkeypatch):
    server = await start()
    await put(server)
    uploads = type(server.service.app.storage.uploads)
    paths, go_on = uploads.paths, asyncio.Event()

    async def wait(self, digest):
        await go_on.wait()
        return await paths(self, digest)

    monkeypatch.setattr(uploads, "paths", wait)
    four = [asyncio.create_task(create(server)) for _ in range(4)]
    await until(lambda: server.service.creating == 4)
    fifth = await create(server)
    assert code_of(fifth) == (429, "workspace_create_in_flight")
    assert fifth.headers["retry-after"] == "1"
    assert (await server.http.post("/threads", headers=ALICE)).status_code == 200
    go_on.set()
    assert [answer.status_code for answer in await asyncio.gather(*four)] == [200] * 4


async def test_an_upload_is_kept_for_its_time_and_for_its_threads(start):
    server = await start(staging="Staging(retention_ms=60_000)")
    await put(server)
    await put(server, bundle=TEXT_ONLY)
    await create(server)
    assert await server.service.app.storage.uploads.reclaim(60_000) == 0
    assert await server.service.app.storage.uploads.reclaim(-1) == 1
    assert code_of(await create(server, bundle=TEXT_ONLY)) == (422, "workspace_source_not_held")
    assert (await create(server)).status_code == 200


def test_the_vector_is_what_the_bundle_says():
    assert BUNDLE.digest == "deedbddc57d3f71a4ba6b2eba2d742007de1b9deb26caf56409e3b54bc1d4b8a"
    assert base64.b64decode("IyBoaQo=") == b"# hi\n"
