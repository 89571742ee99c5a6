"""The input of a call: bytes or an iterator, sent as the guest grants credit and the transport has room."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from b4run.sandbox.guest.calls import Call
from b4run.sandbox.guest.frames import MAX_DATA, Lane, encode_data, encode_end
from b4run.sandbox.guest.outbox import Outbox

Source = bytes | AsyncIterator[bytes]


async def feed(call: Call[Any], source: Source, outbox: Outbox) -> None:
    """Send all of `source` and its end; stops when the call has ended. Raises: what the iterator raises."""
    if isinstance(source, bytes):
        await _feed_piece(call, source, outbox)
    else:
        await _feed_pieces(call, source, outbox)
    if call.open:
        outbox.send(encode_end(call.stream, Lane.INPUT))


async def _feed_pieces(call: Call[Any], source: AsyncIterator[bytes], outbox: Outbox) -> None:
    try:
        while True:
            with call.on_hold():
                piece = await anext(source, None)
            if piece is None:
                return
            await _feed_piece(call, piece, outbox)
    finally:
        if isinstance(source, AsyncGenerator):
            await source.aclose()


async def _feed_piece(call: Call[Any], piece: bytes, outbox: Outbox) -> None:
    rest = memoryview(piece).cast("B")
    while rest and call.open:
        if outbox.full:
            await outbox.room()
        elif not call.credit:
            await call.more_credit()
        else:
            size = min(len(rest), call.credit, MAX_DATA)
            call.credit -= size
            outbox.send(encode_data(call.stream, Lane.INPUT, rest[:size]))
            rest = rest[size:]
