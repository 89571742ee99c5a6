"""Frames against the shared vectors, at every split, and against garbage."""

from __future__ import annotations

import contextlib
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from b4run.sandbox.guest.frames import (
    MAX_CREDIT,
    MAX_DATA,
    MAX_PAYLOAD,
    FrameDecoder,
    FrameType,
    Lane,
    ProtocolError,
    encode,
    encode_credit,
    encode_data,
    encode_end,
)

from .vectors import raw, section

Frame = tuple[int, int, bytes]
FRAMES = section("frames")
INVALID = section("invalid")


class Decoded:
    """A decoder and what it has given."""

    def __init__(self) -> None:
        self.frames: list[Frame] = []
        self.decoder = FrameDecoder(lambda kind, stream, payload: self.frames.append((kind, stream, bytes(payload))))

    def feed(self, data: bytes, cuts: list[int]) -> list[Frame]:
        for start, end in pairwise([0, *sorted(cuts), len(data)]):
            self.decoder.feed(data[start:end])
        return self.frames


def expected(vector: dict[str, Any]) -> Frame:
    return vector["type"], vector["stream"], raw(vector["payload_hex"])


def encoded(kind: int, stream: int, payload: bytes) -> bytes:
    if kind == FrameType.DATA:
        return encode_data(stream, Lane(payload[0]), payload[1:])
    if kind == FrameType.END:
        return encode_end(stream, Lane(payload[0]))
    if kind == FrameType.CREDIT:
        return encode_credit(stream, Lane(payload[0]), int.from_bytes(payload[1:], "big"))
    return encode(FrameType(kind), stream, payload)


@pytest.mark.parametrize("vector", FRAMES, ids=lambda v: v["name"])
def test_a_vector_is_encoded_and_decoded(vector: dict[str, Any]) -> None:
    assert encoded(*expected(vector)) == raw(vector["hex"])
    assert Decoded().feed(raw(vector["hex"]), []) == [expected(vector)]


def test_vectors_cover_every_type() -> None:
    assert {vector["type"] for vector in FRAMES} == set(FrameType)


def test_every_split_of_a_connection() -> None:
    vectors = [vector for vector in FRAMES if len(raw(vector["hex"])) < 400]
    data = b"".join(raw(vector["hex"]) for vector in vectors)
    wanted = [expected(vector) for vector in vectors]
    for cut in range(len(data) + 1):
        assert Decoded().feed(data, [cut]) == wanted
    assert Decoded().feed(data, list(range(len(data)))) == wanted


@given(st.data())
def test_any_splits_of_any_frames(data: st.DataObject) -> None:
    vectors = data.draw(st.lists(st.sampled_from(FRAMES), max_size=5))
    joined = b"".join(raw(vector["hex"]) for vector in vectors)
    cuts = data.draw(st.lists(st.integers(0, len(joined)), max_size=20))
    assert Decoded().feed(joined, cuts) == [expected(vector) for vector in vectors]


@pytest.mark.parametrize("vector", INVALID, ids=lambda v: v["name"])
def test_a_malformed_frame_is_refused_whatever_the_split(vector: dict[str, Any]) -> None:
    data = raw(vector["hex"])
    for cuts in ([], list(range(len(data))), [len(data) // 2], [4], [9]):
        with pytest.raises(ProtocolError):
            Decoded().feed(data, [cut for cut in cuts if cut <= len(data)])


@settings(max_examples=300)
@given(
    st.lists(
        st.one_of(st.binary(max_size=64), st.sampled_from([raw(v["hex"]) for v in FRAMES]), st.binary(min_size=1, max_size=9)), max_size=8
    )
)
def test_garbage_is_refused_or_held_within_the_bound(pieces: list[bytes]) -> None:
    decoded = Decoded()
    with contextlib.suppress(ProtocolError):
        for piece in pieces:
            decoded.decoder.feed(piece)
            assert decoded.decoder.held < 4 + 5 + MAX_PAYLOAD
    assert decoded.decoder.held < 4 + 5 + MAX_PAYLOAD


def test_a_length_over_the_bound_is_refused_before_anything_is_held() -> None:
    decoded = Decoded()
    with pytest.raises(ProtocolError):
        decoded.decoder.feed(b"\xff\xff\xff\xff")


@pytest.mark.parametrize(
    "call",
    [
        lambda: encode(FrameType.REQUEST, 1, b""),
        lambda: encode(FrameType.REQUEST, 1, b"x" * (MAX_PAYLOAD + 1)),
        lambda: encode(FrameType.PING, 0, b"x" * 65),
        lambda: encode_data(1, Lane.INPUT, b""),
        lambda: encode_data(1, Lane.INPUT, b"x" * (MAX_DATA + 1)),
        lambda: encode_credit(1, Lane.OUTPUT, 0),
        lambda: encode_credit(1, Lane.OUTPUT, MAX_CREDIT + 1),
    ],
)
def test_nothing_malformed_is_encoded(call: Any) -> None:
    with pytest.raises(ValueError, match="not"):
        call()
