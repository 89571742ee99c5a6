"""What happens to a thread when its Pod, its image or the API server fails."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess

import pytest

from b4run.errors import SandboxLost, SandboxUnavailable
from b4run.sandbox.policy import Resources, SandboxPolicy
from b4run.sandbox.scope import resource_id

from ...kubernetes_cluster import IMAGE, NAMESPACE, find, kubectl, needs_kubernetes

pytestmark = needs_kubernetes
RESTART = os.environ.get("B4_TEST_KUBERNETES_RESTART")


def names(provider, thread):
    id = resource_id(provider._scope, thread)
    return f"b4-sbx-{id}", f"b4-sbx-vol-{id}", f"b4-sbx-net-{id}"


@pytest.mark.skipif(
    not RESTART and not os.environ.get("B4_TEST_SMOKE_E2E"),
    reason="B4_TEST_KUBERNETES_RESTART names no command that takes a part of the cluster down for some seconds",
)
async def test_a_command_outlives_an_api_server_that_is_away(make):
    assert RESTART, "set B4_TEST_KUBERNETES_RESTART"
    provider = make()
    sandbox = await provider.acquire("t", SandboxPolicy())
    command = (
        "for n in 1 2 3 4 5 6 7 8 9 10; do echo $n; echo $n >> log; sleep 1; done; head -c 3000000 /dev/zero | tr '\\0' x > big; echo end"
    )
    running = asyncio.create_task(sandbox.exec.run(command, deadline_ms=30_000))
    await asyncio.sleep(1)
    away = await asyncio.create_subprocess_exec(
        *shlex.split(RESTART), "apiserver", "20", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    result = await asyncio.wait_for(running, 120)
    assert await asyncio.wait_for(away.wait(), 120) == 0
    # Whole, and once: nothing was lost with the connection, and nothing was done again.
    assert result.stdout.split() == [str(number) for number in range(1, 11)] + ["end"]
    assert (await sandbox.files.read("log", max_size=100)).data.decode().split() == [str(number) for number in range(1, 11)]
    assert len((await sandbox.files.read("big", max_size=4_000_000)).data) == 3_000_000
    assert not sandbox.lost


async def test_a_removed_pod_is_a_typed_loss_and_its_files_stay(make):
    provider = make()
    sandbox = await provider.acquire("t", SandboxPolicy())
    await sandbox.files.write("a", b"kept")
    running = asyncio.create_task(sandbox.exec.run("sleep 60", deadline_ms=90_000))
    await asyncio.sleep(0.5)
    await asyncio.to_thread(kubectl, "delete", "pod", names(provider, "t")[0], "-n", NAMESPACE, "--grace-period=0", "--force")
    with pytest.raises(SandboxLost, match="its Pod was removed|is being removed|its container ended") as lost:
        await asyncio.wait_for(running, 30)
    assert lost.value.cause == "lost"
    again = await provider.acquire("t", SandboxPolicy())
    assert (await again.files.read("a", max_size=10)).data == b"kept"


async def test_a_process_that_passes_the_memory_limit_leaves_the_rest(make):
    provider = make()
    sandbox = await provider.acquire("t", SandboxPolicy(resources=Resources(memory_mb=128)))
    result = await sandbox.exec.run('python3 -c "x = bytearray(400_000_000)"; echo after', deadline_ms=60_000)
    assert "after" in result.stdout


async def test_a_pod_that_cannot_start_says_why(make):
    for image, why in (("b4.local/none:test", "cannot be pulled|not on the node"), ("Not An Image", "image|invalid")):
        provider = make(image=image, startup_timeout_ms=20_000)
        with pytest.raises(SandboxUnavailable, match=why):
            await provider.acquire("t", SandboxPolicy())
        assert find("pod", names(provider, "t")[0]) is None
    provider = make(startup_timeout_ms=5_000)
    with pytest.raises(SandboxUnavailable, match="no node takes it: .*Insufficient memory"):
        await provider.acquire("t", SandboxPolicy(resources=Resources(memory_mb=4_000_000)))
    assert find("pod", names(provider, "t")[0]) is None


async def test_another_process_finds_the_pod_and_other_settings_replace_it(make):
    one, two = make(), make()
    first = await one.acquire("t", SandboxPolicy())
    await first.files.write("a", b"kept")
    second = await two.acquire("t", SandboxPolicy())
    assert second.instance == first.instance
    third = await make().acquire("t", SandboxPolicy(resources=Resources(memory_mb=256)))
    assert third.instance != first.instance
    assert (await third.files.read("a", max_size=10)).data == b"kept"


async def test_destroy_leaves_nothing(make):
    provider = make()
    await provider.acquire("t", SandboxPolicy())
    assert [record.thread_id for record in await provider.list_sandboxes()] == ["t"]
    await provider.destroy("t")
    pod, claim, policy = names(provider, "t")
    assert [find("pod", pod), find("pvc", claim), find("networkpolicy", policy)] == [None, None, None]
    assert await provider.list_sandboxes() == []
    await provider.destroy("t")


async def test_preflight_tells_what_is_enforced(make):
    from b4run.sandbox.policy import Deny

    found = await make().preflight(SandboxPolicy(network=Deny()))
    assert found.ok, found.detail
    told = {finding.control: finding.detail for finding in found.findings}
    assert told["permissions"] == "all 17 that are needed"
    assert "enforced: seen from inside" in told["network"]
    assert any("pids_limit" in warning for warning in found.warnings)
    unreachable = await make(image=IMAGE, context="none-of-that-name").preflight(SandboxPolicy())
    assert not unreachable.ok
    assert "no usable credentials" in unreachable.detail
