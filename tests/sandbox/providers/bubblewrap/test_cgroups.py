"""Where control groups are made, for the layouts of versions 1 and 2; and real groups where this process may make them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from b4run.sandbox.providers.bubblewrap import cgroups
from b4run.sandbox.providers.bubblewrap.cgroups import CgroupFailed, Group, Home, Limits, discover

LIMITS = Limits(memory_bytes=64 * 2**20, cpus=0.5, pids=20)


def line_v1(root: Path, controller: str) -> str:
    return f"30 25 0:27 / {root / controller} rw,relatime - cgroup cgroup rw,{controller}"


def line_v2(root: Path, shown: str = "/") -> str:
    return f"31 25 0:28 {shown} {root} rw,relatime - cgroup2 cgroup2 rw"


def v2_group(path: Path, controllers: str, handed_down: str = "") -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "cgroup.controllers").write_text(controllers)
    (path / "cgroup.subtree_control").write_text(handed_down)
    (path / "cgroup.procs").write_text("")
    return path


def test_version_1_makes_them_below_the_supervisors_own_group(tmp_path):
    for controller in ("memory", "pids", "cpu"):
        (tmp_path / controller / "service").mkdir(parents=True)
    mountinfo = "\n".join(line_v1(tmp_path, controller) for controller in ("memory", "pids", "cpu"))
    membership = "3:memory:/service\n2:pids:/service\n1:cpu:/elsewhere\n0::/\n"
    homes = discover(mountinfo, membership)
    assert homes["memory"] == Home(1, tmp_path / "memory/service", tmp_path / "memory/service")
    assert homes["cpu"].parent == tmp_path / "cpu", "a path of another namespace falls back to what is mounted"
    assert homes["pids"].members == "tasks"


def test_version_2_uses_the_nearest_group_that_hands_its_controllers_down(tmp_path):
    v2_group(tmp_path, "cpu memory pids", "cpu memory pids")
    service = v2_group(tmp_path / "service", "cpu memory pids", "cpu memory pids")
    main = v2_group(service / "main", "cpu memory pids")
    (main / "cgroup.subtree_control").unlink()
    (main / "cgroup.subtree_control").mkdir()  # cannot be written, as the kernel answers for a group with processes
    homes = discover(line_v2(tmp_path), "0::/service/main\n")
    assert homes == {name: Home(2, service, main) for name in ("cpu", "memory", "pids")}
    assert homes["cpu"].members == "cgroup.procs"


def test_version_2_without_delegation_offers_nothing(tmp_path):
    own = v2_group(tmp_path / "session", "", "")
    assert own.is_dir()
    v2_group(tmp_path, "", "")
    assert discover(line_v2(tmp_path), "0::/session\n") == {}


def test_version_2_never_splits_a_sandbox_over_two_places(tmp_path):
    v2_group(tmp_path, "cpu memory pids", "cpu memory pids")
    service = v2_group(tmp_path / "service", "memory pids", "memory pids")
    v2_group(service / "main", "")
    homes = discover(line_v2(tmp_path), "0::/service/main\n")
    assert {home.parent for home in homes.values()} == {service}
    assert sorted(homes) == ["memory", "pids"]


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, {"memory.limit_in_bytes": "67108864", "pids.max": "20", "cpu.cfs_quota_us": "50000", "cpu.cfs_period_us": "100000"}),
        (2, {"memory.max": "67108864", "pids.max": "20", "cpu.max": "50000 100000"}),
    ],
)
def test_limits_are_written_in_the_words_of_the_version(tmp_path, version, expected):
    homes = {name: Home(version, tmp_path, tmp_path) for name in cgroups.CONTROLLERS}
    group = Group.create("0" * 40, LIMITS, homes)
    (folder,) = group.folders
    assert folder.name.startswith("b4-" + "0" * 40)
    assert {path.name: path.read_text() for path in folder.iterdir()} == expected


def test_the_smallest_share_of_a_cpu_is_one_the_kernel_accepts(tmp_path):
    homes = {"cpu": Home(2, tmp_path, tmp_path)}
    group = Group.create("0" * 40, Limits(cpus=0.001), homes)
    assert (group.folders[0] / "cpu.max").read_text() == "1000 100000"


@pytest.mark.parametrize(
    ("file", "text"), [("memory.events", "low 0\noom 2\noom_kill 3\n"), ("memory.oom_control", "under_oom 0\noom_kill 3\n")]
)
def test_kills_by_the_memory_limit_are_counted(tmp_path, file, text):
    group = Group.create("0" * 40, Limits(memory_bytes=2**20), {"memory": Home(2, tmp_path, tmp_path)})
    (group.folders[0] / file).write_text(text)
    assert group.oom_kills() == 3


def test_a_controller_without_a_home_is_left_out(tmp_path):
    group = Group.create("0" * 40, LIMITS, {"pids": Home(1, tmp_path, tmp_path)})
    assert group.controllers == {"pids"}
    assert group.oom_kills() == 0


@pytest.fixture
def real_homes():
    homes = discover()
    if not homes:
        pytest.skip("no control groups can be made by this user")
    return homes


def test_a_real_group_is_removed_with_what_is_left_in_it(real_homes):
    group = Group.create("f" * 40, Limits(pids=50), real_homes)
    child = subprocess.Popen(["sleep", "60"])
    try:
        (group.folders[0] / "cgroup.procs").write_text(str(child.pid))
        group.remove()
        assert child.wait(5) == -9
        assert not group.folders[0].exists()
        group.remove()
    finally:
        child.kill()
        child.wait()


def test_a_refused_limit_leaves_no_group_behind(real_homes):
    before = set(os.listdir(real_homes["pids"].parent))
    with pytest.raises(CgroupFailed, match="pids"):
        Group.create("e" * 40, Limits(pids=-7), real_homes)
    assert set(os.listdir(real_homes["pids"].parent)) == before
