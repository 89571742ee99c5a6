"""The filter, run by a small interpreter of classic BPF: what it answers for a call, on both machines."""

from __future__ import annotations

import errno
import struct

import pytest

from b4run.sandbox.providers.bubblewrap import seccomp

ALLOW, KILL = 0x7FFF0000, 0x80000000
X86_64, AARCH64, I386 = 0xC000003E, 0xC00000B7, 0x40000003
ARCHITECTURES = {"x86_64": X86_64, "aarch64": AARCH64}


def answer(program: bytes, architecture: int, number: int, *arguments: int) -> int:
    """Run the program over one call's data, as the kernel would."""
    data = struct.pack("=IIQ6Q", number, architecture, 0, *(*arguments, *[0] * (6 - len(arguments))))
    steps = list(struct.iter_unpack("=HBBI", program))
    accumulator = position = 0
    while True:
        code, when_true, when_false, value = steps[position]
        position += 1
        if code == 0x20:
            accumulator = struct.unpack_from("=I", data, value)[0]
        elif code == 0x06:
            return value
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            position += when_true if holds else when_false


def refused(number: int) -> int:
    return 0x00050000 | number


@pytest.fixture(params=["x86_64", "aarch64"])
def machine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_every_listed_call_is_refused_with_eperm(machine):
    program = seccomp.program(machine=machine)
    for name, (on_x86, on_arm, _) in seccomp.DENIED.items():
        number = on_x86 if machine == "x86_64" else on_arm
        if number is not None:
            assert answer(program, ARCHITECTURES[machine], number) == refused(errno.EPERM), name


@pytest.mark.parametrize(
    ("machine", "number"),
    [("x86_64", 0), ("x86_64", 59), ("x86_64", 56), ("x86_64", 101), ("x86_64", 435), ("aarch64", 221), ("aarch64", 63), ("aarch64", 117)],
    ids=["read", "execve", "clone", "ptrace", "clone3", "execve-arm", "read-arm", "ptrace-arm"],
)
def test_ordinary_calls_are_allowed(machine, number):
    assert answer(seccomp.program(machine=machine), ARCHITECTURES[machine], number) == ALLOW


@pytest.mark.parametrize("foreign", [I386, 0xC00000B7, 0])
def test_another_architecture_is_killed(foreign):
    assert answer(seccomp.program(machine="x86_64"), foreign, 0) == KILL


def test_x32_numbers_are_killed():
    assert answer(seccomp.program(machine="x86_64"), X86_64, 0x40000000 | 1) == KILL


@pytest.mark.parametrize(("machine", "ioctl"), [("x86_64", 16), ("aarch64", 29)])
@pytest.mark.parametrize(
    ("request_number", "expected"),
    [
        (0x5412, refused(errno.EPERM)),
        (0x541C, refused(errno.EPERM)),
        (0x5401, ALLOW),
        (0x7_0000_5412, refused(errno.EPERM)),
        (0xFFFFFFFF_00005412, refused(errno.EPERM)),
    ],
    ids=["TIOCSTI", "TIOCLINUX", "TCGETS", "high-half-is-ignored-by-the-kernel", "sign-extended"],
)
def test_typing_into_the_terminal_is_refused(machine, ioctl, request_number, expected):
    assert answer(seccomp.program(machine=machine), ARCHITECTURES[machine], ioctl, 0, request_number) == expected


@pytest.mark.parametrize(("machine", "socket"), [("x86_64", 41), ("aarch64", 198)])
@pytest.mark.parametrize(
    ("family", "allowed"), [(1, True), (2, True), (10, True), (16, True), (40, False), (38, False), (17, False), (30, False)]
)
def test_only_common_socket_families_exist(machine, socket, family, allowed):
    expected = ALLOW if allowed else refused(errno.EAFNOSUPPORT)
    assert answer(seccomp.program(machine=machine), ARCHITECTURES[machine], socket, family) == expected


@pytest.mark.parametrize(("machine", "clone", "unshare"), [("x86_64", 56, 272), ("aarch64", 220, 97)])
def test_user_namespaces_are_refused_where_bubblewrap_cannot(machine, clone, unshare):
    program = seccomp.program(machine=machine, forbid_user_namespaces=True)
    architecture = ARCHITECTURES[machine]
    new_user, signal_only = 0x10000011, 0x11
    assert answer(program, architecture, clone, new_user) == refused(errno.EPERM)
    assert answer(program, architecture, unshare, 0x10000000) == refused(errno.EPERM)
    assert answer(program, architecture, clone, signal_only) == ALLOW
    assert answer(program, architecture, 435) == refused(errno.ENOSYS)


def test_an_unknown_machine_has_no_filter():
    assert not seccomp.supported("riscv64")
    with pytest.raises(KeyError):
        seccomp.program(machine="riscv64")


def test_the_filter_is_within_the_kernels_bound(machine):
    assert len(seccomp.program(machine=machine, forbid_user_namespaces=True)) // 8 <= 4_096
