"""Every row of the HTTP page as a table: the state a thread is in, what is asked, the status and code of the answer, and that a refusal changes nothing.

A row with several faults says which of them is told, so the order of the checks is part of the table.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from b4run.server import reading
from b4run.testing import script
from b4run.workspace import SourceFile, create_source_bundle

from .conftest import BY_HEADER, OWNED, ROUTE, Served, code_of, until

CONFIG = """
from b4run.config import Config, Permissions, Sandbox, Staging, ThreadSandbox, WorkspaceDefinition, WorkspaceSource
from b4run.sandbox.testing import fake_sandbox

async def thread(thread):
    if thread.staged is not None:
        return ThreadSandbox(workspace=thread.staged)
    return ThreadSandbox(workspace=WorkspaceDefinition(source=WorkspaceSource(directory="files", include=("README.md",))))

config = Config(
    sandbox=Sandbox(provider=fake_sandbox(), thread=thread, OPTIONS),
    permissions=Permissions(mode="interactive"),
)
"""
SLOW = '''
import asyncio

async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "rested"
'''
ON = 'workspace_read="http", staged_workspaces=Staging(max_upload_bytes=2_000, max_staged_bytes=1_000)'
ALICE, BOB = "alice", "bob"
RUN = {"route": ROUTE, "input": "go"}
NO_ROUTE = {"route": "/none#agent", "input": "go"}
HELD = create_source_bundle([SourceFile("a.txt", b"a\n")])
OTHER = create_source_bundle([SourceFile("b.txt", b"b\n")])
OWN = create_source_bundle([SourceFile("README.md", b"own\n")])
"""What the app's own definition captures: stored by an admission, never uploaded."""
LARGE = create_source_bundle([SourceFile(f"{number}.txt", b"x" * 60) for number in range(9)])
"""Within the bound of one upload, beyond what may be staged."""
FORGED = json.dumps(json.loads(HELD.to_json()) | {"files": []}).encode()


@dataclass(frozen=True)
class Row:
    """`{}` in the path is a thread in `state`; code None: the request is granted."""

    state: str
    asks: str
    status: int
    code: str | None = None
    body: Any = None
    content: bytes | None = None
    by: str | None = ALICE
    answer: frozenset[str] | None = None
    """The keys of what is answered."""

    def __str__(self) -> str:
        what = "" if self.body is None and self.content is None else f" {str(self.body or self.content)[:60]}"
        return f"{self.state}: {self.asks}{what} by {self.by}"


def keys(*names: str) -> frozenset[str]:
    return frozenset(names)


STATE = keys("config", "created_at", "metadata", "next", "parent_config", "values")
BAD_ID = "%20"

THREADS = [
    Row("none", "POST /threads", 200, answer=keys("thread_id", "created_at", "updated_at", "metadata", "status")),
    Row("none", "POST /threads", 400, "invalid_request", content=b"{"),
    Row("none", "POST /threads", 400, "invalid_request", body=[]),
    Row("none", "POST /threads", 400, "invalid_request", body={"metadata": []}),
    # The shape is looked at before the policy is asked, the size after it.
    Row("none", "POST /threads", 400, "invalid_request", body={"metadata": []}, by=None),
    Row("none", "POST /threads", 413, "payload_too_large", content=b" " * 1_048_577),
    Row("none", "POST /threads", 403, "thread_access_denied", content=b" " * 1_048_577, by=None),
    Row("none", "POST /threads", 403, "thread_access_denied", by=None),
    Row("fresh", "GET /threads/{}", 200, answer=keys("thread_id", "created_at", "updated_at", "metadata", "status")),
    Row("none", "GET /threads/{}", 404, "thread_not_found"),
    Row("fresh", "GET /threads/{}", 404, "thread_not_found", by=BOB),
    Row("fresh", f"GET /threads/{BAD_ID}", 400, "invalid_request", by=None),
    Row("fresh", "DELETE /threads/{}", 204),
    Row("ran", "DELETE /threads/{}", 204),
    Row("parked", "DELETE /threads/{}", 204),
    Row("none", "DELETE /threads/{}", 403, "thread_access_denied"),
    Row("fresh", "DELETE /threads/{}", 403, "thread_access_denied", by=BOB),
    Row("busy", "DELETE /threads/{}", 409, "run_in_flight"),
    Row("reading", "DELETE /threads/{}", 409, "run_in_flight"),
    Row("busy", "DELETE /threads/{}", 403, "thread_access_denied", by=BOB),
    Row("ran", "GET /threads/{}/state", 200, answer=STATE),
    Row("parked", "GET /threads/{}/state", 200, answer=STATE),
    Row("fresh", "GET /threads/{}/state", 404, "thread_not_found"),
    Row("none", "GET /threads/{}/state", 404, "thread_not_found"),
    Row("ran", "GET /threads/{}/state", 404, "thread_not_found", by=BOB),
    Row("ran", "GET /threads/{}/pending_interrupts", 200, answer=keys("interrupts")),
    Row("parked", "GET /threads/{}/pending_interrupts", 200, answer=keys("interrupts")),
    Row("none", "GET /threads/{}/pending_interrupts", 404, "thread_not_found"),
    Row("parked", "GET /threads/{}/pending_interrupts", 404, "thread_not_found", by=BOB),
    Row("fresh", "GET /threads/{}/pending_interrupts", 409, "thread_route_unknown"),
    Row("none", "GET /healthz", 200, by=None, answer=keys("status")),
]


def of_both(*rows: Row) -> list[Row]:
    """Rows of `runs/wait`, and the same of `runs/stream`."""
    return [
        Row(row.state, row.asks.replace("{run}", path), row.status, row.code, row.body, row.content, row.by)
        for row in rows
        for path in ("runs/wait", "runs/stream")
    ]


RUNS = [
    *of_both(
        Row("none", "POST /threads/{}/{run}", 200, body=RUN),
        Row("fresh", "POST /threads/{}/{run}", 200, body=RUN),
        Row("ran", "POST /threads/{}/{run}", 200, body=RUN),
        Row("fresh", "POST /threads/{}/{run}", 404, "route_not_found", body=NO_ROUTE),
        Row("none", "POST /threads/{}/{run}", 404, "route_not_found", body=NO_ROUTE),
        # Who may not run hears nothing of the app's routes, nor whether the thread is in use.
        Row("fresh", "POST /threads/{}/{run}", 403, "thread_access_denied", body=NO_ROUTE, by=BOB),
        Row("busy", "POST /threads/{}/{run}", 403, "thread_access_denied", body=RUN, by=BOB),
        Row("none", "POST /threads/{}/{run}", 403, "thread_access_denied", body=RUN, by=None),
        Row("busy", "POST /threads/{}/{run}", 404, "route_not_found", body=NO_ROUTE),
        Row("busy", "POST /threads/{}/{run}", 409, "run_in_flight", body=RUN),
        Row("reading", "POST /threads/{}/{run}", 409, "run_in_flight", body=RUN),
        Row("fresh", "POST /threads/{}/{run}", 400, "invalid_request", content=b"{"),
        Row("fresh", "POST /threads/{}/{run}", 400, "invalid_request", body={"input": "go"}),
        Row("fresh", f"POST /threads/{BAD_ID}/{{run}}", 400, "invalid_request", body=RUN),
    ),
    Row("ran", "GET /threads/{}/runs/stream", 200),
    Row("busy", "GET /threads/{}/runs/stream", 200),
    Row("parked", "GET /threads/{}/runs/stream", 200),
    Row("none", "GET /threads/{}/runs/stream", 404, "thread_not_found"),
    Row("busy", "GET /threads/{}/runs/stream", 404, "thread_not_found", by=BOB),
    Row("fresh", "GET /threads/{}/runs/stream", 409, "thread_route_unknown"),
    Row("busy", "POST /threads/{}/cancel", 200, answer=keys("thread_id", "status")),
    Row("reading", "POST /threads/{}/cancel", 200, answer=keys("thread_id", "status")),
    Row("none", "POST /threads/{}/cancel", 403, "thread_access_denied"),
    Row("busy", "POST /threads/{}/cancel", 403, "thread_access_denied", by=BOB),
    Row("fresh", "POST /threads/{}/cancel", 409, "no_run_in_flight"),
    Row("parked", "POST /threads/{}/cancel", 409, "no_run_in_flight"),
]


def answers(*entries: Any, route: str = ROUTE) -> dict[str, Any]:
    return {"route": route, "resume": list(entries)}


PROMPT = {"interruptId": "{prompt}", "status": "resolved", "payload": "once"}
RESUMES = [
    Row("parked", "POST /threads/{}/resume", 200, body=answers(PROMPT)),
    Row("parked", "POST /threads/{}/resume", 200, body=answers(PROMPT | {"payload": "always"})),
    Row("parked", "POST /threads/{}/resume", 200, body=answers(PROMPT | {"payload": "deny"})),
    Row("parked", "POST /threads/{}/resume", 200, body=answers({"interruptId": "{prompt}", "status": "cancelled"})),
    Row("parked", "POST /threads/{}/resume", 400, "invalid_request", content=b"{"),
    Row("parked", "POST /threads/{}/resume", 400, "invalid_request", body={"route": ROUTE}),
    Row("parked", "POST /threads/{}/resume", 400, "invalid_request", body={"resume": [PROMPT]}),
    Row("parked", "POST /threads/{}/resume", 400, "invalid_request", body=answers("x")),
    Row("parked", "POST /threads/{}/resume", 400, "invalid_request", body=answers(PROMPT | {"status": "open"})),
    # The shape is looked at before the policy is asked, as of every body.
    Row("parked", "POST /threads/{}/resume", 400, "invalid_request", body=answers("x"), by=BOB),
    Row("parked", "POST /threads/{}/resume", 400, "invalid_resume_payload", body=answers(PROMPT | {"payload": "maybe"})),
    Row("parked", "POST /threads/{}/resume", 403, "thread_access_denied", body=answers(PROMPT), by=BOB),
    Row("none", "POST /threads/{}/resume", 403, "thread_access_denied", body=answers(PROMPT)),
    Row("parked", "POST /threads/{}/resume", 409, "resume_required", body=answers()),
    Row("parked", "POST /threads/{}/resume", 409, "interrupt_set_mismatch", body=answers(PROMPT, PROMPT)),
    Row("parked", "POST /threads/{}/resume", 409, "interrupt_set_mismatch", body=answers(PROMPT | {"interruptId": "perm-1-bbbbbb"})),
    Row("ran", "POST /threads/{}/resume", 409, "stale_interrupt", body=answers(PROMPT)),
    Row("busy", "POST /threads/{}/resume", 409, "run_in_flight", body=answers(PROMPT)),
    Row("reading", "POST /threads/{}/resume", 409, "run_in_flight", body=answers(PROMPT)),
]


def inspecting(state: str, status: int, code: str | None = None, body: Any = None, **more: Any) -> Row:
    return Row(state, "POST /threads/{}/workspace/inspect", status, code, body, **more)


INSPECTIONS = [
    inspecting("ran", 200, answer=keys("threadId", "sourceDigest", "intentDigest", "inspection")),
    inspecting("parked", 200, answer=keys("threadId", "sourceDigest", "intentDigest", "inspection")),
    *(
        inspecting("ran", 200, body=body)
        for body in (
            {},
            {"excludeRootDirectories": ["x"] * 64, "ignorePrefixes": ["y" * 1_024]},
            {"expectedRootSymlinks": {"l": "t" * 4_096}},
            {"maxEntries": 10_000, "maxFileBytes": 16_777_216, "maxTotalBytes": 33_554_432},
            {"maxFileBytes": 4, "maxTotalBytes": 4, "maxEntries": 1},
        )
    ),
    *(
        inspecting("ran", 400, "invalid_request", body=body)
        for body in (
            [],
            {"more": 1},
            {"root": 1},
            {"root": "../x"},
            {"root": ""},
            {"excludeRootDirectories": ["x"] * 65},
            {"excludeRootDirectories": [""]},
            {"excludeRootDirectories": ["x" * 1_025]},
            {"excludeRootDirectories": "x"},
            {"ignorePrefixes": ["x"] * 65},
            {"ignorePrefixes": ["/x"]},
            {"ignorePrefixes": [1]},
            {"expectedRootSymlinks": {f"l{number}": "t" for number in range(65)}},
            {"expectedRootSymlinks": {"l": "t" * 4_097}},
            {"expectedRootSymlinks": ["l"]},
            {"maxEntries": 10_001},
            {"maxFileBytes": 16_777_217},
            {"maxTotalBytes": 33_554_433},
            {"maxEntries": -1},
            {"maxFileBytes": True},
            {"maxTotalBytes": 1.5},
            {"maxEntries": "1"},
        )
    ),
    inspecting("ran", 400, "invalid_request", content=b"{"),
    inspecting("ran", 413, "payload_too_large", content=b" " * 65_537),
    inspecting("ran", 404, "thread_not_found", content=b" " * 65_537, by=BOB),
    inspecting("ran", 404, "thread_not_found", body=[], by=BOB),
    inspecting("none", 404, "thread_not_found"),
    inspecting("fresh", 404, "workspace_not_found"),
    inspecting("busy", 409, "run_in_flight"),
    inspecting("reading", 409, "run_in_flight"),
    inspecting("ran", 422, "workspace_root_missing", body={"root": "none"}),
    inspecting("ran", 422, "workspace_inspection_refused", body={"maxFileBytes": 3}),
    inspecting("ran", 422, "workspace_inspection_refused", body={"maxTotalBytes": 3}),
    inspecting("ran", 422, "workspace_inspection_refused", body={"maxEntries": 0}),
]


def uploading(status: int, code: str | None = None, content: bytes | None = None, digest: str = OTHER.digest, **more: Any) -> Row:
    return Row("none", f"PUT /workspace/sources/{digest}", status, code, content=content, **more)


SOURCES = [
    uploading(200, content=HELD.to_json(), digest=HELD.digest, answer=keys("digest", "status")),
    uploading(201, content=OTHER.to_json(), answer=keys("digest", "status")),
    uploading(400, "invalid_request", b"", digest="x"),
    uploading(400, "invalid_request", OTHER.to_json(), digest=OTHER.digest.upper()),
    uploading(400, "invalid_request", b"{"),
    uploading(400, "digest_mismatch", OTHER.to_json(), digest="a" * 64),
    uploading(422, "workspace_source_invalid", FORGED, digest=HELD.digest),
    uploading(422, "workspace_source_invalid", b"[]"),
    uploading(413, "payload_too_large", b" " * 2_001),
    uploading(507, "staged_quota_exceeded", LARGE.to_json(), digest=LARGE.digest),
    # A path that is no digest reveals nothing; whatever else is wrong, the policy is asked before a byte is read.
    uploading(400, "invalid_request", b"{", digest="x", by=None),
    uploading(403, "thread_access_denied", b" " * 2_001, by=None),
    uploading(403, "thread_access_denied", b"{", by=None),
]


def creating(status: int, code: str | None = None, workspace: Any = None, **more: Any) -> Row:
    return Row("none", "POST /threads", status, code, body={"workspace": workspace}, **more)


LINK = {"path": "deps", "target": "/usr/lib"}
SHAPES = [
    creating(400, "invalid_request", workspace)
    for workspace in (
        [],
        {},
        {"sourceDigest": "A" * 64},
        {"sourceDigest": HELD.digest, "more": 1},
        {"sourceDigest": HELD.digest, "baseline": "svn"},
        {"sourceDigest": HELD.digest, "environmentLinks": [{"path": "a"}]},
        {"sourceDigest": HELD.digest, "environmentLinks": [LINK | {"more": 1}]},
        {"sourceDigest": HELD.digest, "environmentLinks": [LINK] * 1_025},
    )
]
CREATES = [
    creating(200, workspace={"sourceDigest": HELD.digest}),
    creating(200, workspace={"sourceDigest": HELD.digest, "baseline": "git", "environmentLinks": [LINK]}),
    *SHAPES,
    creating(400, "invalid_request", [], by=None),
    creating(403, "thread_access_denied", {"sourceDigest": HELD.digest}, by=None),
    creating(403, "thread_access_denied", {"sourceDigest": HELD.digest}, by=BOB),
    creating(403, "thread_access_denied", {"sourceDigest": "0" * 64}, by=None),
    creating(422, "workspace_source_not_held", {"sourceDigest": "0" * 64}),
    creating(422, "workspace_source_not_held", {"sourceDigest": OWN.digest}),
    creating(422, "workspace_invalid", {"sourceDigest": HELD.digest, "environmentLinks": [{"path": "a.txt", "target": "/b"}]}),
    creating(422, "workspace_invalid", {"sourceDigest": HELD.digest, "environmentLinks": [LINK, LINK]}),
]
OFF = [
    *SHAPES,
    creating(400, "workspace_not_accepted", {"sourceDigest": HELD.digest}),
    creating(403, "thread_access_denied", {"sourceDigest": HELD.digest}, by=None),
    uploading(404, "not_found", OTHER.to_json()),
    uploading(403, "thread_access_denied", OTHER.to_json(), by=None),
    uploading(400, "invalid_request", b"", digest="x"),
    inspecting("ran", 404, "not_found"),
    inspecting("ran", 404, "thread_not_found", by=BOB),
]
TABLES = {
    "threads": (ON, THREADS),
    "runs": (ON, RUNS),
    "resume": (ON, RESUMES),
    "inspect": (ON, INSPECTIONS),
    "sources": (ON, SOURCES),
    "creates": (ON, CREATES),
    "options off": ("", OFF),
}


def model() -> Any:
    told = script()
    told = told.user("go").replies("done")
    told = told.user("slow").calls("slow", seconds=60).replies("done")
    told = told.user("ask").calls("runBash", command="make a").replies("done")
    return told.model(repeat=True)


@dataclass
class Stage:
    """A server and threads in every state."""

    server: Served
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    numbers: Any = field(default_factory=itertools.count)

    @asynccontextmanager
    async def thread(self, state: str) -> AsyncIterator[str]:
        """A thread of Alice's in a state, which ends with the block."""
        if state == "none":
            yield f"t-none-{next(self.numbers)}"
            return
        made = await self.server.http.post("/threads", headers={"x-user": ALICE})
        thread = str(made.json()["thread_id"])
        if state in ("ran", "parked", "reading"):
            ran = await self.run(thread, "go")
            assert ran.status_code == 200, ran.text
        if state == "parked":
            assert "__interrupt__" in (await self.run(thread, "ask")).json()
        under_way: asyncio.Task[Any] | None = None
        if state == "busy":
            under_way = asyncio.create_task(self.run(thread, "slow"))
            runs = self.server.service.runs
            await until(lambda: (run := runs.on_thread(thread)) is not None and run.log.number)
        if state == "reading":
            self.hung.clear()
            path = f"/threads/{thread}/workspace/inspect"
            under_way = asyncio.create_task(self.server.http.post(path, json={"root": "hang"}, headers={"x-user": ALICE}))
            await self.hung.wait()
        yield thread
        if under_way is not None:
            await self.server.http.post(f"/threads/{thread}/cancel", headers={"x-user": ALICE})
            await under_way
        # So that the next snapshot is short.
        assert (await self.server.http.delete(f"/threads/{thread}", headers={"x-user": ALICE})).status_code in (204, 403)

    async def run(self, thread: str, text: str) -> Any:
        return await self.server.http.post(f"/threads/{thread}/runs/wait", json={"route": ROUTE, "input": text}, headers={"x-user": ALICE})

    async def everything(self) -> dict[str, Any]:
        """All that a refused request might have changed."""
        service, headers = self.server.service, {"x-user": ALICE}
        storage = service.app.storage
        threads = [row for row, _ in await storage.threads.list(limit=1_000)]
        return {
            "threads": [(row.thread_id, row.status, row.metadata, row.updated_ms, row.deleting) for row in threads],
            "runs": {row.thread_id: await storage.runs.list(row.thread_id, limit=10) for row in threads},
            "prompts": {
                row.thread_id: (await self.server.http.get(f"/threads/{row.thread_id}/pending_interrupts", headers=headers)).text
                for row in threads
            },
            "sources": (await self.server.http.get("/workspace/sources", headers=headers)).text,
            "slots": service.slots.held,
            "places": (service.uploading, service.creating),
        }


@pytest.fixture
async def stage(serve, monkeypatch):
    async def begin(options: str) -> Stage:
        files = {
            "b4_config.py": CONFIG.replace("OPTIONS", options),
            "files/README.md": "own\n",
            "thread_access.py": OWNED,
            "auth.py": BY_HEADER,
            "app/fix/tools/slow.py": SLOW,
        }
        server = await serve(files, model=model())
        staged = Stage(server)
        inspect_workspace = reading.inspect_workspace

        async def hangs(reader, **options):
            if options.get("root") == "hang":
                staged.hung.set()
                await asyncio.sleep(60)
            return await inspect_workspace(reader, **options)

        monkeypatch.setattr(reading, "inspect_workspace", hangs)
        if options:
            made = await server.http.put(f"/workspace/sources/{HELD.digest}", content=HELD.to_json(), headers={"x-user": ALICE})
            assert made.status_code == 201, made.text
        return staged

    return begin


async def ask(stage: Stage, row: Row, thread: str) -> Any:
    method, path = row.asks.split(" ")
    body = row.body
    if body is not None and "{prompt}" in json.dumps(body):
        pending = (await stage.server.http.get(f"/threads/{thread}/pending_interrupts", headers={"x-user": ALICE})).json()
        prompts = [prompt["interruptId"] for prompt in pending.get("interrupts", [])] or ["perm-1-aaaaaa"]
        body = json.loads(json.dumps(body).replace("{prompt}", prompts[0]))
    sent = {"json": body} if body is not None else {"content": row.content}
    headers = {} if row.by is None else {"x-user": row.by}
    if path.endswith("runs/stream") and method == "GET" and row.state == "busy":
        async with stage.server.http.stream(method, path.format(thread), headers=headers) as answer:
            if answer.status_code != 200:
                await answer.aread()
            return answer
    return await stage.server.http.request(method, path.format(thread), headers=headers, **sent)


@pytest.mark.parametrize("name", TABLES)
async def test_every_row(stage, name):
    options, rows = TABLES[name]
    staged = await stage(options)
    expected, got, changed = {}, {}, []
    for row in rows:
        async with staged.thread(row.state) as thread:
            before = None if row.code is None else await staged.everything()
            answer = await ask(staged, row, thread)
            label = str(row)
            expected[label] = (row.status, row.code, row.answer)
            told = None if answer.status_code < 400 else code_of(answer)[1]
            shown = frozenset(answer.json()) if row.answer is not None and answer.status_code < 400 else None
            got[label] = (answer.status_code, told, shown)
            if before is not None and await staged.everything() != before:
                changed.append(label)
            if "/threads" in row.asks:
                assert "no-store" in answer.headers["cache-control"], label
        assert staged.server.service.slots.held == 0, label
    assert got == expected
    assert changed == []
