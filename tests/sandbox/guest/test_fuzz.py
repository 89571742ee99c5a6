"""Whatever the guest answers to whatever was asked, the caller gets a result or an error of the tree."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable
from typing import Any

import msgpack
from hypothesis import given, settings
from hypothesis import strategies as st

from b4run.errors import B4Error
from b4run.sandbox.guest.frames import FrameType
from b4run.sandbox.guest.handle import GuestSandbox

from .peer import ENTRY, RESULT, VERSION, Peer, connected

Ask = Callable[[GuestSandbox], Awaitable[Any]]


async def read_all(sandbox: GuestSandbox) -> list[bytes]:
    return [piece async for piece in sandbox.files.read_stream("a")]


async def follow(sandbox: GuestSandbox) -> Any:
    running = sandbox.exec.stream("x")
    async for _ in running:
        pass
    return await running.result()


CONTENT = {"size": 1, "version": VERSION, "length": 1}
LINES = {"first": 1, "last": 1, "total": 1, "size": 1, "version": VERSION}
JOB = {"job": 1, "pid": 1, "running": False, "alive": False, "started_us": 1, "command": b"x", "cause": "exit", "exit_code": 0}
PAGE = {"event": "entries", "entries": [ENTRY | {"path": b"a"}]}
ASKS: dict[str, tuple[Ask, dict[str, Any]]] = {
    "run": (lambda s: s.exec.run("x"), RESULT),
    "stdin": (lambda s: s.exec.run("x", stdin=bytes(100_000)), RESULT),
    "stream": (follow, RESULT),
    "start": (lambda s: s.exec.start("x"), {"job": 1, "pid": 1}),
    "jobs": (lambda s: s.exec.jobs(), {"jobs": [JOB]}),
    "wait": (lambda s: s.exec.job(1).wait(timeout_ms=9), RESULT),
    "log": (lambda s: s.exec.job(1).read(), {"offset": 0, "length": 1, "total": 1, "eof": True, "gap": 0}),
    "signal": (lambda s: s.exec.job(1).signal(9), {"sent": 1}),
    "cancel": (lambda s: s.exec.job(1).cancel(), {}),
    "idle": (lambda s: s.idle(), {"jobs": [JOB]}),
    "stat": (lambda s: s.files.stat("a"), ENTRY),
    "real": (lambda s: s.files.real_path("a"), {"real": b"/a", "exists": True, "inside": True}),
    "list": (lambda s: s.files.list(), {"count": 1, "more": False}),
    "entries": (lambda s: s.files.entries(), {"count": 1, "more": False}),
    "walk": (lambda s: s.files.walk(), {"count": 1}),
    "read": (lambda s: s.files.read("a"), CONTENT),
    "read_stream": (read_all, CONTENT),
    "lines": (lambda s: s.files.read_lines("a"), LINES),
    "write": (lambda s: s.files.write("a", b"x"), ENTRY | {"created": True}),
    "mkdir": (lambda s: s.files.mkdir("a"), {"created": True}),
    "remove": (lambda s: s.files.remove("a"), {"removed": 1}),
    "rename": (lambda s: s.files.rename("a", "b"), {}),
}
REFUSAL = {"code": "outside", "message": "m", "errno": 2, "stage": "cwd", "real": b"/x", "size": 3}
ODD = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=4), st.binary(max_size=4)),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=4), inner, max_size=3)),
    max_leaves=5,
)


def mutated(data: st.DataObject, message: dict[str, Any]) -> bytes:
    """Return a payload that is right, or wrong in some fields, or no message at all."""
    if data.draw(st.integers(0, 9)) == 0:
        return data.draw(st.binary(min_size=1, max_size=40))
    message = dict(message)
    for key in data.draw(st.lists(st.sampled_from([*message, "extra"]), max_size=3, unique=True)):
        message[key] = data.draw(ODD)
    return bytes(msgpack.packb(message))


def frames(data: st.DataObject, answer: dict[str, Any]) -> bytes:
    """Return what the guest says on stream 1: some events and data, then an answer or a refusal."""
    kinds = data.draw(st.lists(st.sampled_from([FrameType.EVENT, FrameType.DATA, FrameType.END, FrameType.CREDIT]), max_size=3))
    said = []
    for kind in kinds:
        lane = data.draw(st.sampled_from([1, 1, 1, 2, 0]))
        if kind == FrameType.EVENT:
            said.append((kind, mutated(data, PAGE)))
        elif kind == FrameType.DATA:
            said.append((kind, bytes([lane]) + data.draw(st.binary(min_size=1, max_size=2))))
        elif kind == FrameType.END:
            said.append((kind, bytes([lane])))
        else:
            said.append((kind, struct.pack(">BI", data.draw(st.sampled_from([0, lane])), data.draw(st.integers(1, 1 << 26)))))
    if data.draw(st.booleans()):
        said.append((FrameType.RESPONSE, mutated(data, answer)))
    else:
        said.append((FrameType.ERROR, mutated(data, REFUSAL)))
    return b"".join(struct.pack(">IBI", 5 + len(payload), kind, 1) + payload for kind, payload in said)


async def answered(ask: Ask, said: bytes) -> None:
    async with connected() as (peer, sandbox, _):
        call = asyncio.ensure_future(ask(sandbox))
        await peer.expect(FrameType.REQUEST)
        await peer.raw(said)
        rest = asyncio.ensure_future(refuse_the_rest(peer))
        try:
            async with asyncio.timeout(5):
                await call
        except B4Error:
            pass
        finally:
            rest.cancel()
            await asyncio.wait((rest,))


async def refuse_the_rest(peer: Peer) -> None:
    """Answer what the call asks for next, such as the log of a job."""
    while True:
        kind, stream, _ = await peer.frame()
        if kind == FrameType.REQUEST:
            await peer.refuse(stream, "no_job")


@settings(max_examples=400, deadline=None)
@given(st.sampled_from(sorted(ASKS)), st.data())
def test_any_answer_is_a_result_or_an_error_of_the_tree(which: str, data: st.DataObject) -> None:
    ask, answer = ASKS[which]
    asyncio.run(answered(ask, frames(data, answer)))
