"""A command whose output is read as it comes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from b4run.sandbox.contract import Command, ExecResult, Output, OutputChunk, Stdin, Stream
from b4run.sandbox.guest.calls import Call, ChunkQueue, Patience, Plan
from b4run.sandbox.guest.client import GuestClient, RequestTooLarge
from b4run.sandbox.guest.commands import command_refused, command_too_large
from b4run.sandbox.guest.frames import Lane
from b4run.sandbox.guest.messages import GuestRefusal, Message, read_kept, read_result

Judge = Callable[[ExecResult], Awaitable[ExecResult]]

_STREAMS = {Lane.OUTPUT: Stream.STDOUT, Lane.ERRORS: Stream.STDERR}


class GuestStream:
    """`ExecStream` over a `GuestClient`; one task reads it.

    `result` gives up what has not been read by then. A task that is cancelled while it waits here cancels the command; so does dropping
    the stream before its end.
    """

    def __init__(
        self, client: GuestClient, message: dict[str, Any], command: Command, stdin: Stdin, patience: Patience, judge: Judge
    ) -> None:
        self._client = client
        self._command = command
        self._cwd = os.fsdecode(message["cwd"]) if "cwd" in message else None
        self._stdin = stdin
        self._queue = ChunkQueue()
        self._plan = Plan("the command", message, _result, self._queue, patience=patience)
        self._judge = judge
        self._opening = asyncio.Lock()
        self._call: Call[ExecResult] | None = None
        self._loop = asyncio.get_running_loop()

    def __aiter__(self) -> AsyncIterator[OutputChunk]:
        return self

    async def __anext__(self) -> OutputChunk:
        call = await self._started()
        while (chunk := self._queue.pop()) is None:
            if call.end.done() or self._queue.discards:
                await self._ended(call)
                raise StopAsyncIteration
            try:
                await self._queue.changed()
            except asyncio.CancelledError:
                await self.cancel()
                raise
        lane, data = chunk
        self._client.consumed(call, lane, len(data))
        return OutputChunk(_STREAMS[lane], data)

    async def result(self) -> ExecResult:
        """Return the result; its `out` and `err` count the bytes and hold none."""
        call = await self._started()
        self._discard(call)
        return await self._judge(await self._ended(call))

    async def cancel(self) -> None:
        """End the whole tree and wait for it; before the start there is nothing to end."""
        if self._call is not None:
            self._discard(self._call)
            await self._client.give_up(self._call)

    def __del__(self) -> None:
        call = self._call
        if call is not None and call.open and not self._loop.is_closed():
            self._queue.discards = True
            self._loop.call_soon_threadsafe(self._client.cancel, call)

    async def _started(self) -> Call[ExecResult]:
        if self._call is None:
            async with self._opening:
                if self._call is None:
                    try:
                        self._call = await self._client.open(self._plan, self._stdin)
                    except RequestTooLarge:
                        raise command_too_large() from None
        return self._call

    async def _ended(self, call: Call[ExecResult]) -> ExecResult:
        try:
            return await self._client.finish(call)
        except GuestRefusal as refusal:
            raise command_refused(refusal, self._command, self._cwd) from None

    def _discard(self, call: Call[ExecResult]) -> None:
        for lane, size in self._queue.discard():
            self._client.consumed(call, lane, size)


def _result(answer: Message) -> ExecResult:
    return read_result(answer, Output(total=read_kept(answer, "stdout").total), Output(total=read_kept(answer, "stderr").total))
