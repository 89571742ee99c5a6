"""The container that reads a thread's volume: what it is made of, whom it reads as, and that nothing of it stays."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from b4run.errors import ReaderLost, SandboxUnavailable, WorkspaceMissing
from b4run.sandbox.policy import Deny, SandboxPolicy, Security, User
from b4run.sandbox.providers.docker import DockerProvider
from b4run.sandbox.scope import resource_id

from ...docker_engine import docker, needs_docker
from .conftest import Make

pytestmark = needs_docker

POLICY = SandboxPolicy(network=Deny())


def readers(provider: DockerProvider) -> list[str]:
    return docker("ps", "-aq", "--filter", f"label=b4.sandbox.reader={resource_id(provider._scope, 't-1')}").split()


async def test_every_field_that_isolates_it(make: Make) -> None:
    provider = make()
    await (await provider.acquire("t-1", POLICY)).files.write("f", b"x")
    reader = await provider.open_workspace_reader("t-1")
    (container,) = readers(provider)
    (found,) = json.loads(docker("inspect", container))
    volume = f"b4-sbx-vol-{resource_id(provider._scope, 't-1')}"
    host: dict[str, Any] = found["HostConfig"]
    names = (
        "NetworkMode",
        "ReadonlyRootfs",
        "CapDrop",
        "CapAdd",
        "Privileged",
        "SecurityOpt",
        "PidsLimit",
        "Memory",
        "MemorySwap",
        "IpcMode",
    )
    assert {name: host[name] for name in names} == {
        "NetworkMode": "none",
        "ReadonlyRootfs": True,
        "CapDrop": ["ALL"],
        "CapAdd": None,
        "Privileged": False,
        "SecurityOpt": ["no-new-privileges"],
        "PidsLimit": 64,
        "Memory": 536_870_912,
        "MemorySwap": 536_870_912,
        "IpcMode": "private",
    }
    assert found["Config"]["User"] == "1000:1000"
    mounts = {mount["Destination"]: mount for mount in found["Mounts"]}
    assert set(mounts) == {"/workspace", "/b4/bin"}
    assert not any(mount["RW"] for mount in mounts.values())
    workspace = mounts["/workspace"]
    assert (workspace["Type"], workspace["Source"]) == ("bind", docker("volume", "inspect", "--format", "{{.Mountpoint}}", volume))
    await reader.aclose()
    assert readers(provider) == []


async def test_it_reads_as_whom_it_is_told(make: Make) -> None:
    for who in (False, User(uid=1234, gid=1234)):
        provider = make()
        policy = SandboxPolicy(network=Deny(), security=Security(run_as_non_root=who))
        sandbox = await provider.acquire("t-1", policy)
        assert (await sandbox.exec.run("umask 077; echo mine > private")).ok
        reader = await provider.open_workspace_reader("t-1", run_as_non_root=who)
        assert (await reader.read("private")).data == b"mine\n"
        await reader.aclose()
        await provider.destroy("t-1")


async def test_a_reader_whose_opener_is_gone_goes_by_itself(make: Make) -> None:
    provider = make()
    await (await provider.acquire("t-1", POLICY)).files.write("f", b"x")
    reader = await provider.open_workspace_reader("t-1")
    await reader._client.close()
    async with asyncio.timeout(15):
        while readers(provider):
            await asyncio.sleep(0.05)
    await reader.aclose()


async def test_a_killed_reader_is_a_typed_error_and_the_sandbox_lives(make: Make) -> None:
    provider = make()
    sandbox = await provider.acquire("t-1", POLICY)
    await sandbox.files.write("f", b"x")
    reader = await provider.open_workspace_reader("t-1")
    await asyncio.to_thread(docker, "kill", readers(provider)[0])
    async with asyncio.timeout(15):
        with pytest.raises(ReaderLost):
            await reader.read("f")
    await reader.aclose()
    assert (await sandbox.files.read("f")).data == b"x"


async def test_a_deleted_volume_does_not_come_back(make: Make) -> None:
    provider = make()
    await provider.acquire("t-1", POLICY)
    await provider.destroy("t-1")
    with pytest.raises(WorkspaceMissing):
        await provider.open_workspace_reader("t-1")
    assert f"b4-sbx-vol-{resource_id(provider._scope, 't-1')}" not in docker("volume", "ls", "-q").split()


async def test_a_failed_open_leaves_no_container(make: Make) -> None:
    provider = make()
    await provider.acquire("t-1", POLICY)
    broken = make(runtime="none-such")
    with pytest.raises(SandboxUnavailable, match="none-such"):
        await broken.open_workspace_reader("t-1")
    assert readers(provider) == []
