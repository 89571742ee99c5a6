"""Runs over HTTP: waited for, streamed, attached to, cancelled, queued."""

from __future__ import annotations

import asyncio
import json

from b4run.testing import script

from .conftest import ROUTE, code_of, events, until

LOCKED = 'config = {"permissions": {"mode": "interactive"}}\n'


async def test_a_run_is_waited_for_and_creates_its_thread(serve):
    server = await serve()
    answer = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"})
    assert answer.status_code == 200, answer.text
    assert [(message["type"], message["content"]) for message in answer.json()["messages"]] == [("human", "go"), ("ai", "done")]
    thread = (await server.http.get("/threads/t-1")).json()
    assert (thread["status"], thread["route"]) == ("idle", ROUTE)
    state = await server.http.get("/threads/t-1/state")
    assert set(state.json()) == {"config", "created_at", "metadata", "next", "parent_config", "values"}
    assert state.json()["values"]["messages"] == answer.json()["messages"]


async def test_a_run_is_streamed(serve):
    server = await serve()
    got = await server.stream("POST", "/threads/t-1/runs/stream", route=ROUTE, input="go")
    assert "".join(data for name, data in got if name == "chunk") == "done"
    assert got[-1] == ("done", {"output": "done"})
    assert [name for name, _ in got].count("done") == 1


async def test_what_cannot_be_run_is_refused_and_changes_nothing(serve):
    server = await serve()
    post = server.http.post
    assert code_of(await post("/threads/t-1/runs/wait", json={"route": "/none#agent"})) == (404, "route_not_found")
    assert code_of(await post("/threads/t-1/runs/wait", json={"route": "/fix#graph"})) == (404, "route_not_found")
    assert code_of(await post("/threads/t-1/runs/wait", json={"route": 1})) == (400, "invalid_request")
    assert code_of(await post("/threads/t-1/runs/wait", json={"route": ROUTE, "timeout_ms": 0})) == (400, "invalid_request")
    assert code_of(await post("/threads/t-1/runs/wait", json={"route": ROUTE, "multitask_strategy": "x"})) == (400, "invalid_request")
    assert code_of(await post("/threads/t-1/runs/wait", content=b"{")) == (400, "invalid_request")
    assert code_of(await server.http.get("/threads/t-1")) == (404, "thread_not_found")


async def test_an_input_that_is_no_message_is_refused_before_anything_is_made(serve):
    server = await serve()
    none = [
        [1],
        [None],
        [{}],
        [{"role": "user"}],
        [{"role": "evil", "content": "x"}],
        [{"role": "tool", "content": "x"}],
        {"messages": [["user"]]},
        {"messages": [{"role": "user", "content": "go"}, {"type": 1}]},
    ]
    for given in none:
        answer = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": given})
        assert code_of(answer) == (400, "invalid_request"), given
        assert "http" not in answer.text
    assert (await server.http.get("/threads")).json()["threads"] == []
    given = {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "go"}]}
    assert (await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": given})).status_code == 200


async def test_a_failing_run_tells_it(serve):
    server = await serve(model=script().user("other").replies("x").model())
    got = await server.stream("POST", "/threads/t-1/runs/stream", route=ROUTE, input="go")
    assert got[-1][0] == "done"
    assert "no answer" in got[-1][1]["output"]["error"]
    failed = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"})
    assert code_of(failed) == (500, "run_failed")
    assert failed.json()["error"]["code"] == "B4_E4004"
    assert (await server.http.get("/threads/t-1")).json()["status"] == "idle"


SLOW = """
from b4run.agents import Agent
agent = Agent(model="openai:none", prompt="Help.")
"""
SLOW_TOOL = '''
import asyncio

async def slow(seconds: float) -> str:
    """Take a while."""
    await asyncio.sleep(seconds)
    return "rested"
'''
STUBBORN_TOOL = '''
import asyncio

async def stubborn() -> str:
    """Heed no cancellation."""
    for _ in range(40):
        try:
            await asyncio.sleep(0.1)
        except asyncio.CancelledError:
            pass
    return "never"
'''
FREE = 'config = {"permissions": {"mode": "bypass"}}\n'


def slow_app():
    return {"b4_config.py": FREE, "app/fix/agent.py": SLOW, "app/fix/tools/slow.py": SLOW_TOOL, "app/fix/tools/stubborn.py": STUBBORN_TOOL}


def slow_model(seconds: float = 30):
    told = script()
    for _ in range(4):
        told = told.user("slow").calls("slow", seconds=seconds).replies("done").user("go").replies("quick")
    return told.model()


async def busy(server, thread="t-1"):
    """Begin a run that takes long; returns once it is under way."""
    begun = asyncio.create_task(server.http.post(f"/threads/{thread}/runs/wait", json={"route": ROUTE, "input": "slow"}))
    await until(lambda: server.service.runs.active)
    await until(lambda: server.service.runs.on_thread(thread) and server.service.runs.on_thread(thread).log.number)
    return begun


async def test_one_run_a_thread_and_cancel_frees_it(serve):
    server = await serve(slow_app(), model=slow_model())
    begun = await busy(server)
    assert (await server.http.get("/threads/t-1")).json()["status"] == "busy"
    for path, body in (("runs/wait", {"route": ROUTE}), ("runs/stream", {"route": ROUTE}), ("resume", {"route": ROUTE, "resume": []})):
        assert code_of(await server.http.post(f"/threads/t-1/{path}", json=body)) == (409, "run_in_flight")
    assert code_of(await server.http.delete("/threads/t-1")) == (409, "run_in_flight")
    cancelled = await server.http.post("/threads/t-1/cancel")
    assert (cancelled.status_code, cancelled.json()) == (200, {"thread_id": "t-1", "status": "interrupted"})
    assert code_of(await begun) == (409, "run_cancelled")
    assert (await server.http.get("/threads/t-1")).json()["status"] == "interrupted"
    assert code_of(await server.http.post("/threads/t-1/cancel")) == (409, "no_run_in_flight")
    assert code_of(await server.http.post("/threads/t-none/cancel")) == (404, "thread_not_found")
    assert (await server.http.delete("/threads/t-1")).status_code == 204


async def test_of_many_at_once_one_runs(serve):
    server = await serve(slow_app(), model=slow_model(0.5))
    posts = [server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "slow"}) for _ in range(12)]
    answers = await asyncio.gather(*posts)
    assert sorted(answer.status_code for answer in answers) == [200] + [409] * 11
    assert {code_of(answer) for answer in answers if answer.status_code == 409} == {(409, "run_in_flight")}
    assert len((await server.http.get("/threads/t-1/runs")).json()["runs"]) == 1


async def test_a_cancelled_stream_ends_with_cancelled(serve):
    server = await serve(slow_app(), model=slow_model())
    streaming = asyncio.create_task(server.stream("POST", "/threads/t-1/runs/stream", route=ROUTE, input="slow"))
    await until(lambda: server.service.runs.on_thread("t-1"))
    assert (await server.http.post("/threads/t-1/cancel")).status_code == 200
    assert (await streaming)[-1] == ("done", {"output": {"cancelled": True}})


async def test_a_run_that_heeds_no_cancel_is_left_behind_and_its_thread_is_free(serve):
    model = script().user("stubborn").calls("stubborn").replies("x").user("go").replies("quick").model()
    server = await serve(slow_app(), model=model)
    server.service.runs._cancel_grace_s = server.service.runs._abandon_s = 0.3
    streaming = asyncio.create_task(server.stream("POST", "/threads/t-1/runs/stream", route=ROUTE, input="stubborn"))
    await until(lambda: server.service.runs.on_thread("t-1") and server.service.runs.on_thread("t-1").log.number)
    assert (await server.http.post("/threads/t-1/cancel")).status_code == 200
    assert (await streaming)[-1] == ("done", {"output": {"cancelled": True}})
    again = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"})
    assert again.status_code == 200, again.text
    assert again.json()["messages"][-1]["content"] == "quick"


async def test_a_client_that_leaves_does_not_stop_its_run_and_can_come_back(serve):
    server = await serve(slow_app(), model=slow_model(1.0))
    async with server.http.stream("POST", "/threads/t-1/runs/stream", json={"route": ROUTE, "input": "slow"}) as answer:
        async for name, _ in events(answer):
            if name == "tool_call":
                break
    got = await server.stream("GET", "/threads/t-1/runs/stream")
    assert got[0][0] == "state"
    assert (got[0][1]["live"], got[0][1]["status"]) == (True, "busy")
    assert [part["event"] for part in got[0][1]["turn"]] == ["tool_call"]
    assert [name for name, _ in got[1:]] == ["tool_result", "chunk", "done"]
    idle = await server.stream("GET", "/threads/t-1/runs/stream")
    assert [name for name, _ in idle] == ["state", "done"]
    assert (idle[0][1]["live"], idle[1][1]) == (False, {"output": None})


async def test_last_event_id_goes_on_where_the_client_was(serve):
    server = await serve()
    ids, names = [], []
    async with server.http.stream("POST", "/threads/t-1/runs/stream", json={"route": ROUTE, "input": "go"}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("id: "):
                ids.append(line.removeprefix("id: "))
            if line.startswith("event: "):
                names.append(line.removeprefix("event: "))
    assert len(ids) == len(names)
    for number, event_id in enumerate(ids[:-1]):
        got = await server.stream("GET", "/threads/t-1/runs/stream", headers={"last-event-id": event_id})
        assert [name for name, _ in got] == names[number + 1 :]


async def test_a_repeated_key_is_the_same_run(serve):
    server = await serve()
    headers = {"idempotency-key": "k-1"}
    first = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"}, headers=headers)
    second = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"}, headers=headers)
    assert first.json() == second.json()
    assert first.headers["x-run-id"] == second.headers["x-run-id"]
    got = await server.stream("POST", "/threads/t-1/runs/stream", headers=headers, route=ROUTE, input="go")
    assert got[-1] == ("done", {"output": "done"})
    other = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "else"}, headers=headers)
    assert code_of(other) == (422, "idempotency_key_reused")
    assert len((await server.http.get("/threads/t-1/runs")).json()["runs"]) == 1


async def test_the_same_key_many_times_at_once_is_one_run(serve):
    server = await serve(slow_app(), model=slow_model(0.3))
    await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "go"})
    headers = {"idempotency-key": "k"}
    posts = [server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "slow"}, headers=headers) for _ in range(8)]
    answers = await asyncio.gather(*posts)
    assert {answer.headers.get("x-run-id") for answer in answers if answer.status_code == 200} == {answers[0].headers["x-run-id"]}
    assert {answer.status_code for answer in answers} == {200}
    assert len((await server.http.get("/threads/t-1/runs")).json()["runs"]) == 2


async def test_a_run_has_a_deadline_of_its_own(serve):
    server = await serve(slow_app(), model=slow_model())
    late = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "slow", "timeout_ms": 300})
    assert code_of(late) == (504, "run_timeout")
    assert (await server.http.get("/threads/t-1")).json()["status"] == "idle"


async def test_runs_can_wait_for_their_turn_or_take_it(serve):
    server = await serve(slow_app(), model=slow_model(0.6))
    begun = await busy(server)
    body = {"route": ROUTE, "input": "go", "multitask_strategy": "enqueue"}
    queued = await asyncio.gather(*(server.http.post("/threads/t-1/runs/wait", json=body) for _ in range(3)))
    assert [answer.status_code for answer in queued] == [200] * 3
    assert (await begun).status_code == 200
    begun = await busy(server)
    taken = await server.http.post("/threads/t-1/runs/wait", json=body | {"multitask_strategy": "interrupt"})
    assert taken.status_code == 200
    assert code_of(await begun) == (409, "run_cancelled")


async def test_a_wait_that_is_too_long_is_told_where_to_look(serve):
    server = await serve(slow_app(), model=slow_model(0.8))
    headers = {"prefer": "wait=0"}
    begun = await server.http.post("/threads/t-1/runs/wait", json={"route": ROUTE, "input": "slow"}, headers=headers)
    assert begun.status_code == 202
    path = begun.headers["location"]

    async def over():
        return (await server.http.get(path)).json()["status"] == "success"

    await until(over)
    run = (await server.http.get(path)).json()
    assert run["output"] == "done"
    assert run["ended_at"] > run["started_at"] >= run["created_at"]
    assert code_of(await server.http.post(f"{path}/cancel")) == (409, "no_run_in_flight")
    assert code_of(await server.http.get("/threads/t-1/runs/r-none")) == (404, "run_not_found")


async def test_pings_keep_a_quiet_stream_alive(serve):
    server = await serve(slow_app(), model=slow_model(0.5), ping_s=0.1)
    async with server.http.stream("POST", "/threads/t-1/runs/stream", json={"route": ROUTE, "input": "slow"}) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        text = (await answer.aread()).decode()
    assert text.count(": ping\n\n") >= 2
    assert text.endswith(f"event: done\ndata: {json.dumps({'output': 'done'}, separators=(',', ':'))}\n\n")
