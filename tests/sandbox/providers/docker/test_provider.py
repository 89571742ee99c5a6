"""What happens to containers and volumes: loss, restart, replacement, removal."""

from __future__ import annotations

import asyncio
import json

import pytest

from b4run.errors import ConfigurationError, PolicyConflict, SandboxLost, SandboxUnavailable
from b4run.sandbox.contract import Cause, Severity
from b4run.sandbox.policy import Deny, Resources, SandboxPolicy, Security
from b4run.sandbox.providers.docker import DockerProvider, docker_sandbox
from b4run.sandbox.scope import resource_id

from ...docker_engine import BUSYBOX, docker, needs_docker, needs_gvisor
from .conftest import Make

pytestmark = needs_docker

POLICY = SandboxPolicy(network=Deny())


def names(provider: DockerProvider, thread: str = "t-1") -> tuple[str, str]:
    name = resource_id(provider._scope, thread)
    return f"b4-sbx-{name}", f"b4-sbx-vol-{name}"


async def test_another_process_finds_the_container_again(make: Make) -> None:
    first, second = make(), make()
    sandbox = await first.acquire("t-1", POLICY)
    job = await sandbox.exec.start("echo up; exec sleep 60")
    again = await second.acquire("t-1", POLICY)
    assert again.instance == sandbox.instance
    assert [info.job for info in await again.exec.jobs()] == [job.id]
    assert [(record.thread_id, record.running) for record in await second.list_sandboxes()] == [("t-1", True)]


async def test_other_settings_replace_the_container_and_keep_the_files(make: Make) -> None:
    provider = make()
    sandbox = await provider.acquire("t-1", POLICY)
    await sandbox.files.write("f", b"kept")
    other = SandboxPolicy(network=Deny(), security=Security(pids_limit=99))
    with pytest.raises(PolicyConflict, match="security"):
        await provider.acquire("t-1", other)
    again = await make().acquire("t-1", other)
    assert again.instance != sandbox.instance
    assert (await again.files.read("f")).data == b"kept"


@pytest.mark.parametrize("how", ["kill", "stop", "rm -f", "restart"])
async def test_whatever_ends_the_container_is_told_and_recovered_from(make: Make, how: str) -> None:
    provider = make()
    sandbox = await provider.acquire("t-1", POLICY)
    await sandbox.files.write("f", b"kept")
    running = asyncio.create_task(sandbox.exec.run("touch started; exec sleep 60", deadline_ms=50_000))
    while "started" not in (await sandbox.files.list()).names:
        await asyncio.sleep(0.02)
    await asyncio.to_thread(docker, *how.split(), *(["-t", "1"] if how in ("stop", "restart") else []), names(provider)[0])
    with pytest.raises(SandboxLost):
        await asyncio.wait_for(running, 20)
    assert sandbox.lost
    again = await provider.acquire("t-1", POLICY)
    assert (await again.exec.run("cat f")).stdout == "kept"


async def test_a_full_container_is_replaced_once_when_nobody_can_connect(make: Make) -> None:
    policy = SandboxPolicy(network=Deny(), security=Security(pids_limit=32))
    first = make()
    sandbox = await first.acquire("t-1", policy)
    await sandbox.files.write("f", b"kept")
    await sandbox.exec.start("i=0; while [ $i -lt 99 ]; do sleep 60 & i=$((i+1)); done; wait")
    again = await make().acquire("t-1", policy)
    assert (await again.exec.run("cat f")).stdout == "kept"


async def test_death_by_the_memory_limit_is_told(make: Make) -> None:
    sandbox = await make().acquire("t-1", SandboxPolicy(network=Deny(), resources=Resources(memory_mb=128)))
    result = await sandbox.exec.run("python3 -c 'bytearray(500 << 20)' || exit $?")
    assert (result.cause, result.exit_code) == (Cause.OOM, 137)
    assert (await sandbox.exec.run("kill -9 $$")).cause is Cause.SIGNAL


async def test_release_keeps_the_volume_and_destroy_leaves_nothing(make: Make) -> None:
    provider = make()
    await provider.acquire("t-1", POLICY)
    container, volume = names(provider)
    await provider.release("t-1")
    await provider.release("t-1")
    assert container not in docker("ps", "-a", "--format", "{{.Names}}").split()
    assert volume in docker("volume", "ls", "-q").split()
    assert [(record.thread_id, record.running) for record in await provider.list_sandboxes()] == [("t-1", False)]
    await asyncio.gather(provider.destroy("t-1"), provider.destroy("t-1"), provider.release("t-1"))
    assert volume not in docker("volume", "ls", "-q").split()
    assert await provider.list_sandboxes() == []


async def test_a_static_image_without_a_c_library_works(make: Make) -> None:
    sandbox = await make(image=BUSYBOX).acquire("t-1", POLICY)
    result = await sandbox.exec.run("id -u; echo $HOME; touch f; ls")
    assert result.stdout == "1000\n/workspace\nf\n"


async def test_tools_of_developers_leave_the_workspace_clean(make: Make) -> None:
    sandbox = await make().acquire("t-1", POLICY)
    script = "git init -q && echo x > f && git add f && git commit -qm first && python3 -m venv /tmp/v && /tmp/v/bin/python -c 'print(1)'"
    result = await sandbox.exec.run(script, deadline_ms=60_000)
    assert (result.exit_code, result.stdout) == (0, "1\n"), result.stderr
    assert sorted((await sandbox.files.list()).names) == [".git", "f"]


async def test_a_start_that_fails_leaves_no_container_and_the_next_one_works(make: Make) -> None:
    provider = make()
    await provider.acquire("t-0", POLICY)
    mounts = '{{range .Mounts}}{{if eq .Destination "/b4/bin"}}{{.Name}}{{end}}{{end}}'
    guest = docker("inspect", "--format", mounts, names(provider, "t-0")[0])
    await provider.release("t-0")
    await asyncio.to_thread(docker, "volume", "rm", guest)
    with pytest.raises(SandboxUnavailable):
        await provider.acquire("t-1", POLICY)
    assert names(provider)[0] not in docker("ps", "-a", "--format", "{{.Names}}").split()
    assert (await (await provider.acquire("t-1", POLICY)).exec.run("echo works")).stdout == "works\n"


async def test_preflight_tells_what_is_missing(make: Make) -> None:
    good = await make().preflight(POLICY)
    assert good.ok and good.warnings == ()
    for provider, control in [(make(runtime="none-such"), "runtime"), (make(image="localhost:1/none-such:test"), "image")]:
        result = await provider.preflight(POLICY)
        assert [finding.control for finding in result.findings if finding.severity is Severity.ERROR] == [control]
    lost = await make(url="unix:///nonexistent/docker.sock").preflight(POLICY)
    assert [finding.control for finding in lost.findings] == ["engine"]
    with pytest.raises(SandboxUnavailable, match="did not answer"):
        await make(url="unix:///nonexistent/docker.sock").acquire("t-1", POLICY)


@needs_gvisor
async def test_preflight_on_gvisor_warns_only_where_orphans_cannot_be_followed(make: Make) -> None:
    assert (await make(runtime="runsc").preflight(POLICY)).warnings == ()
    as_root = SandboxPolicy(network=Deny(), security=Security(run_as_non_root=False))
    found = await make(runtime="runsc").preflight(as_root)
    assert found.ok
    sandbox = await make(runtime="runsc").acquire("t-1", as_root)
    expected = [] if "subreaper" in sandbox.guest_capabilities else ["process trees"]
    assert [finding.control for finding in found.findings if finding.severity is Severity.WARNING] == expected


@needs_gvisor
async def test_gvisor_counts_processes_inside_and_the_engine_its_own_threads(make: Make) -> None:
    provider = make(runtime="runsc")
    policy = SandboxPolicy(network=Deny(), resources=Resources(memory_mb=256), security=Security(pids_limit=40))
    await provider.acquire("t-1", policy)
    (found,) = json.loads(docker("inspect", names(provider)[0]))
    host = found["HostConfig"]
    assert host["Ulimits"] == [{"Name": "nproc", "Soft": 40, "Hard": 40}]
    assert (host["PidsLimit"], host["Memory"], host["MemorySwap"]) == (40 * 32 + 512, 320 << 20, 320 << 20)


@pytest.mark.parametrize("runtime", [None, pytest.param("runsc", marks=needs_gvisor)])
async def test_the_engines_word_is_enough_to_know_of_a_loss(make: Make, runtime: str | None) -> None:
    provider = make() if runtime is None else make(runtime=runtime)
    sandbox = await provider.acquire("t-1", POLICY)
    await sandbox.exec.run("(setsid sleep 60 &)")
    waiting = asyncio.create_task(sandbox.exec.run("sleep 60", deadline_ms=50_000))
    await asyncio.sleep(0.3)
    await asyncio.to_thread(docker, "kill", names(provider)[0])
    with pytest.raises(SandboxLost, match="exit code 137") as caught:
        await asyncio.wait_for(waiting, 15)
    assert caught.value.cause == "lost"


def test_an_image_must_be_named() -> None:
    with pytest.raises(ConfigurationError, match="image"):
        docker_sandbox(scope="x", image=" ")
