"""Server-sent events: a run's frames as they come, kept alive by comments, resumable by the id of the last one seen."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.responses import StreamingResponse

from b4run.server.service import Service
from b4run.storage.runs import Frame, RunRow
from b4run.threads.log import DETACHED, DONE, follow_stored
from b4run.threads.runs import LiveRun
from b4run.workspace.captured import compact

HEADERS = {"cache-control": "no-cache, no-store, no-transform", "x-accel-buffering": "no"}
_PING = b": ping\n\n"


def event_bytes(event: str, data: str, *, event_id: str | None = None) -> bytes:
    """Return one event as it crosses the wire; `data` is JSON on one line."""
    head = "" if event_id is None else f"id: {event_id}\n"
    return f"{head}event: {event}\ndata: {data}\n\n".encode(errors="replace")


def event_stream(frames: AsyncIterator[bytes], service: Service) -> StreamingResponse:
    """Answer with events, and a comment whenever nothing was sent for a while."""
    return StreamingResponse(_with_pings(frames, service.ping_s), media_type="text/event-stream", headers=HEADERS)


async def run_events(service: Service, row: RunRow, live: LiveRun | None, *, after: int = 0) -> AsyncIterator[bytes]:
    """Everything that a run told behind frame `after`, then what it tells, to its end."""
    frames = (
        _live_frames(service, live, after)
        if live is not None
        else follow_stored(service.app.storage.runs, row.thread_id, row.run_id, after)
    )
    async for frame in frames:
        event_id = None if frame.event == DETACHED else f"{row.run_id}/{frame.number}"
        yield event_bytes(frame.event, frame.data, event_id=event_id)


async def _live_frames(service: Service, live: LiveRun, after: int) -> AsyncIterator[Frame]:
    log = live.log
    if log.ended:
        await live.over.wait()
        async for frame in follow_stored(service.app.storage.runs, live.row.thread_id, live.row.run_id, after):
            yield frame
        return
    if log.full:
        yield Frame(0, DETACHED, compact({"reason": "capacity"}))
        return
    viewer, seen, digest = log.view(), log.number, log.digest
    earlier = list(digest[after:]) if digest is not None else None
    try:
        if earlier is None:
            await service.runs.writer.flush()
            earlier = [frame for frame in await _stored(service, live, after) if frame.number <= seen]
        for frame in earlier:
            yield frame
        while True:
            frame = await viewer.next()
            yield frame
            if frame.event in (DONE, DETACHED):
                return
    finally:
        viewer.close()


async def _stored(service: Service, live: LiveRun, after: int) -> list[Frame]:
    found: list[Frame] = []
    while page := await service.app.storage.runs.told(live.row.run_id, after=after):
        found += page
        after = page[-1].number
    return found


async def _with_pings(frames: AsyncIterator[bytes], ping_s: float) -> AsyncIterator[bytes]:
    """The next frame is waited for in a task of its own, so that a ping never interrupts it."""
    waiting: asyncio.Task[bytes] | None = None
    try:
        while True:
            if waiting is None:
                waiting = asyncio.ensure_future(_next(frames))
            done, _ = await asyncio.wait({waiting}, timeout=ping_s)
            if not done:
                yield _PING
                continue
            ready, waiting = waiting, None
            try:
                yield ready.result()
            except StopAsyncIteration:
                return
    finally:
        if waiting is not None:
            waiting.cancel()
            await asyncio.wait({waiting})
        close = getattr(frames, "aclose", None)
        if close is not None:
            await close()


async def _next(frames: AsyncIterator[bytes]) -> bytes:
    return await anext(frames)
