"""Prompts over HTTP: listed, answered under the exact rules, also by another process after a restart."""

from __future__ import annotations

import asyncio

import pytest

from b4run.sandbox.testing import fake_sandbox
from b4run.testing import script

from .conftest import BY_HEADER, OWNED, ROUTE, code_of


def two_commands():
    return script().user("go").calls("runBash", command="make a").calls("runBash", command="make b").replies("done").model()


def command(text: str = "make a"):
    return script().user("go").calls("runBash", command=text).replies("done").model()


def recording():
    ran: list[str] = []

    def run(given):
        ran.append(str(given.command))
        return "ok\n"

    return fake_sandbox(run), ran


async def parked(serve, model=None, files=None, headers=None):
    provider, ran = recording()
    server = await serve(files, model=command() if model is None else model, provider=provider)
    body = {"route": ROUTE, "input": "go"}
    got = await server.stream("POST", "/threads/t-1/runs/stream", headers=headers, **body)
    assert [name for name, _ in got[-2:]] == ["interrupt", "done"]
    assert got[-1] == ("done", {"output": None})
    pending = (await server.http.get("/threads/t-1/pending_interrupts", headers=headers)).json()["interrupts"]
    assert ran == []
    return server, pending, ran, got


def resolved(pending, payload="once", **more):
    answers = [{"interruptId": prompt["interruptId"], "status": "resolved", "payload": payload, **more} for prompt in pending]
    return {"route": ROUTE, "resume": answers}


async def test_a_prompt_is_listed_and_answered(serve):
    server, pending, ran, got = await parked(serve)
    (prompt,) = pending
    assert set(prompt) == {"interruptId", "resumeKey", "value"}
    assert len(prompt["resumeKey"]) == 32
    assert prompt["value"] == got[-2][1]
    assert (prompt["value"]["type"], prompt["value"]["kind"]) == ("permission-request", "command")
    assert (await server.http.get("/threads/t-1")).json()["status"] == "interrupted"
    done = await server.stream("POST", "/threads/t-1/resume", **resolved(pending))
    assert done[-1] == ("done", {"output": "done"})
    assert ran == ["make a"]
    assert (await server.http.get("/threads/t-1/pending_interrupts")).json() == {"interrupts": []}
    assert (await server.http.get("/threads/t-1")).json()["status"] == "idle"


async def test_a_cancelled_prompt_is_denied(serve):
    server, pending, ran, _ = await parked(serve)
    body = {"route": ROUTE, "resume": [{"interruptId": pending[0]["interruptId"], "status": "cancelled"}]}
    done = await server.stream("POST", "/threads/t-1/resume", **body)
    assert done[-1] == ("done", {"output": "done"})
    assert ran == []


async def test_wrong_answers_are_refused_and_nothing_happens(serve):
    server, pending, ran, _ = await parked(serve, model=two_commands())
    good = resolved(pending)["resume"]
    stranger = {"interruptId": "perm-0-aaaaaa", "status": "resolved", "payload": "once"}

    async def answer(resume, route=ROUTE, **more):
        return code_of(await server.http.post("/threads/t-1/resume", json={"resume": resume, "route": route} | more))

    assert await answer([]) == (409, "resume_required")
    assert await answer([*good, good[0]]) == (409, "interrupt_set_mismatch")
    assert await answer([stranger]) == (409, "interrupt_set_mismatch")
    assert await answer([*good, stranger]) == (409, "interrupt_set_mismatch")
    assert await answer([good[0] | {"payload": "maybe"}]) == (400, "invalid_resume_payload")
    assert await answer([good[0] | {"more": 1}]) == (400, "invalid_request")
    assert await answer([good[0] | {"scope": "thread"}]) == (400, "invalid_request")
    assert await answer([good[0] | {"status": "done"}]) == (400, "invalid_request")
    assert await answer(good, more=1) == (400, "invalid_request")
    assert await answer(good, route="") == (400, "invalid_request")
    assert await answer("x") == (400, "invalid_request")
    assert ran == []
    assert (await server.http.get("/threads/t-1/pending_interrupts")).json()["interrupts"] == pending
    assert (await server.http.get("/threads/t-1")).json()["status"] == "interrupted"


async def test_refusals_of_threads_that_wait_for_nothing(serve):
    server = await serve()
    body = {"resume": [], "route": ROUTE}
    assert code_of(await server.http.post("/threads/t-1/resume", json=body)) == (404, "thread_not_found")
    assert code_of(await server.http.get("/threads/t-1/pending_interrupts")) == (404, "thread_not_found")
    thread = await server.create()
    assert code_of(await server.http.get(f"/threads/{thread}/pending_interrupts")) == (409, "thread_route_unknown")
    assert code_of(await server.http.get(f"/threads/{thread}/runs/stream")) == (409, "thread_route_unknown")
    await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"})
    assert code_of(await server.http.post("/threads/t-1/resume", json=body)) == (409, "stale_interrupt")
    assert (await server.http.get("/threads/t-1")).json()["status"] == "idle"


async def test_of_several_answers_at_once_one_counts(serve):
    server, pending, ran, _ = await parked(serve)
    posts = [server.http.post("/threads/t-1/resume", json=resolved(pending)) for _ in range(6)]
    answers = await asyncio.gather(*posts)
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 5
    codes = {code_of(answer)[1] for answer in answers if answer.status_code == 409}
    assert codes <= {"resume_in_progress", "stale_interrupt"}
    assert ran == ["make a"]


async def test_a_repeated_resume_with_its_key_is_the_same(serve):
    server, pending, ran, _ = await parked(serve)
    headers = {"idempotency-key": "answer-1"}
    first = await server.stream("POST", "/threads/t-1/resume", headers=headers, **resolved(pending))
    second = await server.stream("POST", "/threads/t-1/resume", headers=headers, **resolved(pending))
    assert first == second
    assert ran == ["make a"]


async def test_a_prompt_outlives_the_process(serve, make_app, database_url):
    server, pending, _, _ = await parked(serve)
    provider, ran = recording()
    after = await serve(root=server.service.app.root, model=command(), provider=provider)
    assert (await after.http.get("/threads/t-1/pending_interrupts")).json()["interrupts"] == pending
    done = await after.stream("POST", "/threads/t-1/resume", **resolved(pending))
    assert done[-1] == ("done", {"output": "done"})
    assert ran == ["make a"]


async def test_a_prompt_is_answered_under_the_route_that_asked(serve):
    other = 'from b4run.agents import Agent\nagent = Agent(model="openai:none", prompt="Other.")\n'
    server, pending, _, _ = await parked(serve, files={"app/other/agent.py": other})
    body = resolved(pending) | {"route": "/other#agent"}
    done = await server.stream("POST", "/threads/t-1/resume", **body)
    assert done[-1] == ("done", {"output": "done"})
    assert (await server.http.get("/threads/t-1")).json()["route"] == ROUTE


async def test_always_is_kept_attributed_listed_revoked(serve):
    files = {"auth.py": BY_HEADER, "thread_access.py": OWNED}
    alice = {"x-user": "alice"}
    model = (
        script().user("go").calls("runBash", command="make a").replies("done").user("go").calls("runBash", command="make a").replies("x")
    )
    provider, ran = recording()
    server = await serve(files, model=model.model(), provider=provider)
    run = {"route": ROUTE, "input": "go"}
    await server.stream("POST", "/threads/t-1/runs/stream", headers=alice, **run)
    pending = (await server.http.get("/threads/t-1/pending_interrupts", headers=alice)).json()["interrupts"]
    body = resolved(pending, "always", expiresInMs=3_600_000)
    await server.stream("POST", "/threads/t-1/resume", headers=alice, **body)
    (grant,) = (await server.http.get("/threads/t-1/permissions", headers=alice)).json()["permissions"]
    assert (grant["key"], grant["pattern"], grant["exact"], grant["scope"], grant["grantedBy"]) == (
        "bash",
        "make a",
        True,
        "thread",
        "alice",
    )
    assert grant["expiresAt"] > grant["grantedAt"]
    got = await server.stream("POST", "/threads/t-1/runs/stream", headers=alice, **run)
    assert got[-1] == ("done", {"output": "x"})
    assert ran == ["make a", "make a"]
    path = f"/threads/t-1/permissions/{grant['id']}"
    assert code_of(await server.http.delete(path, headers={"x-user": "bob"})) == (403, "thread_access_denied")
    assert (await server.http.delete(path, headers=alice)).status_code == 204
    assert code_of(await server.http.delete(path, headers=alice)) == (404, "permission_not_found")
    assert (await server.http.get("/threads/t-1/permissions", headers=alice)).json() == {"permissions": []}


async def test_an_always_for_everybody_needs_leave_of_its_own(serve):
    files = {"auth.py": BY_HEADER, "thread_access.py": OWNED}
    alice = {"x-user": "alice"}
    server, pending, ran, _ = await parked(serve, files=files, headers=alice)
    body = resolved(pending, "always", scope="app")
    assert code_of(await server.http.post("/threads/t-1/resume", json=body, headers=alice)) == (403, "thread_access_denied")
    assert ran == []
    assert (await server.http.get("/threads/t-1/pending_interrupts", headers=alice)).json()["interrupts"] == pending


async def test_a_subagents_prompt_waits_on_its_root_thread(serve):
    child = 'from b4run.agents import Agent, ToolScope\nagent = Agent(model="openai:none", prompt="Child.", tools=ToolScope(allow=("runBash",)))\n'
    files = {"app/fix/subagents/maker/agent.py": child}
    model = (
        script()
        .user("go")
        .calls("task", subagent="maker", input="make it")
        .replies("done")
        .user("make it")
        .calls("runBash", command="make child")
        .replies("made")
        .model()
    )
    server, pending, ran, _ = await parked(serve, model=model, files=files)
    assert pending[0]["value"]["detail"]["command"] == "make child"
    assert pending[0]["value"]["callId"]
    got = await server.stream("POST", "/threads/t-1/resume", **resolved(pending))
    assert got[-1] == ("done", {"output": "done"})
    assert ran == ["make child"]
    assert len((await server.http.get("/threads")).json()["threads"]) == 1


@pytest.mark.parametrize("kind", ["run", "resume"])
async def test_drain_lets_runs_finish_and_refuses_new_ones(serve, kind):
    server, pending, ran, _ = await parked(serve)
    server.service.closing = True
    path, body = ("runs/wait", {"route": ROUTE, "input": "go"}) if kind == "run" else ("resume", resolved(pending))
    assert code_of(await server.http.post(f"/threads/t-1/{path}", json=body)) == (503, "shutting_down")
    assert ran == []
    assert (await server.http.get("/healthz")).status_code == 200
    assert (await server.http.get("/readyz")).status_code == 503
