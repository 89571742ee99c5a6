"""The thread-access policy and authentication, at every endpoint."""

from __future__ import annotations

import pytest

from b4run.errors import AccessPolicyInvalid, AuthInvalid

from .conftest import BY_HEADER, OWNED, ROUTE, code_of

RECORDING = """
from b4run.access import ThreadAccess, allow, deny

seen = []

def decide(request):
    seen.append(request)
    if request.url.endswith("?deny"):
        return deny()
    if request.url.endswith("?hide"):
        return deny(404)
    if request.url.endswith("?own"):
        return deny(403, {"sorry": True})
    if request.url.endswith("?raise"):
        raise KeyError("a secret")
    if request.url.endswith("?nonsense"):
        return "allow"
    if request.url.endswith("?teapot"):
        return deny(418)
    return allow({"by": "policy"})

async def read(request):
    return decide(request)

policy = ThreadAccess(fallback=decide, read=read)
"""
READS = [
    ("GET", "/threads/{}", "thread.get"),
    ("GET", "/threads/{}/state", "thread.state"),
    ("GET", "/threads/{}/pending_interrupts", "thread.pending_interrupts"),
    ("GET", "/threads/{}/runs/stream", "thread.attach"),
    ("GET", "/threads/{}/runs", "thread.runs"),
    ("GET", "/threads/{}/runs/r-1", "thread.runs"),
    ("GET", "/threads/{}/permissions", "thread.permissions"),
    ("POST", "/threads/{}/workspace/inspect", "thread.workspace"),
    ("GET", "/threads/{}/workspace/entries", "thread.workspace"),
    ("GET", "/threads/{}/workspace/diff", "thread.workspace"),
    ("GET", "/threads/{}/workspace/archive", "thread.workspace"),
    ("GET", "/threads/{}/workspace/files/a", "thread.workspace"),
]
RUN = {"route": ROUTE, "input": "go"}
WRITES = [
    ("PATCH", "/threads/{}", "update", "thread.update", {"metadata": {}}),
    ("DELETE", "/threads/{}", "delete", "thread.delete", None),
    ("POST", "/threads/{}/cancel", "update", "thread.cancel", None),
    ("POST", "/threads/{}/runs/r-1/cancel", "update", "thread.cancel", None),
    ("POST", "/threads/{}/runs/wait", "update", "run.wait", RUN),
    ("POST", "/threads/{}/runs/stream", "update", "run.stream", RUN),
    ("POST", "/threads/{}/resume", "update", "run.resume", {"route": ROUTE, "resume": []}),
    ("DELETE", "/threads/{}/permissions/1", "update", "thread.revoke", None),
]


def seen(server):
    """The requests that the policy has seen since the last look."""
    found = server.service.gate._access.policy.fallback.__globals__["seen"]
    requests = [*found]
    found.clear()
    return requests


@pytest.fixture
async def recorded(serve):
    return await serve({"thread_access.py": RECORDING})


@pytest.mark.parametrize(("method", "path", "operation"), READS)
async def test_a_denied_read_looks_like_a_miss(recorded, method, path, operation):
    thread = await recorded.create()
    seen(recorded)
    denied = await recorded.http.request(method, f"{path.format(thread)}?deny")
    missing = await recorded.http.request(method, f"{path.format('t-none')}?deny")
    assert denied.status_code == missing.status_code == 404
    assert denied.content == missing.content
    mine, none = seen(recorded)
    assert (mine.action, mine.operation, mine.thread_id, mine.method) == ("read", operation, thread, method)
    assert (mine.thread.thread_id, mine.thread.access, none.thread) == (thread, {"by": "policy"}, None)
    if operation == "thread.get":
        assert (await recorded.http.get("/threads/t-none")).content == denied.content


@pytest.mark.parametrize(("method", "path", "action", "operation", "body"), WRITES)
async def test_a_denied_write_says_so_and_does_nothing(recorded, method, path, action, operation, body):
    thread = await recorded.create()
    seen(recorded)
    denied = await recorded.http.request(method, f"{path.format(thread)}?deny", json=body)
    assert code_of(denied) == (403, "thread_access_denied")
    (request,) = seen(recorded)
    assert (request.action, request.operation, request.resuming) == (action, operation, operation == "run.resume")
    hidden = await recorded.http.request(method, f"{path.format(thread)}?hide", json=body)
    assert code_of(hidden) == (404, "thread_not_found")
    own = await recorded.http.request(method, f"{path.format(thread)}?own", json=body)
    assert (own.status_code, own.json()) == (403, {"sorry": True})
    raised = await recorded.http.request(method, f"{path.format(thread)}?raise", json=body)
    assert code_of(raised) == (500, "policy_failed")
    assert "secret" not in raised.text
    for nonsense in ("nonsense", "teapot"):
        answer = await recorded.http.request(method, f"{path.format(thread)}?{nonsense}", json=body)
        assert code_of(answer) == (403, "thread_access_denied")
    left = (await recorded.http.get(f"/threads/{thread}")).json()
    assert left["status"] == "idle"
    assert (await recorded.http.get(f"/threads/{thread}/runs")).json() == {"runs": []}


async def test_a_create_is_stamped_and_checked_again(recorded):
    made = await recorded.http.post("/threads", json={"metadata": {"a": 1, "b4:access": {"by": "me"}}})
    assert made.json()["metadata"] == {"a": 1, "b4:access": {"by": "policy"}}
    create, again = seen(recorded)
    assert (create.action, create.operation, create.requested_metadata, create.thread) == ("create", "thread.create", {"a": 1}, None)
    assert (again.action, again.operation, again.thread.access, again.requested_metadata) == (
        "update",
        "thread.create",
        {"by": "policy"},
        None,
    )
    assert again.thread.metadata == {"a": 1}


async def test_a_run_that_creates_its_thread_asks_for_both(recorded):
    await recorded.http.post("/threads/t-new/runs/wait", json=RUN)
    assert [(request.action, request.operation) for request in seen(recorded)] == [("create", "run.wait"), ("update", "run.wait")]
    assert (await recorded.http.get("/threads/t-new")).json()["metadata"] == {"b4:access": {"by": "policy"}}
    await recorded.http.post("/threads/t-other/runs/wait?deny", json=RUN)
    assert code_of(await recorded.http.get("/threads/t-other")) == (404, "thread_not_found")


async def test_routes_are_not_told_to_who_may_not_run(recorded):
    answer = await recorded.http.post("/threads/t-1/runs/wait?deny", json={"route": "/none#agent"})
    assert code_of(answer) == (403, "thread_access_denied")


async def test_an_overlong_create_is_gated_first(recorded):
    assert code_of(await recorded.http.post("/threads?deny", content=b" " * 1_048_577)) == (403, "thread_access_denied")
    assert code_of(await recorded.http.post("/threads", content=b" " * 1_048_577)) == (413, "payload_too_large")


REFUSES_AGAIN = """
from b4run.access import ThreadAccess, allow, deny
policy = ThreadAccess(fallback=lambda request: deny(), create=lambda request: allow())
"""


async def test_a_create_that_is_denied_afterwards_leaves_no_row(serve):
    server = await serve({"thread_access.py": REFUSES_AGAIN})
    assert code_of(await server.http.post("/threads")) == (403, "thread_access_denied")
    assert code_of(await server.http.post("/threads/t-1/runs/wait", json=RUN)) == (403, "thread_access_denied")
    assert await server.service.app.storage.threads.list(limit=10) == []


async def test_owned_threads(serve):
    server = await serve({"thread_access.py": OWNED, "auth.py": BY_HEADER})
    alice, bob = {"x-user": "alice"}, {"x-user": "bob"}
    assert code_of(await server.http.post("/threads")) == (403, "thread_access_denied")
    assert code_of(await server.http.post("/threads", headers={"x-user": "nobody"})) == (401, "unauthenticated")
    mine = (await server.http.post("/threads", headers=alice, json={"metadata": {"b4:access": {"ownerId": "bob"}}})).json()
    assert mine["metadata"] == {"b4:access": {"ownerId": "alice"}}
    path = f"/threads/{mine['thread_id']}"
    assert (await server.http.get(path, headers=alice)).status_code == 200
    assert code_of(await server.http.get(path, headers=bob)) == (404, "thread_not_found")
    assert code_of(await server.http.post(f"{path}/runs/wait", headers=bob, json=RUN)) == (403, "thread_access_denied")
    assert code_of(await server.http.delete(path, headers=bob)) == (403, "thread_access_denied")
    assert code_of(await server.http.delete("/threads/t-none", headers=bob)) == (403, "thread_access_denied")
    assert [thread["thread_id"] for thread in (await server.http.get("/threads", headers=alice)).json()["threads"]] == [mine["thread_id"]]
    assert (await server.http.get("/threads", headers=bob)).json()["threads"] == []
    assert (await server.http.post(f"{path}/runs/wait", headers=alice, json=RUN)).status_code == 200
    assert (await server.http.delete(path, headers=alice)).status_code == 204


NONSENSE_AUTH = "async def authenticate(request):\n    return {'id': 'root'}\n"
FAILING_AUTH = "async def authenticate(request):\n    raise KeyError('token')\n"


@pytest.mark.parametrize("auth", [NONSENSE_AUTH, FAILING_AUTH])
async def test_a_broken_authentication_is_never_anonymous(serve, auth):
    server = await serve({"auth.py": auth})
    answer = await server.http.post("/threads")
    assert code_of(answer) == (500, "auth_failed")
    assert answer.json()["error"]["code"] == "B4_E3005"
    assert "token" not in answer.text
    assert (await server.http.get("/healthz")).status_code == 200


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"thread_access.py": "policy = 1\n"}, AccessPolicyInvalid),
        ({"thread_access.py": "import nothing_of_that_name\n"}, AccessPolicyInvalid),
        ({"thread_access.py": "from b4run.access import ThreadAccess\npolicy = ThreadAccess()\n"}, AccessPolicyInvalid),
        ({"auth.py": "def authenticate(request): ...\n"}, AuthInvalid),
        ({"auth.py": "syntax error\n"}, AuthInvalid),
    ],
)
async def test_files_that_cannot_be_used_stop_the_boot(serve, files, error):
    with pytest.raises(error):
        await serve(files)
