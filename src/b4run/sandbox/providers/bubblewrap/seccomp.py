"""The seccomp filter of every sandbox: what no program of an agent needs and what has let others out before.

bubblewrap already takes away every capability; the filter narrows the kernel that is left to attack. It refuses with EPERM, so that a
program can go on without; a call by another architecture's numbers, which the list would not recognise, kills the process.
"""

from __future__ import annotations

import errno
import functools
import platform
import struct
from dataclasses import dataclass

_KEYRINGS = "keyrings are not namespaced"
_KERNEL_CODE = "loads code into the kernel or replaces it"
_MOUNTS = "the tree of mounts is fixed"
_WIDE_SURFACE = "a large interface with a history of kernel flaws"
_HOST_STATE = "changes or shows state of the whole host"
_ESCAPE = "reaches files or namespaces past the mounts"

# name: (number on x86_64 and on aarch64, None where there is none, reason)
DENIED: dict[str, tuple[int, int | None, str]] = {
    "add_key": (248, 217, _KEYRINGS),
    "request_key": (249, 218, _KEYRINGS),
    "keyctl": (250, 219, _KEYRINGS),
    "bpf": (321, 280, _WIDE_SURFACE),
    "perf_event_open": (298, 241, _WIDE_SURFACE),
    "userfaultfd": (323, 282, "makes kernel races easy to win"),
    "io_uring_setup": (425, 425, _WIDE_SURFACE),
    "io_uring_enter": (426, 426, _WIDE_SURFACE),
    "io_uring_register": (427, 427, _WIDE_SURFACE),
    "kexec_load": (246, 104, _KERNEL_CODE),
    "kexec_file_load": (320, 294, _KERNEL_CODE),
    "init_module": (175, 105, _KERNEL_CODE),
    "finit_module": (313, 273, _KERNEL_CODE),
    "delete_module": (176, 106, _KERNEL_CODE),
    "mount": (165, 40, _MOUNTS),
    "umount2": (166, 39, _MOUNTS),
    "pivot_root": (155, 41, _MOUNTS),
    "open_tree": (428, 428, _MOUNTS),
    "move_mount": (429, 429, _MOUNTS),
    "fsopen": (430, 430, _MOUNTS),
    "fsconfig": (431, 431, _MOUNTS),
    "fsmount": (432, 432, _MOUNTS),
    "fspick": (433, 433, _MOUNTS),
    "mount_setattr": (442, 442, _MOUNTS),
    "setns": (308, 268, _ESCAPE),
    "open_by_handle_at": (304, 265, _ESCAPE),
    "name_to_handle_at": (303, 264, _ESCAPE),
    "swapon": (167, 224, _HOST_STATE),
    "swapoff": (168, 225, _HOST_STATE),
    "reboot": (169, 142, _HOST_STATE),
    "acct": (163, 89, _HOST_STATE),
    "quotactl": (179, 60, _HOST_STATE),
    "quotactl_fd": (443, 443, _HOST_STATE),
    "syslog": (103, 116, "shows the kernel's log"),
    "settimeofday": (164, 170, _HOST_STATE),
    "clock_settime": (227, 112, _HOST_STATE),
    "clock_adjtime": (305, 266, _HOST_STATE),
    "adjtimex": (159, 171, _HOST_STATE),
    "lookup_dcookie": (212, 18, _HOST_STATE),
    "vhangup": (153, 58, _HOST_STATE),
    "iopl": (172, None, "ports of the hardware"),
    "ioperm": (173, None, "ports of the hardware"),
    "uselib": (134, None, _WIDE_SURFACE),
    "ustat": (136, None, _WIDE_SURFACE),
    "sysfs": (139, None, _WIDE_SURFACE),
    "modify_ldt": (154, None, _WIDE_SURFACE),
}  # fmt: skip

_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
"""Type into the terminal, paste on the console."""

_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6 and netlink.

The others are rare and wide, and AF_VSOCK is not namespaced: it reaches the hypervisor past any network.
"""

_CLONE_NEWUSER = 0x10000000

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_KILL, _ALLOW, _ERRNO = 0x80000000, 0x7FFF0000, 0x00050000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16
_X32_BIT = 0x40000000


@dataclass(frozen=True, slots=True)
class _Machine:
    audit: int
    ioctl: int
    socket: int
    clone: int
    clone3: int
    unshare: int
    x32: bool


_MACHINES = {
    "x86_64": _Machine(audit=0xC000003E, ioctl=16, socket=41, clone=56, clone3=435, unshare=272, x32=True),
    "aarch64": _Machine(audit=0xC00000B7, ioctl=29, socket=198, clone=220, clone3=435, unshare=97, x32=False),
}


def supported(machine: str | None = None) -> bool:
    """Return whether there is a filter for that machine (default: this one)."""
    return (machine or platform.machine()) in _MACHINES


@functools.cache
def program(*, forbid_user_namespaces: bool = False, machine: str | None = None) -> bytes:
    """Return the filter as bubblewrap's `--seccomp` reads it. `machine` is a name of `uname -m`, by default this one.

    `forbid_user_namespaces` is for a bubblewrap that cannot do it itself: clone and unshare with that flag are refused, and clone3,
    whose flags a filter cannot see, is reported as missing, upon which the C library uses clone.

    Raises:
        KeyError: no filter for that machine.
    """
    kind = _MACHINES[machine or platform.machine()]
    code = [*_load(_ARCHITECTURE), *_unless(_JUMP_EQUAL, kind.audit, _KILL), *_load(_NUMBER)]
    if kind.x32:
        code += _when(_JUMP_GREATER_EQUAL, _X32_BIT, _KILL)
    for on_x86, on_arm, _ in DENIED.values():
        number = on_x86 if kind.x32 else on_arm
        if number is not None:
            code += _when(_JUMP_EQUAL, number, _refuse(errno.EPERM))
    if forbid_user_namespaces:
        code += _when(_JUMP_EQUAL, kind.clone3, _refuse(errno.ENOSYS))
        for number in (kind.clone, kind.unshare):
            code += _on_argument(number, 0, _when(_JUMP_SET, _CLONE_NEWUSER, _refuse(errno.EPERM)))
    terminal = [step for request in (_TIOCSTI, _TIOCLINUX) for step in _when(_JUMP_EQUAL, request, _refuse(errno.EPERM))]
    code += _on_argument(kind.ioctl, 1, terminal)
    families = [step for family in _FAMILIES for step in _when(_JUMP_EQUAL, family, _ALLOW)]
    code += _on_argument(kind.socket, 0, [*families, _step(_RETURN, _refuse(errno.EAFNOSUPPORT))])
    code.append(_step(_RETURN, _ALLOW))
    return b"".join(code)


def _step(code: int, value: int, when_true: int = 0, when_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, when_true, when_false, value)


def _load(offset: int) -> list[bytes]:
    return [_step(_LOAD, offset)]


def _when(test: int, value: int, action: int) -> list[bytes]:
    return [_step(test, value, 0, 1), _step(_RETURN, action)]


def _unless(test: int, value: int, action: int) -> list[bytes]:
    return [_step(test, value, 1, 0), _step(_RETURN, action)]


def _on_argument(number: int, argument: int, checks: list[bytes]) -> list[bytes]:
    """For one system call: look at the low half of an argument, then go on; the number is loaded again behind it."""
    body = [*_load(_ARGUMENTS + 8 * argument), *checks, *_load(_NUMBER)]
    return [_step(_JUMP_EQUAL, number, 0, len(body)), *body]


def _refuse(number: int) -> int:
    return _ERRNO | number
