"""`b4 sandbox` as a process of its own, on real bubblewrap sandboxes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from .conftest import ENVIRONMENT, PYTHON

MIB = 2**20

Sandbox = Callable[..., "subprocess.CompletedProcess[bytes]"]


@pytest.fixture
def target(tmp_path: Path) -> list[str]:
    return ["--scope", "cli-tests", "--state-dir", str(tmp_path / "state")]


@pytest.fixture
def sandbox(tmp_path: Path, target: list[str]) -> Sandbox:
    """Run `b4 sandbox COMMAND` in a scope of this test's."""

    def run(command: str, *arguments: str, input: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
        line = [*PYTHON, "sandbox", command, *target, *arguments]
        source: dict[str, object] = {"input": input} if input is not None else {"stdin": subprocess.DEVNULL}
        return subprocess.run(line, capture_output=True, cwd=tmp_path, env=ENVIRONMENT, timeout=120, check=False, **source)  # type: ignore[call-overload, no-any-return]

    return run


def test_streams_and_exit_code_pass_through(sandbox: Sandbox) -> None:
    done = sandbox("exec", "--", "sh", "-c", "printf 'out\\377\\000'; printf err >&2; exit 7")
    assert (done.returncode, done.stdout, done.stderr) == (7, b"out\xff\x00", b"err")


def test_one_text_is_a_shell_command(sandbox: Sandbox) -> None:
    done = sandbox("exec", "echo one two | wc -w")
    assert (done.returncode, done.stdout.strip()) == (0, b"2")


def test_sixty_four_mebibytes_of_input_arrive_whole(sandbox: Sandbox) -> None:
    data = os.urandom(MIB) * 64
    done = sandbox("exec", "--", "sha256sum", input=data)
    assert done.returncode == 0
    assert done.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


def test_two_hundred_mebibytes_of_output_arrive_whole(target: list[str], tmp_path: Path) -> None:
    line = [*PYTHON, "sandbox", "exec", *target, "--", "head", "-c", str(200 * MIB), "/dev/zero"]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=ENVIRONMENT, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert _size(process.stdout) == 200 * MIB
        assert process.wait(timeout=60) == 0


def _size(stream: IO[bytes]) -> int:
    total = 0
    while data := stream.read(MIB):
        total += len(data)
    return total


@pytest.mark.parametrize("arguments", [(), ("--no-stdin",)])
def test_a_command_that_reads_when_nothing_was_given_ends_at_once(sandbox: Sandbox, arguments: tuple[str, ...]) -> None:
    assert sandbox("exec", *arguments, "--", "cat").returncode == 0


def test_input_that_never_ends_does_not_outlive_the_command(target: list[str], tmp_path: Path) -> None:
    line = [*PYTHON, "sandbox", "exec", *target, "--", "true"]
    with subprocess.Popen(line, stdin=subprocess.PIPE, env=ENVIRONMENT, cwd=tmp_path) as process:
        assert process.wait(timeout=60) == 0


def test_a_timeout_is_exit_code_124_and_a_signal_is_not(sandbox: Sandbox) -> None:
    late = sandbox("exec", "--timeout", "0.3", "--", "sh", "-c", "echo begun; setsid sleep 60 & sleep 60")
    assert (late.returncode, late.stdout) == (124, b"begun\n")
    assert late.stderr == b"b4: ended after 0.3 s\n"
    assert sandbox("exec", "--", "sh", "-c", "kill -KILL $$").returncode == 137


def test_what_cannot_be_started_is_a_refusal(sandbox: Sandbox) -> None:
    done = sandbox("exec", "--", "no-such-program", "x")
    assert (done.returncode, done.stdout) == (1, b"")
    message, hint = done.stderr.decode().splitlines()
    assert message.startswith("The command could not be started: ") and hint.startswith("    [B4_E2003]")


def test_ctrl_c_ends_the_command_and_is_exit_code_130(target: list[str], tmp_path: Path) -> None:
    line = [*PYTHON, "sandbox", "exec", *target, "--", "sh", "-c", "echo begun; sleep 60"]
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, b"")


def test_a_reader_that_goes_away_ends_the_command_in_silence(target: list[str], tmp_path: Path) -> None:
    line = [*PYTHON, "sandbox", "exec", *target, "--", "yes"]
    with subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, cwd=tmp_path
    ) as process:
        assert process.stdout is not None and process.stderr is not None
        assert process.stdout.readline() == b"y\n"
        process.stdout.close()
        assert process.wait(timeout=60) == 141
        assert process.stderr.read() == b""


def test_files_stay_and_are_read_listed_and_removed(sandbox: Sandbox) -> None:
    made = sandbox("exec", "--thread", "t-1", "--", "sh", "-c", "mkdir src; printf 'a\\000\\377b' > src/data; echo x > notes.txt")
    assert made.returncode == 0
    assert sandbox("read", "--thread", "t-1", "src/data").stdout == b"a\x00\xffb"
    assert sandbox("read", "--thread", "t-1").stdout == b"notes.txt\nsrc/\n"
    (entry,) = json.loads(sandbox("read", "--thread", "t-1", "src", "--json").stdout)
    assert (entry["name"], entry["kind"], entry["size"]) == ("data", "file", 4)
    (record,) = json.loads(sandbox("ls", "--json").stdout)
    assert (record["thread_id"], record["running"]) == ("t-1", False)
    assert sandbox("rm", "t-1", "--yes").returncode == 0
    assert json.loads(sandbox("ls", "--json").stdout) == []
    assert sandbox("read", "--thread", "t-1").returncode == 1


def test_names_that_are_not_utf8_come_and_go_as_bytes(sandbox: Sandbox) -> None:
    sandbox("exec", "--thread", "t-1", "--", "sh", "-c", "printf hi > \"$(printf 'caf\\351')\"")
    assert sandbox("read", "--thread", "t-1").stdout == b"caf\xe9\n"
    assert sandbox("read", "--thread", "t-1", os.fsdecode(b"caf\xe9")).stdout == b"hi"


def test_reading_leads_to_nothing_outside(sandbox: Sandbox) -> None:
    sandbox("exec", "--thread", "t-1", "--", "ln", "-s", "/etc/hostname", "link")
    for path in ("link", "../../etc/hostname", "/etc/hostname"):
        done = sandbox("read", "--thread", "t-1", path)
        assert (done.returncode, done.stdout) == (1, b"")
        assert b"[B4_E2004]" in done.stderr


def test_reading_works_beside_a_running_command(sandbox: Sandbox, target: list[str], tmp_path: Path) -> None:
    line = [*PYTHON, "sandbox", "exec", *target, "--thread", "t-1", "--", "sh", "-c", "echo x > made; echo begun; sleep 60"]
    with subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=ENVIRONMENT, cwd=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"begun\n"
        done = sandbox("read", "--thread", "t-1", "made")
        process.send_signal(signal.SIGINT)
        process.wait(timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"x\n", b"")


def test_prune_leaves_threads_and_their_files(sandbox: Sandbox) -> None:
    assert sandbox("exec", "--thread", "t-1", "--", "touch", "mine").returncode == 0
    assert sandbox("prune").returncode == 0
    assert sandbox("read", "--thread", "t-1").stdout == b"mine\n"


def test_threads_do_not_see_each_other(sandbox: Sandbox) -> None:
    assert sandbox("exec", "--thread", "one", "--", "touch", "mine").returncode == 0
    assert sandbox("exec", "--thread", "two", "--", "ls").stdout == b""
