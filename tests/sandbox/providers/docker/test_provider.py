"""What happens to containers and volumes: loss, restart, replacement, removal."""

from __future__ import annotations

import asyncio
import io
import json
import os
import shlex
import subprocess
import sys
import tarfile
import uuid

import pytest

from b4run.errors import CommandRefused, ConfigurationError, ImageRefused, PolicyConflict, SandboxLost, SandboxUnavailable
from b4run.sandbox.contract import Cause, Severity
from b4run.sandbox.policy import Deny, Resources, SandboxPolicy, Security
from b4run.sandbox.providers.docker import DockerProvider, docker_sandbox
from b4run.sandbox.scope import resource_id

from ...docker_engine import BUSYBOX, IMAGE, docker, needs_docker, needs_gvisor
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
    for options in ({}, {"image": " "}, {"image": ""}, {"images": "python"}):
        with pytest.raises(ConfigurationError, match="image"):
            docker_sandbox(scope="x", **options)  # type: ignore[arg-type]


async def test_images_that_threads_may_name_are_decided_before_the_engine_is_asked() -> None:
    asked: list[str] = []

    def images(reference: str) -> bool:
        asked.append(reference)
        return reference.startswith("good/")

    nowhere = "unix:///nonexistent/docker.sock"
    provider = docker_sandbox(scope="x", image="own", images=images, url=nowhere)
    with pytest.raises(ImageRefused, match="does not admit"):
        await provider.resolve_image_environment("bad/image")
    for reference in ("", "-option", "a b", "x" * 513, "good/\n"):
        with pytest.raises(ImageRefused, match="not an image reference"):
            await provider.resolve_image_environment(reference)
    for reference in ("good/image:1", "own"):
        with pytest.raises(ImageRefused, match="did not answer"):
            await provider.resolve_image_environment(reference)
    assert asked == ["bad/image", "good/image:1"]
    with pytest.raises(ImageRefused, match="no `images`"):
        await docker_sandbox(scope="x", image="own", url=nowhere).resolve_image_environment("other")
    truthy = docker_sandbox(scope="x", images=lambda _: "yes", url=nowhere)  # type: ignore[arg-type, return-value]
    with pytest.raises(ImageRefused, match="does not admit"):
        await truthy.resolve_image_environment("other")
    with pytest.raises(SandboxUnavailable, match="names none"):
        await truthy.acquire("t-1", POLICY)
    await asyncio.gather(provider.aclose(), truthy.aclose())


async def test_an_image_resolves_to_its_immutable_identity(make: Make) -> None:
    identity = docker("image", "inspect", "--format", "{{.Id}}", BUSYBOX)
    environment = await make(images=lambda reference: reference == BUSYBOX).resolve_image_environment(BUSYBOX)
    assert (environment.identity, environment.binding.provider) == (identity, "docker")


async def test_an_image_without_a_shell_is_refused_clearly(make: Make) -> None:
    tag = f"b4.local/empty:{uuid.uuid4().hex[:8]}"
    empty = io.BytesIO()
    tarfile.open(fileobj=empty, mode="w").close()
    await asyncio.to_thread(
        subprocess.run, ["docker", "import", "-", tag], input=empty.getvalue(), check=True, capture_output=True, timeout=60
    )
    try:
        provider = make(image=tag)
        found = await provider.preflight(POLICY)
        assert [finding.control for finding in found.findings if finding.severity is Severity.ERROR] == ["trial"]
        assert "/bin/sh" in found.detail
        with pytest.raises(CommandRefused, match="/bin/sh"):
            await (await provider.acquire("t-1", POLICY)).exec.run("true")
        await provider.destroy("t-1")
    finally:
        await asyncio.to_thread(docker, "rmi", "-f", tag)


async def test_prune_removes_what_nobody_uses_and_nothing_else(make: Make) -> None:
    provider = make()
    sandbox = await provider.acquire("t-1", POLICY)
    await sandbox.files.write("f", b"kept")
    await provider.acquire("t-2", POLICY)
    await provider.release("t-2")
    reader = await provider.open_workspace_reader("t-1")
    scope = provider._scope
    labels = ["--label", f"b4.sandbox.scope={scope}", "--label", "b4.sandbox=deadbeef"]
    orphan, old_guest = f"b4-sbx-{scope}", f"b4-guest-{scope}"
    docker("create", "--name", orphan, *labels, BUSYBOX, "true")
    docker("volume", "create", "--label", "b4.guest=old", old_guest)
    base = docker("commit", "--change", f"LABEL base={scope}", orphan)
    derived = docker("commit", "--change", f"LABEL b4.sandbox.owned-image={base}", orphan)
    docker("rmi", "-f", base)
    removed = {(leftover.kind, leftover.name) for leftover in await provider.prune()}
    assert {("container", orphan), ("guest", old_guest), ("image", derived)} <= removed
    assert not any(kind == "reader" for kind, _ in removed)
    assert (await reader.read("f")).data == b"kept"
    await reader.aclose()
    assert not sandbox.lost
    assert {record.thread_id for record in await provider.list_sandboxes()} == {"t-1", "t-2"}
    assert {("container", orphan), ("guest", old_guest), ("image", derived)}.isdisjoint(
        (leftover.kind, leftover.name) for leftover in await provider.prune()
    )


async def test_a_dead_servers_containers_are_found_again(make: Make) -> None:
    script = (
        "import asyncio, os, signal, sys\n"
        "from b4run.sandbox import Deny, SandboxPolicy, docker_sandbox\n"
        "async def main():\n"
        "    provider = docker_sandbox(scope=sys.argv[1], image=sys.argv[2])\n"
        "    sandbox = await provider.acquire('t-1', SandboxPolicy(network=Deny()))\n"
        "    await sandbox.files.write('f', b'kept')\n"
        "    await sandbox.exec.start('sleep 300')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "asyncio.run(main())\n"
    )
    provider = make()
    died = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script, provider._scope, IMAGE], timeout=60)
    assert died.returncode == -9
    assert [(record.thread_id, record.running) for record in await provider.list_sandboxes()] == [("t-1", True)]
    again = await provider.acquire("t-1", POLICY)
    assert (await again.files.read("f")).data == b"kept"
    assert [info.command for info in await again.exec.jobs() if info.alive] == ["sleep 300"]


@pytest.mark.skipif(
    not os.environ.get("B4_TEST_DOCKER_RESTART") and not os.environ.get("B4_TEST_SMOKE_E2E"),
    reason="B4_TEST_DOCKER_RESTART names no command that restarts the engine",
)
async def test_a_restarted_engine_is_told_and_recovered_from(make: Make) -> None:
    provider = make()
    sandbox = await provider.acquire("t-1", POLICY)
    await sandbox.files.write("f", b"kept")
    waiting = asyncio.create_task(sandbox.exec.run("sleep 60", deadline_ms=50_000))
    await asyncio.sleep(0.3)
    restart = shlex.split(os.environ["B4_TEST_DOCKER_RESTART"])
    await asyncio.to_thread(subprocess.run, restart, check=True, capture_output=True, timeout=120)
    with pytest.raises(SandboxLost):
        await asyncio.wait_for(waiting, 30)
    again = await provider.acquire("t-1", POLICY)
    assert (await again.files.read("f")).data == b"kept"
    second = await provider.acquire("t-2", POLICY)
    await asyncio.to_thread(docker, "kill", names(provider, "t-2")[0])
    async with asyncio.timeout(15):
        while not second.lost:
            await asyncio.sleep(0.05)


async def test_a_hundred_threads_at_once_lose_nothing_and_leave_nothing(make: Make) -> None:
    provider = make()
    before = len(os.listdir("/proc/self/fd"))

    async def one(number: int) -> None:
        sandbox = await provider.acquire(f"t-{number}", POLICY)
        assert (await sandbox.exec.run(f"echo {number} | tee f")).stdout == f"{number}\n"

    async with asyncio.timeout(300):
        await asyncio.gather(*(one(number) for number in range(100)))
        await asyncio.gather(*(provider.destroy(f"t-{number}") for number in range(100)))
    assert await provider.list_sandboxes() == []
    assert docker("ps", "-aq", "--filter", f"label=b4.sandbox.scope={provider._scope}") == ""
    await provider.aclose()
    assert len(os.listdir("/proc/self/fd")) <= before
