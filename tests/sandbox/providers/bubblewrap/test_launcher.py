"""The launcher by itself: `b4-guest launch`, without bubblewrap."""

from __future__ import annotations

import os
import secrets
import subprocess
from pathlib import Path

import pytest

from b4run.sandbox.guest.binary import guest_binary
from b4run.sandbox.providers.bubblewrap.cgroups import discover

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root starts this way")


def launch(*words: str) -> subprocess.CompletedProcess[str]:
    command = [str(guest_binary()), "launch", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL)


def hierarchies() -> list[tuple[str, Path, Path]]:
    """Each kind of hierarchy here that this process may use: its members file, its top, this process's own group."""
    found = [(home.members, home.parent, home.own) for home in list(discover().values())[:1]]
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if " - cgroup2 " in line:
            top = Path(line.split(" ")[4])
            own = top / next(line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::"))[3:].lstrip("/")
            if os.access(top / "cgroup.procs", os.W_OK):
                found.append(("cgroup.procs", top, own))
    return found


@as_root
@pytest.mark.parametrize("hierarchy", hierarchies(), ids=lambda found: found[0])
def test_the_command_joins_the_group_and_its_end_removes_it(hierarchy):
    members, top, own = hierarchy
    group = top / f"b4-test-{secrets.token_hex(8)}"
    group.mkdir()
    try:
        answer = launch("--cgroup", str(group / members), str(own / members), "--", "cat", "/proc/self/cgroup")
        assert answer.returncode == 0, answer.stderr
        assert any(line.endswith(f"/{group.name}") for line in answer.stdout.splitlines())
        assert not group.exists()
    finally:
        if group.exists():
            group.rmdir()


@as_root
def test_a_command_that_cannot_start_leaves_no_group(tmp_path):
    members, top, own = hierarchies()[0]
    group = top / f"b4-test-{secrets.token_hex(8)}"
    group.mkdir()
    answer = launch("--cgroup", str(group / members), str(own / members), "--", str(tmp_path / "missing"))
    assert answer.returncode == 69
    assert "cannot run the command" in answer.stderr
    assert not group.exists()


@as_root
def test_the_user_is_changed_for_good_and_has_no_groups(tmp_path):
    answer = launch("--uid", "1900000000", "--gid", "1900000001", "--", "cat", "/proc/self/status")
    fields = dict(line.split(":", 1) for line in answer.stdout.splitlines())
    assert fields["Uid"].split() == ["1900000000"] * 4
    assert fields["Gid"].split() == ["1900000001"] * 4
    assert fields["Groups"].split() == []
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0


@as_root
def test_staged_sources_are_seen_only_by_the_command(tmp_path):
    source = tmp_path / "closed" / "folder"
    source.mkdir(parents=True)
    (tmp_path / "closed").chmod(0o700)
    (source / "file").write_text("staged")
    mounts = Path("/proc/self/mountinfo").read_text()
    answer = launch("--uid", "1900000000", "--gid", "1900000000", "--stage", str(source), "b4/folder", "--", "cat", "/tmp/b4/folder/file")
    assert answer.stdout == "staged"
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not Path("/tmp/b4/folder").exists()


@pytest.mark.parametrize(
    "words", [(), ("--",), ("--uid", "x", "--", "true"), ("--rlimit", "fsize", "1", "--", "true"), ("--nonsense", "--", "true"), ("true",)]
)
def test_arguments_that_are_not_understood_are_a_usage_error(words):
    assert launch(*words).returncode == 64


def test_a_supervisor_that_is_not_the_parent_is_refused():
    answer = launch("--parent", "1", "--cgroup", "/nonexistent/tasks", "/nonexistent/tasks", "--", "true")
    assert answer.returncode == 69
    assert "the supervisor is gone" in answer.stderr


def test_a_resource_limit_holds_for_the_command():
    assert (
        launch("--rlimit", "core", "0", "--rlimit", "data", "67108864", "--", "sh", "-c", "ulimit -Hc; ulimit -Hd").stdout == "0\n65536\n"
    )


def test_the_commands_own_code_is_passed_on():
    assert launch("--", "sh", "-c", "exit 7").returncode == 7
