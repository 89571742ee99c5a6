"""The messages inside frames: MessagePack maps, read with every type and range checked.

The guest is not trusted. Whatever it sends is either what the protocol says or a `ProtocolError`; no other exception leaves this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgpack  # type: ignore[import-untyped]

from b4run.sandbox.contract import Cause, ExecResult, FileEntry, FileKind, JobInfo, Output
from b4run.sandbox.guest.frames import MAX_PAYLOAD, ProtocolError

PROTOCOL: Final = 1
INSTANCE_SIZE: Final = 16
VERSION_SIZE: Final = 40
MAX_ITEMS: Final = 131_072
"""Items in one array: more names than the largest frame has room for."""
MAX_KEYS: Final = 64
LARGEST: Final = (1 << 64) - 1

Message = dict[str, Any]


class GuestRefusal(Exception):
    """The guest answered a request with an error; callers turn it into one of the error tree."""

    def __init__(self, message: Message) -> None:
        self.code = text(message, "code", 64)
        self.errno = integer(message, "errno", high=4095) if message.get("errno") is not None else 0
        self.fields = message
        super().__init__(self.code)


def pack(message: Mapping[str, object]) -> bytes:
    return bytes(msgpack.packb(message))


def unpack(payload: bytes | bytearray | memoryview) -> Message:
    """Return the one map that `payload` is. Raises: ProtocolError."""
    try:
        message = msgpack.unpackb(
            payload,
            strict_map_key=True,
            max_str_len=MAX_PAYLOAD,
            max_bin_len=MAX_PAYLOAD,
            max_array_len=MAX_ITEMS,
            max_map_len=MAX_KEYS,
            max_ext_len=0,
        )
    except (ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ProtocolError(f"a payload that is not MessagePack ({type(error).__name__})") from None
    if type(message) is not dict:
        raise ProtocolError("a payload that is not a map")
    return message


def integer(message: Message, key: str, low: int = 0, high: int = LARGEST) -> int:
    value = message.get(key)
    if type(value) is not int or not low <= value <= high:
        raise ProtocolError(f"{key!r} is not an integer in its range")
    return value


def boolean(message: Message, key: str) -> bool:
    value = message.get(key)
    if type(value) is not bool:
        raise ProtocolError(f"{key!r} is not a boolean")
    return value


def text(message: Message, key: str, longest: int) -> str:
    value = message.get(key)
    if type(value) is not str or len(value) > longest:
        raise ProtocolError(f"{key!r} is not a string of at most {longest} characters")
    return value


def octets(message: Message, key: str, longest: int, shortest: int = 0) -> bytes:
    value = message.get(key)
    if type(value) is not bytes or not shortest <= len(value) <= longest:
        raise ProtocolError(f"{key!r} is not a byte string of {shortest} to {longest} bytes")
    return value


def items(message: Message, key: str) -> list[Message]:
    value = message.get(key)
    if type(value) is not list or not all(type(item) is dict for item in value):
        raise ProtocolError(f"{key!r} is not an array of maps")
    return value


def read_path(message: Message, key: str, longest: int = 65_536) -> str:
    """Return a name or path as Python spells it, with surrogate escapes."""
    return octets(message, key, longest, 1).decode(errors="surrogateescape")


def read_version(message: Message) -> bytes:
    return octets(message, "version", VERSION_SIZE, VERSION_SIZE)


@dataclass(frozen=True, slots=True)
class Hello:
    """What the guest says of itself."""

    version: str
    capabilities: frozenset[str]
    instance: str
    """Random, in hex; another one means another guest."""
    pid: int
    uid: int
    gid: int
    root: str


def read_hello(message: Message) -> Hello:
    if integer(message, "protocol") != PROTOCOL:
        raise ProtocolError(f"version {message['protocol']} instead of {PROTOCOL}: the guest is of another release")
    capabilities = message.get("capabilities")
    if type(capabilities) is not list or not all(type(name) is str and len(name) <= 64 for name in capabilities):
        raise ProtocolError("'capabilities' is not an array of strings")
    return Hello(
        version=text(message, "version", 64),
        capabilities=frozenset(capabilities),
        instance=octets(message, "instance", INSTANCE_SIZE, INSTANCE_SIZE).hex(),
        pid=integer(message, "pid", 1),
        uid=integer(message, "uid"),
        gid=integer(message, "gid"),
        root=read_path(message, "root", 4096),
    )


@dataclass(frozen=True, slots=True)
class Kept:
    """How much of one output stream the job's log kept."""

    total: int
    head: int
    tail: int


def read_kept(message: Message, key: str) -> Kept:
    counts = message.get(key)
    if type(counts) is not dict:
        raise ProtocolError(f"{key!r} is not a map")
    kept = Kept(integer(counts, "total"), integer(counts, "head"), integer(counts, "tail"))
    if kept.head + kept.tail > kept.total:
        raise ProtocolError(f"{key!r} keeps more than there was")
    return kept


_CAUSES: Final = {cause.value: cause for cause in Cause}


def read_cause(message: Message) -> Cause:
    cause = _CAUSES.get(text(message, "cause", 16))
    if cause is None:
        raise ProtocolError("a cause that does not exist")
    return cause


def read_result(message: Message, out: Output, err: Output) -> ExecResult:
    return ExecResult(
        exit_code=integer(message, "exit_code", high=255),
        cause=read_cause(message),
        signal=integer(message, "signal", 1, 64) if message.get("signal") is not None else None,
        out=out,
        err=err,
        duration_ms=integer(message, "duration_us") / 1000,
        user_ms=integer(message, "user_us") / 1000,
        system_ms=integer(message, "system_us") / 1000,
        peak_memory_kb=integer(message, "peak_kb"),
        job=integer(message, "job"),
    )


def read_job(message: Message) -> JobInfo:
    return JobInfo(
        job=integer(message, "job"),
        pid=integer(message, "pid", high=1 << 31),
        running=boolean(message, "running"),
        alive=boolean(message, "alive"),
        started_ms=integer(message, "started_us") / 1000,
        cause=read_cause(message) if message.get("cause") is not None else None,
        exit_code=integer(message, "exit_code", high=255) if message.get("exit_code") is not None else None,
        command=octets(message, "command", 256).decode(errors="replace"),
    )


_KINDS: Final = {kind.value: kind for kind in FileKind}


def read_entry(message: Message, key: str) -> FileEntry:
    """Read an entry whose name stands under `key` (`name` or `path`)."""
    kind = _KINDS.get(text(message, "kind", 16))
    if kind is None:
        raise ProtocolError("a kind of file that does not exist")
    return FileEntry(
        path=read_path(message, key),
        kind=kind,
        mode=integer(message, "mode", high=0o7777),
        size=integer(message, "size"),
        mtime_ns=integer(message, "mtime_ns", -(1 << 63), (1 << 63) - 1),
        target=read_path(message, "target") if message.get("target") is not None else None,
        version=read_version(message),
    )
