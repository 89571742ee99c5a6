"""Commands as requests of the guest, and the guest's refusals as errors of ours."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from typing import Any, Final

from b4run.errors import CommandRefused
from b4run.sandbox.contract import DEFAULT_OUTPUT_LIMIT, Command
from b4run.sandbox.guest.messages import GuestRefusal

LOG_LIMIT: Final = 33_554_432
"""The most bytes of each output stream that a job's log can keep."""
FOLLOWED_TAIL: Final = 65_536
"""Bytes of each output stream that the log keeps when the output is read as it comes."""

_LONGEST_MS: Final = (1 << 32) - 1
_LONGEST_PATH: Final = 4_096
_STARTS: Final = {
    errno.ENOENT: "there is no such executable",
    errno.EACCES: "it may not be executed",
    errno.ENOEXEC: "it is not an executable this system knows",
    errno.E2BIG: "its arguments and environment are too long; pass large data by stdin",
    errno.EAGAIN: "the sandbox may have no more processes",
    errno.ENOMEM: "the sandbox has no memory left for it",
}
_FOLDERS: Final = {
    errno.ENOENT: "there is no such folder",
    errno.ENOTDIR: "it is not a folder",
    errno.EACCES: "it may not be entered",
}


def exec_request(
    command: Command,
    cwd: str | None,
    env: Mapping[str, str] | None,
    deadline_ms: int | None,
    grace_ms: int,
    output_limit: int | None,
    *,
    stdin: bool = False,
    merge: bool = False,
) -> dict[str, Any]:
    """Return the `exec` request; what stands for a default is left out. `output_limit` None: the output is followed.

    Raises:
        CommandRefused: the command, a variable or the folder cannot be passed to a program.
        ValueError: a number is out of its range.
    """
    message: dict[str, Any] = {"op": "exec", **_what(command)}
    if cwd is not None:
        message["cwd"] = _folder(cwd)
    if env:
        message["env"] = {_name(name): _octets(value, f"the value of {name!r}") for name, value in env.items()}
    if stdin:
        message["stdin"] = True
    if merge:
        message["merge"] = True
    if deadline_ms is not None:
        message["deadline_ms"] = milliseconds("deadline_ms", deadline_ms, 1)
    message["grace_ms"] = milliseconds("grace_ms", grace_ms)
    if output_limit is None:
        message |= {"head": 0, "tail": FOLLOWED_TAIL}
    elif output_limit != DEFAULT_OUTPUT_LIMIT:
        if not 0 <= output_limit <= LOG_LIMIT:
            raise ValueError(f"output_limit is 0 to {LOG_LIMIT} bytes, not {output_limit}")
        message |= {"head": output_limit - output_limit // 2, "tail": output_limit // 2}
    return message


def milliseconds(name: str, value: int, least: int = 0) -> int:
    if not least <= value <= _LONGEST_MS:
        raise ValueError(f"{name} is {least} to {_LONGEST_MS}, not {value}")
    return value


def command_refused(refusal: GuestRefusal, command: Command, cwd: str | None) -> CommandRefused:
    """Return what a caller is told when the guest did not start `command`."""
    stage, number = refusal.fields.get("stage"), refusal.errno
    if refusal.code == "outside":
        reason = f"its working directory {cwd!r} is outside the workspace"
    elif stage == "cwd" or refusal.code in ("not_found", "not_directory", "denied", "loop", "invalid"):
        reason = f"its working directory {cwd!r} cannot be used: {_FOLDERS.get(number) or _system(number)}"
    elif refusal.code == "not_started":
        reason = f"{_program(command)!r} does not start: {_STARTS.get(number) or _system(number)}"
    elif refusal.code == "busy":
        reason = "the sandbox runs as many commands as it may"
    else:
        reason = f"the guest answered {refusal.code!r}"
    return CommandRefused(reason=reason, stage=stage if isinstance(stage, str) else "", errno=number)


def command_too_large() -> CommandRefused:
    return CommandRefused(
        reason="its arguments and environment are over 1 MiB together; pass large data by stdin", stage="exec", errno=errno.E2BIG
    )


def _what(command: Command) -> dict[str, Any]:
    if isinstance(command, str):
        return {"shell": _octets(command, "the command")}
    argv = [item if isinstance(item, bytes) else _octets(item, "an argument") for item in command]
    if not argv or not argv[0]:
        raise CommandRefused(reason="it is empty")
    if any(0 in item for item in argv):
        raise CommandRefused(reason="an argument contains a NUL byte")
    return {"argv": argv}


def _folder(cwd: str) -> bytes:
    folder = _octets(cwd, "the working directory")
    if not 1 <= len(folder) <= _LONGEST_PATH:
        raise CommandRefused(reason=f"the working directory is a path of 1 to {_LONGEST_PATH} bytes")
    return folder


def _name(name: str) -> bytes:
    if not name or "=" in name:
        raise CommandRefused(reason=f"{name!r} cannot be the name of a variable")
    return _octets(name, "the name of a variable")


def _octets(value: str, what: str) -> bytes:
    try:
        octets = value.encode(errors="surrogateescape")
    except UnicodeEncodeError:
        raise CommandRefused(reason=f"{what} cannot be encoded") from None
    if 0 in octets:
        raise CommandRefused(reason=f"{what} contains a NUL byte")
    return octets


def _program(command: Command) -> str:
    if isinstance(command, str):
        return "/bin/sh"
    first = command[0]
    return first if isinstance(first, str) else os.fsdecode(first)


def _system(number: int) -> str:
    return os.strerror(number).lower() if number else "no reason is given"
