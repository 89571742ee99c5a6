"""The asynchronous client; see `b4run.client`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx

from b4run.client import flows
from b4run.client.flows import MAX_RESPONSE_BYTES, Answer, Ask, Flow, Pause, Progress, StreamEvent, ThreadWorkspace, thread_path
from b4run.workspace import SourceBundle, StagedReference

T = TypeVar("T")


class AsyncClient:
    """One server. `timeout_s` bounds each wait for bytes, not a whole run; `http` replaces the connection pool, for tests."""

    def __init__(
        self, base_url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 60.0, http: httpx.AsyncClient | None = None
    ) -> None:
        self._http = http or httpx.AsyncClient(base_url=base_url, headers=dict(headers or {}), timeout=timeout_s, follow_redirects=False)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def upload_source(self, bundle: SourceBundle, *, progress: Progress | None = None) -> str:
        """Upload a source, so that threads can be created from it. Returns `created`, or `held` when the server has it already.

        `progress` hears how many bytes were sent, and of how many. Raises: ClientError.
        """
        return await self._follow(flows.upload_source(bundle), progress)

    async def create_thread(self, *, metadata: Mapping[str, Any] | None = None, workspace: StagedReference | None = None) -> dict[str, Any]:
        """Create a thread, from an upload when `workspace` names one, and return its row. Raises: ClientError."""
        return await self._follow(flows.create_thread(metadata, workspace))

    async def get_thread(self, thread_id: str) -> dict[str, Any]:
        """Return a thread's row. Raises: ClientError."""
        found: dict[str, Any] = await self._call("GET", thread_path(thread_id))
        return found

    async def delete_thread(self, thread_id: str) -> None:
        """Delete a thread with its conversation and its sandbox. Raises: ClientError."""
        await self._call("DELETE", thread_path(thread_id))

    async def run(
        self,
        thread_id: str,
        route: str,
        input: Any,
        *,
        timeout_ms: int | None = None,
        multitask_strategy: str | None = None,
        idempotency_key: str | None = None,
    ) -> Any:
        """Run one turn to its end and return the conversation's state; the thread is made if it is not there.

        Raises:
            ClientError: it was refused, failed, or was cancelled.
        """
        body = flows.run_body(route, input, timeout_ms, multitask_strategy)
        return await self._call("POST", thread_path(thread_id, "runs", "wait"), body, idempotency_key, patient=True)

    def stream(
        self,
        thread_id: str,
        route: str,
        input: Any,
        *,
        timeout_ms: int | None = None,
        multitask_strategy: str | None = None,
        idempotency_key: str | None = None,
    ) -> AsyncIterator[StreamEvent]:
        """As `run`, event by event; the last is `done`. Leaving early does not stop the run."""
        body = flows.run_body(route, input, timeout_ms, multitask_strategy)
        return self._events("POST", thread_path(thread_id, "runs", "stream"), body, idempotency_key)

    def attach(self, thread_id: str, *, last_event_id: str | None = None) -> AsyncIterator[StreamEvent]:
        """Follow what runs on the thread now: its state, then live events; or what came behind `last_event_id`."""
        return self._events("GET", thread_path(thread_id, "runs", "stream"), last_event_id=last_event_id)

    def resume(
        self, thread_id: str, route: str, answers: Mapping[str, str], *, idempotency_key: str | None = None
    ) -> AsyncIterator[StreamEvent]:
        """Answer every prompt that waits, by interrupt id: `once`, `always`, `deny` or `cancelled`; then as `stream`."""
        return self._events("POST", thread_path(thread_id, "resume"), flows.resume_body(route, answers), idempotency_key)

    async def pending_interrupts(self, thread_id: str) -> list[dict[str, Any]]:
        """Return the prompts that wait on the thread. Raises: ClientError."""
        found = await self._call("GET", thread_path(thread_id, "pending_interrupts"))
        return list(found["interrupts"])

    async def cancel(self, thread_id: str) -> None:
        """End what runs on the thread. Raises: ClientError: nothing does."""
        await self._call("POST", thread_path(thread_id, "cancel"))

    async def read_thread_workspace(
        self,
        thread_id: str,
        request: Mapping[str, Any] | None = None,
        *,
        expected_source_digest: str | None = None,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
    ) -> ThreadWorkspace:
        """Return the text of a thread's files; `request` as the endpoint takes it.

        Raises:
            ClientError: the server refuses; or the answer is malformed, too large, or about another thread or source.
        """
        return await self._follow(flows.read_thread_workspace(thread_id, request or {}, expected_source_digest, max_response_bytes))

    async def _call(self, method: str, path: str, body: Any = None, key: str | None = None, *, patient: bool = False) -> Any:
        headers = {} if key is None else {"idempotency-key": key}
        return await self._follow(flows.call(Ask(method, path, json=body, headers=headers)), patient=patient)

    async def _follow(self, flow: Flow[T], progress: Progress | None = None, *, patient: bool = False) -> T:
        given: Any = None
        while True:
            try:
                step = flow.send(given)
            except StopIteration as end:
                result: T = end.value
                return result
            if isinstance(step, Pause):
                await asyncio.sleep(step.seconds)
                given = None
            else:
                given = await self._send(step, progress, patient)

    async def _send(self, ask: Ask, progress: Progress | None, patient: bool) -> Answer:
        try:
            return await self._exchange(ask, progress, patient)
        except httpx.TransportError as error:
            raise flows.unreachable(error) from error

    async def _exchange(self, ask: Ask, progress: Progress | None, patient: bool) -> Answer:
        headers = dict(ask.headers)
        content = None
        if ask.content is not None:
            content = _sent(ask, progress)
            headers |= {"content-type": "application/json", "content-length": str(ask.size)}
        # A run may take as long as it takes; whoever waits for it bounds it by `timeout_ms`.
        timeout = httpx.Timeout(self._http.timeout.connect, read=None) if patient else self._http.timeout
        async with self._http.stream(ask.method, ask.path, json=ask.json, content=content, headers=headers, timeout=timeout) as answer:
            if 300 <= answer.status_code < 400:
                raise flows.redirected(answer.status_code)
            body = bytearray()
            async for piece in answer.aiter_bytes():
                body += piece
                if len(body) > ask.limit:
                    raise flows.too_large(ask.limit)
        return Answer(answer.status_code, dict(answer.headers), bytes(body))

    async def _events(
        self, method: str, path: str, body: Any = None, key: str | None = None, last_event_id: str | None = None
    ) -> AsyncIterator[StreamEvent]:
        headers = {} if key is None else {"idempotency-key": key}
        if last_event_id is not None:
            headers["last-event-id"] = last_event_id
        parser = flows.EventParser()
        timeout = httpx.Timeout(self._http.timeout.connect, read=60.0)
        try:
            async with self._http.stream(method, path, json=body, headers=headers, timeout=timeout) as answer:
                if answer.status_code != 200:
                    raise flows.refused(Answer(answer.status_code, dict(answer.headers), await answer.aread()))
                async for line in answer.aiter_lines():
                    event = parser.line(line)
                    if event is not None:
                        yield event
        except httpx.TransportError as error:
            raise flows.unreachable(error) from error


async def _sent(ask: Ask, progress: Progress | None) -> AsyncIterator[bytes]:
    assert ask.content is not None
    count = 0
    for piece in ask.content():
        yield piece
        count += len(piece)
        if progress is not None:
            progress(count, ask.size)
