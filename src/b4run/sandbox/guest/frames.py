"""The frames of the guest protocol (`docs/reference/guest-protocol.md`), encoded and decoded without input or output.

A frame is `length: u32`, `type: u8`, `stream: u32`, `payload`, big-endian; `length` counts what follows it: 5 + payload.

| type | payload | stream |
| --- | --- | --- |
| 1 HELLO | msgpack | 0 |
| 2 REQUEST, 3 RESPONSE, 5 EVENT, 9 CANCEL | msgpack | not 0 |
| 4 ERROR | msgpack | any |
| 6 DATA | u8 channel, 1 to 262,144 bytes | not 0 |
| 7 END | u8 channel | not 0 |
| 8 CREDIT | u8 channel, u32 bytes, 1 to 67,108,864 | not 0 |
| 10 PING, 11 PONG | up to 64 bytes | 0 |

All of that is judged here, as early as the bytes allow; who may send what, and when, is the client's business.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from struct import Struct
from typing import Final

MAX_PAYLOAD: Final = 1_048_576
MAX_DATA: Final = 262_144
"""Bytes in one DATA frame."""
WINDOW: Final = 1_048_576
"""Bytes each channel of a stream may carry before any CREDIT."""
MAX_CREDIT: Final = 67_108_864
MAX_PING: Final = 64
MAX_STREAMS: Final = 256
"""Streams open at once on a connection."""
LAST_STREAM: Final = 0xFFFF_FFFF


class FrameType(IntEnum):
    HELLO = 1
    REQUEST = 2
    RESPONSE = 3
    ERROR = 4
    EVENT = 5
    DATA = 6
    END = 7
    CREDIT = 8
    CANCEL = 9
    PING = 10
    PONG = 11


class Lane(IntEnum):
    """A channel of a stream."""

    INPUT = 0
    OUTPUT = 1
    ERRORS = 2


class ProtocolError(Exception):
    """The other end broke the protocol; the connection is of no further use."""


OnFrame = Callable[[int, int, memoryview], None]
"""Takes type, stream and payload; the payload is valid until it returns."""

_HEADER = Struct(">IBI")
_LANE_HEADER = Struct(">IBIB")
_CREDIT = Struct(">IBIBI")
_HEADER_SIZE: Final = _HEADER.size
_LENGTH_SIZE: Final = 4
_OVERHEAD: Final = _HEADER_SIZE - _LENGTH_SIZE

_MESSAGE = (1, MAX_PAYLOAD)
_SIZES: Final[dict[int, tuple[int, int]]] = {
    FrameType.HELLO: _MESSAGE,
    FrameType.REQUEST: _MESSAGE,
    FrameType.RESPONSE: _MESSAGE,
    FrameType.ERROR: _MESSAGE,
    FrameType.EVENT: _MESSAGE,
    FrameType.DATA: (2, 1 + MAX_DATA),
    FrameType.END: (1, 1),
    FrameType.CREDIT: (5, 5),
    FrameType.CANCEL: _MESSAGE,
    FrameType.PING: (0, MAX_PING),
    FrameType.PONG: (0, MAX_PING),
}
_OF_CONNECTION: Final = frozenset((FrameType.HELLO, FrameType.PING, FrameType.PONG))
_FIRST_WITH_LANE: Final = int(FrameType.DATA)
_LAST_WITH_LANE: Final = int(FrameType.CREDIT)


def encode(kind: FrameType, stream: int, payload: bytes = b"") -> bytes:
    """Return one frame. Raises: ValueError when it would break a bound."""
    low, high = _SIZES[kind]
    if not low <= len(payload) <= high:
        raise ValueError(f"a {kind.name} frame carries {low} to {high} bytes, not {len(payload)}")
    return _HEADER.pack(_OVERHEAD + len(payload), kind, stream) + payload


def encode_data(stream: int, lane: Lane, data: bytes | memoryview) -> bytes:
    """Return a DATA frame with 1 to `MAX_DATA` bytes. Raises: ValueError."""
    if not 1 <= len(data) <= MAX_DATA:
        raise ValueError(f"a DATA frame carries 1 to {MAX_DATA} bytes, not {len(data)}")
    return b"".join((_LANE_HEADER.pack(_OVERHEAD + 1 + len(data), FrameType.DATA, stream, lane), data))


def encode_end(stream: int, lane: Lane) -> bytes:
    return _LANE_HEADER.pack(_OVERHEAD + 1, FrameType.END, stream, lane)


def encode_credit(stream: int, lane: Lane, size: int) -> bytes:
    """Return a CREDIT frame for 1 to `MAX_CREDIT` bytes. Raises: ValueError."""
    if not 1 <= size <= MAX_CREDIT:
        raise ValueError(f"credit is 1 to {MAX_CREDIT} bytes, not {size}")
    return _CREDIT.pack(_OVERHEAD + 5, FrameType.CREDIT, stream, lane, size)


class FrameDecoder:
    """Cuts a byte stream into frames, whatever pieces it comes in.

    A frame that lies whole in what is fed is handed on without a copy; one that does not is put together in a buffer of at most one
    frame. After a `ProtocolError` the decoder must not be fed again.
    """

    def __init__(self, on_frame: OnFrame) -> None:
        self._on_frame = on_frame
        self._held = bytearray()

    @property
    def held(self) -> int:
        """Bytes of a frame begun and not complete."""
        return len(self._held)

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Hand every frame that is complete now to `on_frame`, in order. Raises: ProtocolError, and what `on_frame` raises."""
        view = memoryview(data)
        at = self._complete(view) if self._held else 0
        end = len(view)
        while end - at >= _HEADER_SIZE:
            length, kind, stream = _HEADER.unpack_from(view, at)
            _check_header(length, kind, stream)
            after = at + _LENGTH_SIZE + length
            if after > end:
                break
            self._deliver(kind, stream, view[at + _HEADER_SIZE : after])
            at = after
        if at < end:
            self._held += view[at:]
            self._missing()

    def _complete(self, view: memoryview) -> int:
        """Bring the held frame to its end; return how much of `view` that took."""
        at = 0
        while self._held and at < len(view):
            piece = view[at : at + self._missing()]
            self._held += piece
            at += len(piece)
            if not self._missing():
                frame, self._held = self._held, bytearray()
                _, kind, stream = _HEADER.unpack_from(frame)
                self._deliver(kind, stream, memoryview(frame)[_HEADER_SIZE:])
        return at

    def _missing(self) -> int:
        """Return how many bytes the held frame wants next: to the end of its header, then to its own end."""
        held = len(self._held)
        if held < _HEADER_SIZE:
            if held >= _LENGTH_SIZE:
                _check_length(int.from_bytes(self._held[:_LENGTH_SIZE], "big"))
            return _HEADER_SIZE - held
        length, kind, stream = _HEADER.unpack_from(self._held)
        _check_header(length, kind, stream)
        return int(length) + _LENGTH_SIZE - held

    def _deliver(self, kind: int, stream: int, payload: memoryview) -> None:
        if _FIRST_WITH_LANE <= kind <= _LAST_WITH_LANE:
            _check_lane(kind, payload)
        self._on_frame(kind, stream, payload)


def credit_size(payload: memoryview) -> int:
    """Return the bytes that a CREDIT payload grants."""
    return int.from_bytes(payload[1:5], "big")


def _check_length(length: int) -> None:
    if not _OVERHEAD <= length <= _OVERHEAD + MAX_PAYLOAD:
        raise ProtocolError(f"a frame of length {length}")


def _check_header(length: int, kind: int, stream: int) -> None:
    _check_length(length)
    sizes = _SIZES.get(kind)
    if sizes is None:
        raise ProtocolError(f"a frame of unknown type {kind}")
    if not sizes[0] <= length - _OVERHEAD <= sizes[1]:
        raise ProtocolError(f"a {FrameType(kind).name} frame with {length - _OVERHEAD} bytes of payload")
    if (stream == 0) != (kind in _OF_CONNECTION) and kind != FrameType.ERROR:
        raise ProtocolError(f"a {FrameType(kind).name} frame on stream {stream}")


def _check_lane(kind: int, payload: memoryview) -> None:
    if payload[0] > Lane.ERRORS:
        raise ProtocolError(f"a {FrameType(kind).name} frame on channel {payload[0]}")
    if kind == FrameType.CREDIT and not 1 <= credit_size(payload) <= MAX_CREDIT:
        raise ProtocolError(f"a grant of {credit_size(payload)} bytes")
