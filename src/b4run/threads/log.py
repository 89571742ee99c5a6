"""What a run tells: numbered frames, to whoever watches now, and in batches to the database for whoever comes later.

Every buffer is bounded. A viewer who reads too slowly is detached and may come back with the number of the last frame it saw.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import Any

from b4run.errors import B4Error
from b4run.storage.runs import Frame, SqlRunStore
from b4run.workspace.captured import compact

VIEWER_FRAMES = 1_024
VIEWER_BYTES = 1_048_576
"""What may wait for one viewer."""
MAX_VIEWERS = 16 + 1
"""Of one run in one process, with whoever began it."""
DIGEST_BYTES = 2_097_152
"""What a live turn may have told to be shown whole to somebody who comes in the middle."""
KEPT_BYTES = 16_777_216
"""What is kept of one run in the database; later frames are told to viewers only."""
FLUSH_S = 0.2
PENDING_BYTES = 67_108_864
"""What may wait for the database in one process, before a run's history is given up."""
POLL_S = 0.25
"""How often another process's run is looked at."""

DONE = "done"
DETACHED = "detached"

logger = logging.getLogger("b4run.threads")


class Viewer:
    """One reader of a run. Iterate it; the last frame is `done`, or `detached` with the reason."""

    def __init__(self, log: RunLog) -> None:
        self._log = log
        self._frames: deque[Frame] = deque()
        self._bytes = 0
        self._arrived = asyncio.Event()
        self._detached: str | None = None

    def offer(self, frame: Frame) -> None:
        """Queue a frame, without waiting; past the bounds what waits is dropped and the viewer detached."""
        if self._detached is not None:
            return
        self._frames.append(frame)
        self._bytes += len(frame.data)
        if len(self._frames) > VIEWER_FRAMES or self._bytes > VIEWER_BYTES:
            self.detach("overflow")
        self._arrived.set()

    def detach(self, reason: str) -> None:
        self._frames.clear()
        self._detached = reason
        self._log.leave(self)
        self._arrived.set()

    def close(self) -> None:
        """Free the viewer's place."""
        self._log.leave(self)

    async def next(self) -> Frame:
        """Wait for the next frame."""
        while not self._frames:
            if self._detached is not None:
                return Frame(0, DETACHED, compact({"reason": self._detached}))
            self._arrived.clear()
            await self._arrived.wait()
        frame = self._frames.popleft()
        self._bytes -= len(frame.data)
        return frame


class RunLog:
    """The frames of one live run, in the process that runs it."""

    def __init__(self, run_id: str, writer: LogWriter) -> None:
        self.run_id = run_id
        self.ended = False
        self._writer = writer
        self._frames: list[Frame] | None = []
        self._bytes = 0
        self._number = 0
        self._viewers: set[Viewer] = set()

    @property
    def number(self) -> int:
        """Of the last frame."""
        return self._number

    @property
    def digest(self) -> list[Frame] | None:
        """All frames so far; None once they are more than `DIGEST_BYTES`."""
        return self._frames

    @property
    def full(self) -> bool:
        """Whether no viewer may come any more."""
        return len(self._viewers) >= MAX_VIEWERS

    def tell(self, event: str, data: Any) -> None:
        """Add a frame. Never waits."""
        if not self.ended:
            self._offer(self._add(event, data))

    def close(self, data: Any) -> Callable[[], None]:
        """Add the last frame, `done`; return what tells viewers of it, for when the thread is free."""
        frame = self._add(DONE, data)
        self.ended = True
        return lambda: self._offer(frame)

    def _add(self, event: str, data: Any) -> Frame:
        self._number += 1
        frame = Frame(self._number, event, compact(data))
        if self._frames is not None:
            self._frames.append(frame)
            self._bytes += len(frame.data)
            if self._bytes > DIGEST_BYTES:
                self._frames = None
        self._writer.add(self.run_id, frame)
        return frame

    def _offer(self, frame: Frame) -> None:
        for viewer in [*self._viewers]:
            viewer.offer(frame)

    def view(self) -> Viewer:
        """Return a viewer who sees every frame from now on."""
        viewer = Viewer(self)
        self._viewers.add(viewer)
        return viewer

    def leave(self, viewer: Viewer) -> None:
        self._viewers.discard(viewer)


class LogWriter:
    """Brings what this process's runs tell to the database, all of them in one transaction at a time."""

    def __init__(self, store: SqlRunStore) -> None:
        self._store = store
        self._pending: dict[str, list[Frame]] = {}
        self._bytes = 0
        self._kept: dict[str, int] = {}
        self._flushing = asyncio.Lock()
        self._loop: asyncio.Task[None] | None = None

    def add(self, run_id: str, frame: Frame) -> None:
        kept = self._kept[run_id] = self._kept.get(run_id, 0) + len(frame.data)
        # The last frame is always kept: it is what tells a later reader that the run is over.
        if (kept > KEPT_BYTES or self._bytes > PENDING_BYTES) and frame.event != DONE:
            return
        self._pending.setdefault(run_id, []).append(frame)
        self._bytes += len(frame.data)
        if self._loop is None or self._loop.done():
            self._loop = asyncio.create_task(self._flush_soon())

    async def finish(self, run_id: str) -> None:
        """Return when everything that the run told is kept."""
        await self.flush()
        self._kept.pop(run_id, None)

    async def flush(self) -> None:
        async with self._flushing:
            batches, self._pending, self._bytes = self._pending, {}, 0
            if not batches:
                return
            try:
                await self._store.tell(batches)
            except B4Error as error:
                logger.warning("what runs told is not kept", extra={"event": "runs.not_kept", "reason": error.message})

    async def aclose(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.wait({self._loop})
        await self.flush()

    async def _flush_soon(self) -> None:
        while self._pending:
            await asyncio.sleep(FLUSH_S)
            await self.flush()


async def follow_stored(store: SqlRunStore, thread_id: str, run_id: str, after: int = 0) -> AsyncIterator[Frame]:
    """Give out what a run told behind frame `after`, also while another process runs it, up to its `done`."""
    while True:
        frames = await store.told(run_id, after=after)
        for frame in frames:
            yield frame
            after = frame.number
            if frame.event == DONE:
                return
        if frames:
            continue
        run = await store.find(thread_id, run_id)
        if run is None or run.status.over:
            # It ended without a word, as a process that was killed does; what it told last may have come just now.
            for frame in await store.told(run_id, after=after):
                yield frame
                after = frame.number
            if run is None or not frames or frames[-1].event != DONE:
                output = {"error": (run.outcome or {}).get("error", "the run is gone")} if run is not None else None
                yield Frame(after + 1, DONE, compact({"output": output}))
            return
        await asyncio.sleep(POLL_S)
