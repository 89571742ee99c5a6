"""Reading request bodies: bounded while they arrive, JSON that is safe to keep, unknown keys refused."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect, Request

from b4run.server.refusals import Refusal, invalid

MAX_RUN_BYTES = 8_388_608
MAX_THREAD_BYTES = 1_048_576
MAX_INSPECT_BYTES = 65_536
BODY_SECONDS = 60.0
"""How long a body other than an upload may take to arrive."""
_DRAIN_BYTES = 268_435_456
_DRAIN_SECONDS = 10.0


def too_large(limit: int) -> Refusal:
    return Refusal(413, "payload_too_large", f"The body has more than {limit:,} bytes.", maxBytes=limit)


async def pieces(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Give out the body as it arrives.

    Raises:
        Refusal: it is, or says that it is, longer than `limit`; what the client still sends is read away, so that it hears the answer.
    """
    declared = request.headers.get("content-length", "")
    if declared.isascii() and declared.isdigit() and int(declared) > limit:
        await drain(request)
        raise too_large(limit)
    received = 0
    async for piece in request.stream():
        received += len(piece)
        if received > limit:
            await drain(request)
            raise too_large(limit)
        if piece:
            yield piece


async def drain(request: Request) -> None:
    """Read away what a client still sends, within bounds: one whose connection is closed under it may never see the answer."""
    left = _DRAIN_BYTES
    with suppress(TimeoutError, ClientDisconnect):
        async with asyncio.timeout(_DRAIN_SECONDS):
            while left > 0:
                message = await request.receive()
                if message["type"] != "http.request" or not message.get("more_body"):
                    return
                left -= len(message.get("body", b""))


async def read(request: Request, limit: int) -> bytes:
    """Return the whole body. Raises: Refusal: it is too long, or does not arrive."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in pieces(request, limit):
                body += piece
    except TimeoutError:
        raise Refusal(408, "request_timeout", f"The body did not arrive within {BODY_SECONDS:g} s.") from None
    return bytes(body)


async def read_object(request: Request, limit: int, *, optional: bool = False) -> dict[str, Any]:
    """Return the body as a JSON object; an empty one is `{}` if `optional`. Raises: Refusal."""
    body = await read(request, limit)
    if optional and not body.strip():
        return {}
    value = parse(body)
    if not isinstance(value, dict):
        raise invalid("The body is not a JSON object.")
    return value


def parse(body: bytes) -> Any:
    """Return what JSON says; what cannot be kept as text is refused. Raises: Refusal."""
    try:
        text = body.decode(errors="replace")
        value = json.loads(text, parse_constant=_no_constant)
        # A number such as 1e999 is read as infinite, which JSON cannot say again.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        raise invalid("The body is not JSON in UTF-8 that can be kept: check its syntax, numbers too large, and lone surrogates.") from None
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(name)


def only(body: Mapping[str, Any], *keys: str) -> None:
    """Raise Refusal if a body has a key beside these."""
    unknown = sorted(set(body) - set(keys))
    if unknown:
        raise invalid(f"The body has an unknown key {unknown[0][:80]!r}; known: {', '.join(keys)}.")
