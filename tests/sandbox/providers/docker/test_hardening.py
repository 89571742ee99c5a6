"""Every field of a session container that isolation rests on, as the engine has it; and that an override changes its own field alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from b4run.sandbox.policy import Allow, Deny, Resources, SandboxPolicy, Security, User
from b4run.sandbox.scope import resource_id

from ...docker_engine import docker, needs_docker
from .conftest import Make

pytestmark = needs_docker

SIZE = "size=1073741824"
DEFAULTS: dict[str, Any] = {
    "Config.User": "1000:1000",
    "Config.WorkingDir": "/workspace",
    "Config.Hostname": "sandbox",
    "Config.Entrypoint": ["/b4/bin/b4-guest"],
    "Config.Cmd": ["serve", "--root", "/workspace", "--listen"],
    "Config.OpenStdin": False,
    "Config.Tty": False,
    "HostConfig.Init": True,
    "HostConfig.CapDrop": ["ALL"],
    "HostConfig.CapAdd": None,
    "HostConfig.Privileged": False,
    "HostConfig.SecurityOpt": ["no-new-privileges"],
    "HostConfig.ReadonlyRootfs": True,
    "HostConfig.PidsLimit": 512,
    "HostConfig.Memory": 0,
    "HostConfig.MemorySwap": 0,
    "HostConfig.NanoCpus": 0,
    "HostConfig.NetworkMode": "none",
    "HostConfig.IpcMode": "private",
    "HostConfig.PidMode": "",
    "HostConfig.UTSMode": "",
    "HostConfig.UsernsMode": "",
    "HostConfig.Binds": None,
    "HostConfig.Devices": None,
    "HostConfig.PortBindings": None,
    "HostConfig.ExtraHosts": None,
    "HostConfig.RestartPolicy.Name": "no",
    "HostConfig.LogConfig.Type": "none",
    "HostConfig.Tmpfs": {
        "/tmp": f"rw,exec,nosuid,nodev,mode=1777,{SIZE}",
        "/run": f"rw,exec,nosuid,nodev,mode=0755,{SIZE},uid=1000,gid=1000",
        "/b4/home": f"rw,exec,nosuid,nodev,mode=0700,{SIZE},uid=1000,gid=1000",
    },
}
SMALLER = {path: text.replace(SIZE, "size=134217728") for path, text in DEFAULTS["HostConfig.Tmpfs"].items()}
OTHERS = {path: text.replace("uid=1000,gid=1000", "uid=7,gid=8") for path, text in DEFAULTS["HostConfig.Tmpfs"].items()}


def fields(container: str) -> dict[str, Any]:
    (document,) = json.loads(docker("inspect", container))

    def value(path: str) -> Any:
        found = document
        for key in path.split("."):
            found = found.get(key)
        return None if found in ([], {}) else found  # engines differ in how they write nothing

    return {path: value(path) for path in DEFAULTS}


@pytest.mark.parametrize(
    ("policy", "changed"),
    [
        ({}, {}),
        ({"network": Allow()}, {"HostConfig.NetworkMode": "bridge"}),
        ({"security": Security(drop_all_capabilities=False)}, {"HostConfig.CapDrop": None}),
        ({"security": Security(no_new_privileges=False)}, {"HostConfig.SecurityOpt": None}),
        ({"security": Security(read_only_root_filesystem=False)}, {"HostConfig.ReadonlyRootfs": False}),
        ({"security": Security(pids_limit=77)}, {"HostConfig.PidsLimit": 77}),
        ({"security": Security(run_as_non_root=User(uid=7, gid=8))}, {"Config.User": "7:8", "HostConfig.Tmpfs": OTHERS}),
        (
            {"resources": Resources(memory_mb=256)},
            {"HostConfig.Memory": 268_435_456, "HostConfig.MemorySwap": 268_435_456, "HostConfig.Tmpfs": SMALLER},
        ),
        ({"resources": Resources(cpus=0.5)}, {"HostConfig.NanoCpus": 500_000_000}),
        ({"resources": Resources(timeout_ms=1_000)}, {}),
        ({"env": {"SECRET": "s3cret"}}, {}),
    ],
)
async def test_each_field_is_as_the_policy_says(make: Make, policy: dict[str, Any], changed: dict[str, Any]) -> None:
    provider = make()
    sandbox = await provider.acquire("t-1", SandboxPolicy(**{"network": Deny()} | policy))
    assert (await sandbox.exec.run("echo it works > f; cat f")).stdout == "it works\n"
    container = f"b4-sbx-{resource_id(provider._scope, 't-1')}"
    assert fields(container) == DEFAULTS | changed
    (document,) = json.loads(docker("inspect", container))
    mounts = sorted((mount["Destination"], mount["Type"], mount["RW"]) for mount in document["Mounts"])
    assert mounts == [("/b4/bin", "volume", False), ("/workspace", "volume", True)]
    assert "s3cret" not in json.dumps(document)


async def test_inside_nothing_is_left_to_gain(make: Make) -> None:
    sandbox = await make().acquire("t-1", SandboxPolicy(network=Deny()))
    result = await sandbox.exec.run(
        "grep -E '^(Cap(Prm|Eff|Bnd|Amb)|NoNewPrivs|Seccomp):' /proc/self/status; id -u; touch /x /usr/x /b4/bin/x"
    )
    told = dict(line.split(":\t") for line in result.stdout.splitlines() if ":" in line)
    assert {told[name] for name in ("CapPrm", "CapEff", "CapBnd", "CapAmb")} == {"0000000000000000"}
    assert (told["NoNewPrivs"], told["Seccomp"]) == ("1", "2")
    assert result.stdout.splitlines()[-1] == "1000"
    assert result.stderr.count("Read-only file system") == 3
