"""The same provider, started by an ordinary user: no root, no control groups, its own files."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from b4run.sandbox.providers.bubblewrap import network

NOBODY = 65534
SCENARIOS = Path(__file__).with_name("ordinary.py")

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the other tests already run as an ordinary user")


@pytest.fixture
def home() -> Iterator[Path]:
    """A folder of the ordinary user, which nobody else enters, below folders that everybody may cross."""
    with tempfile.TemporaryDirectory(prefix="b4run-user-") as folder:
        os.chmod(folder, 0o711)
        home = Path(folder, "home")
        home.mkdir(mode=0o700)
        os.chown(home, NOBODY, NOBODY)
        yield home


def run(scenario: str, home: Path, *prefix: str) -> dict[str, Any]:
    environment = {"PYTHONPATH": os.pathsep.join(sys.path), "PATH": os.environ["PATH"], "HOME": str(home)}
    command = [*prefix, sys.executable, "-B", str(SCENARIOS), scenario, str(home / "sandboxes")]
    answer = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=90, check=False, cwd="/")
    assert answer.returncode == 0, answer.stderr
    return json.loads(answer.stdout)  # type: ignore[no-any-return]


def test_isolation_files_and_removal_hold_for_an_ordinary_user(home):
    result = run("work", home)
    assert result["seen"] == ["1000", "CapEff:", "0000000000000000", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1"]
    assert not result["escaped"]
    assert result["lost"]
    assert result["kept"] == "x"
    assert result["left"] == [".gitignore", "locks"], "read-only folders of the agent's are removed too"


def test_limits_without_control_groups_hold_for_processes_and_each_ones_memory(home):
    result = run("work", home)
    assert 32 <= result["forks"] < 64
    assert (result["memory_ok"], result["memory_error"]) == (False, True)


def test_preflight_names_what_is_not_enforced(home):
    result = run("preflight", home)
    assert result["ok"], result["detail"]
    assert any("memory limit: it holds for each process" in warning for warning in result["warnings"])
    assert any("Delegate=yes" in remedy for remedy in result["remedies"])


def test_where_user_namespaces_are_forbidden_preflight_names_the_layer_and_the_remedy(home):
    result = run("forbidden", home)
    assert not result["ok"]
    assert "user.max_user_namespaces" in result["detail"]
    assert any("sysctl -w user.max_user_namespaces" in remedy for remedy in result["remedies"])


TUN_FOR_ALL = (
    "unshare",
    "-m",
    "sh",
    "-c",
    f'd=$(mktemp -d) && mount -t tmpfs t $d && mknod -m 666 $d/tun c 10 200 && chmod 666 $d/tun && mount --bind $d/tun {network.TUN} && umount -l $d && exec "$@"',
    "sh",
)


def test_an_open_network_works_where_users_may_open_the_tun_device(home):
    result = run("network", home, *TUN_FOR_ALL)
    assert result["interfaces"][0] == "lo"
    assert len(result["interfaces"]) == 2


TUN_FOR_ROOT = (
    "unshare",
    "-m",
    "sh",
    "-c",
    f'd=$(mktemp -d) && mount -t tmpfs t $d && mknod -m 600 $d/tun c 10 200 && mount --bind $d/tun {network.TUN} && umount -l $d && exec "$@"',
    "sh",
)


def test_an_open_network_without_the_tun_device_is_refused_with_the_remedy(home):
    result = run("network", home, *TUN_FOR_ROOT)
    assert "modprobe tun" in result["refused"]
    assert result["errors"] == ["network"]
