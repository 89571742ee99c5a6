"""The client against a real server, and against answers that it must not believe."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import httpx
import pytest

from b4run.client import AsyncClient, Client, ClientError
from b4run.workspace import SourceFile, StagedReference, create_source_bundle

BUNDLE = create_source_bundle([SourceFile("README.md", b"# hi\n")])
GOOD = {
    "threadId": "t-1",
    "sourceDigest": "a" * 64,
    "intentDigest": "b" * 64,
    "inspection": {"files": {"a/b.txt": "x"}, "symlinks": {}, "totalBytes": 1, "entries": 2},
}


def answering(*answers: Any) -> tuple[Client, list[httpx.Request]]:
    """A client whose server gives these answers in turn."""
    seen: list[httpx.Request] = []
    left = list(answers)

    def handle(request: httpx.Request) -> httpx.Response:
        request.read()
        seen.append(request)
        return left.pop(0)

    http = httpx.Client(base_url="http://test", transport=httpx.MockTransport(handle))
    return Client("http://test", http=http), seen


def refusal(status: int, code: str, **headers: str) -> httpx.Response:
    return httpx.Response(status, json={"error": {"kind": "request_error", "message": "No.", "details": {"code": code}}}, headers=headers)


def test_a_workspace_is_read():
    client, seen = answering(httpx.Response(200, json=GOOD))
    found = client.read_thread_workspace("t-1", {"root": "a"}, expected_source_digest="a" * 64)
    assert (found.files, found.total_bytes, found.entries) == ({"a/b.txt": "x"}, 1, 2)
    assert (seen[0].method, seen[0].url.path, json.loads(seen[0].content)) == ("POST", "/threads/t-1/workspace/inspect", {"root": "a"})


def changed(**changes: Any) -> dict[str, Any]:
    return {key: value for key, value in (GOOD | changes).items() if value is not None}


def inspected(**changes: Any) -> dict[str, Any]:
    return changed(inspection=GOOD["inspection"] | changes)  # type: ignore[operator]


MALFORMED = [
    [],
    changed(threadId=None),
    changed(more=1),
    changed(sourceDigest="A" * 64),
    changed(intentDigest="short"),
    changed(root=1),
    changed(inspection=[]),
    inspected(more=1),
    inspected(totalBytes=-1),
    inspected(entries=1.5),
    inspected(entries=True),
    inspected(files=[]),
    inspected(files={"a": 1}),
    *(inspected(files={path: ""}) for path in ("", "/a", "../a", "a/../b", "a//b", "a/", "a\\b", "a\0b", ".", "a" * 4_097)),
    *(inspected(symlinks={path: ""}) for path in ("/a", "../a")),
]


@pytest.mark.parametrize("answer", MALFORMED)
def test_a_malformed_answer_is_refused(answer):
    client, _ = answering(httpx.Response(200, json=answer))
    with pytest.raises(ClientError) as caught:
        client.read_thread_workspace("t-1")
    assert (caught.value.status, caught.value.reason_code) == (0, "malformed_response")


def test_answers_of_others_redirects_and_floods_are_refused():
    cases = {
        "thread_mismatch": (httpx.Response(200, json=changed(threadId="t-2")), 0),
        "source_mismatch": (httpx.Response(200, json=changed(sourceDigest="c" * 64)), 0),
        "response_too_large": (httpx.Response(200, content=b" " * 1_001), 0),
        "redirected": (httpx.Response(307, headers={"location": "http://elsewhere/"}), 307),
        "thread_not_found": (refusal(404, "thread_not_found"), 404),
        "status_502": (httpx.Response(502, content=b"<html>"), 502),
    }
    for code, (answer, status) in cases.items():
        client, _ = answering(answer)
        with pytest.raises(ClientError) as caught:
            client.read_thread_workspace("t-1", expected_source_digest="a" * 64, max_response_bytes=1_000)
        assert (caught.value.reason_code, caught.value.status) == (code, status)


def test_a_server_that_is_not_there_is_told_as_such():
    for url in ("http://127.0.0.1:1", "nonsense://x"):
        with Client(url) as client, pytest.raises(ClientError) as caught:
            client.create_thread()
        assert (caught.value.status, caught.value.reason_code) == (0, "unreachable")
        with Client(url) as client, pytest.raises(ClientError, match="connection failed"):
            list(client.attach("t-1"))


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    found: list[float] = []
    monkeypatch.setattr("time.sleep", found.append)
    return found


def test_only_what_the_server_did_not_begin_is_sent_again(pauses):
    done = httpx.Response(201, json={"digest": BUNDLE.digest, "status": "created"})
    client, seen = answering(refusal(429, "upload_in_flight"), refusal(429, "upload_in_flight", **{"retry-after": "1"}), done)
    heard: list[tuple[int, int]] = []
    assert client.upload_source(BUNDLE, progress=lambda sent, total: heard.append((sent, total))) == "created"
    assert pauses == [0.25, 1.0]
    assert [request.content for request in seen] == [BUNDLE.to_json()] * 3
    assert heard[-1] == (len(BUNDLE.to_json()),) * 2
    for answer in (refusal(429, "slow_down"), refusal(503, "shutting_down"), refusal(500, "internal_error")):
        client, seen = answering(answer)
        with pytest.raises(ClientError):
            client.create_thread(workspace=StagedReference("a" * 64))
        assert len(seen) == 1


def test_it_gives_up_after_five_retries(pauses):
    client, seen = answering(*[refusal(429, "workspace_create_in_flight", **{"retry-after": "60"}) for _ in range(6)])
    with pytest.raises(ClientError) as caught:
        client.create_thread()
    assert (caught.value.status, len(seen), pauses) == (429, 6, [5.0] * 5)


def test_an_upload_that_the_server_misunderstood_is_refused():
    client, _ = answering(httpx.Response(201, json={"digest": "c" * 64, "status": "created"}))
    with pytest.raises(ClientError, match="something else"):
        client.upload_source(BUNDLE)


def test_both_clients_can_do_the_same():
    def public(kind: type) -> dict[str, list[str]]:
        found = inspect.getmembers(kind, inspect.isfunction)
        return {
            name.removeprefix("a") if name == "aclose" else name: [*inspect.signature(f).parameters] for name, f in found if name[0] != "_"
        }

    assert public(Client) == public(AsyncClient)


async def test_both_clients_use_a_server(serve):
    server = await serve({"b4_config.py": 'config = {"permissions": {"mode": "interactive"}}\n'}, model=_model())
    async with AsyncClient(server.url) as client:
        thread = (await client.create_thread(metadata={"a": 1}))["thread_id"]
        assert (await client.get_thread(thread))["metadata"] == {"a": 1}
        events = [event async for event in client.stream(thread, "/fix#agent", "go")]
        assert [event.event for event in events][-2:] == ["interrupt", "done"]
        assert events[0].id.endswith("/1")
        (prompt,) = await client.pending_interrupts(thread)
        done = [event async for event in client.resume(thread, "/fix#agent", {prompt["interruptId"]: "once"})]
        assert done[-1].data == {"output": "done"}
        again = [event.event async for event in client.attach(thread, last_event_id=events[0].id)]
        assert again == [event.event for event in events[1:]]
        with pytest.raises(ClientError) as caught:
            await client.cancel(thread)
        assert caught.value.reason_code == "no_run_in_flight"

    def blocking() -> None:
        with Client(server.url) as client:
            assert client.run("t-2", "/fix#agent", "plain")["messages"][-1]["content"] == "done"
            assert [event.event for event in client.attach("t-2")] == ["state", "done"]
            client.delete_thread("t-2")
            with pytest.raises(ClientError, match="404 thread_not_found"):
                client.get_thread("t-2")

    await asyncio.to_thread(blocking)


def _model():  # type: ignore[no-untyped-def]
    from b4run.testing import script

    return script().user("go").calls("runBash", command="make").replies("done").user("plain").replies("done").model()
