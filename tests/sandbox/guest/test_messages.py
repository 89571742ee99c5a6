"""What the guest says is read as the protocol has it, or refused as a `ProtocolError`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from b4run.sandbox.contract import Cause, FileKind, Output
from b4run.sandbox.guest import messages
from b4run.sandbox.guest.frames import FrameType, ProtocolError
from b4run.sandbox.guest.messages import GuestRefusal, pack, read_entry, read_hello, read_job, read_kept, read_result, unpack

from .peer import ENTRY, HELLO, RESULT
from .vectors import raw, section, value

MESSAGES = section("messages")
NAMED = {vector["name"]: value(vector["value"]) for vector in MESSAGES}
JOB = NAMED["job list"]["jobs"][0]

READERS: list[tuple[Callable[[Any], Any], dict[str, Any]]] = [
    (read_hello, HELLO),
    (lambda m: read_result(m, Output(), Output()), RESULT | {"signal": 9}),
    (lambda m: read_kept(m, "stdout"), RESULT),
    (read_job, JOB),
    (lambda m: read_entry(m, "name"), ENTRY | {"target": b"there"}),
    (GuestRefusal, {"code": "io", "errno": 5}),
]
ODD = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 63), (1 << 64) - 1), st.floats(), st.text(max_size=3), st.binary(max_size=3),
    st.lists(st.integers(0, 3), max_size=2), st.dictionaries(st.text(max_size=5), st.integers(0, 3), max_size=2),
)  # fmt: skip


@pytest.mark.parametrize("vector", MESSAGES, ids=lambda v: v["name"])
def test_a_vector_is_packed_and_unpacked(vector: dict[str, Any]) -> None:
    assert unpack(raw(vector["hex"])) == value(vector["value"])
    assert pack(value(vector["value"])) == raw(vector["hex"])


@pytest.mark.parametrize("vector", section("invalid_messages"), ids=lambda v: v["name"])
def test_a_request_that_is_no_message_is_refused_here_too(vector: dict[str, Any]) -> None:
    structural = {"trailing bytes", "cut short", "not a map", "integer key", "not MessagePack"}
    if vector["name"] in structural or "claims" in vector["name"] or "nested" in vector["name"] or "reserved" in vector["name"]:
        with pytest.raises(ProtocolError):
            unpack(raw(vector["hex"]))
    else:
        assert isinstance(unpack(raw(vector["hex"])), dict)


def test_values_come_out_as_they_went_in() -> None:
    hello = read_hello(NAMED["hello of the guest"])
    assert (hello.instance, hello.root, hello.uid) == ("000102030405060708090a0b0c0d0e0f", "/workspace", 65_534)
    killed = read_result(NAMED["result, signal"], Output(), Output())
    assert (killed.cause, killed.exit_code, killed.signal, killed.duration_ms, killed.peak_memory_kb) == (Cause.SIGNAL, 137, 9, 0.52, 1024)
    entry = read_entry(NAMED["entry"], "name")
    assert (entry.path, entry.kind, entry.mode, entry.target) == ("na\nme\udcff", FileKind.SYMLINK, 0o777, "here")
    assert read_job(JOB).started_ms == 1.5


@given(st.binary(max_size=200))
def test_random_bytes_are_a_map_or_refused(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        assert isinstance(unpack(data), dict)


@given(st.sampled_from(range(len(READERS))), st.data())
def test_any_field_may_be_anything(which: int, data: st.DataObject) -> None:
    read, good = READERS[which]
    message = dict(good)
    for key in data.draw(st.lists(st.sampled_from(sorted(message)), min_size=1, unique=True)):
        if data.draw(st.booleans()):
            del message[key]
        else:
            message[key] = data.draw(ODD)
    with contextlib.suppress(ProtocolError):
        read(unpack(msgpack.packb(message)))


@pytest.mark.parametrize(("read", "good"), READERS)
def test_unknown_keys_are_ignored(read: Callable[[Any], Any], good: dict[str, Any]) -> None:
    assert type(read(good)) is type(read(good | {"newer": [1, {"x": b"y"}]}))


@pytest.mark.parametrize(
    ("read", "good", "key", "wrong"),
    [
        (read_hello, HELLO, "protocol", 2),
        (read_hello, HELLO, "instance", b"short"),
        (read_hello, HELLO, "pid", True),
        (read_hello, HELLO, "capabilities", ["x", 1]),
        (READERS[1][0], RESULT, "exit_code", 256),
        (READERS[1][0], RESULT, "exit_code", -1),
        (READERS[1][0], RESULT, "signal", 65),
        (READERS[1][0], RESULT, "cause", "oomph"),
        (READERS[1][0], RESULT, "duration_us", 1.5),
        (READERS[2][0], RESULT, "stdout", {"total": 3, "head": 2, "tail": 2}),
        (READERS[4][0], ENTRY, "kind", "door"),
        (READERS[4][0], ENTRY, "name", b""),
        (READERS[4][0], ENTRY, "version", b"short"),
    ],
)
def test_a_value_out_of_range_is_refused(read: Callable[[Any], Any], good: dict[str, Any], key: str, wrong: Any) -> None:
    with pytest.raises(ProtocolError):
        read(good | {key: wrong})


def test_every_kind_of_frame_that_carries_a_message_has_a_vector() -> None:
    assert {vector["type"] for vector in MESSAGES} == {
        FrameType.HELLO, FrameType.REQUEST, FrameType.RESPONSE, FrameType.ERROR, FrameType.EVENT, FrameType.CANCEL,
    }  # fmt: skip
    assert messages.PROTOCOL == 1
