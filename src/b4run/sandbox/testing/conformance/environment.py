"""What commands find: a usable home for tools, nothing of the host, and the policy's hardening."""

from __future__ import annotations

import os
from unittest import mock

from b4run.errors import SandboxLost
from b4run.sandbox.contract import Capability, Cause
from b4run.sandbox.environment import sandbox_environment
from b4run.sandbox.policy import Deny, Resources, SandboxPolicy
from b4run.sandbox.testing.trial import Trial, case, contents, sh

EXEC = (Capability.EXEC,)


@case("T107", "T109", needs=EXEC)
async def nothing_of_the_hosts_environment_enters(trial: Trial) -> None:
    with mock.patch.dict(os.environ, {"B4_CONFORMANCE_SECRET": "swordfish"}):
        sandbox = await trial.sandbox()
        seen = (await sandbox.exec.run("env; cat /proc/1/environ /proc/[0-9]*/environ 2>/dev/null")).out.data
    assert b"swordfish" not in seen
    names = {line.partition("=")[0] for line in (await sh(sandbox, "env")).splitlines()}
    assert names <= {*sandbox_environment(), "PWD", "SHLVL", "_", "OLDPWD"}


@case("T69", "T120", needs=EXEC)
async def tools_find_home_caches_and_locale(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    assert await sh(sandbox, 'printf "%s %s %s %s" "$HOME" "$LANG" "$TERM" "$PAGER"') == "/workspace C.UTF-8 dumb cat"
    for variable in ("TMPDIR", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "PYTHONUSERBASE", "npm_config_cache", "CARGO_HOME"):
        made = f'mkdir -p "${variable}/x" && printf "#!/bin/sh\\necho ran\\n" > "${variable}/x/y" && chmod 755 "${variable}/x/y"'
        assert await sh(sandbox, f'{made} && "${variable}/x/y"') == "ran", variable
    assert await contents(sandbox) == []


@case("T69", needs=EXEC)
async def user_installs_are_on_the_path(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sh(sandbox, 'mkdir -p "$PYTHONUSERBASE/bin" && printf "#!/bin/sh\\necho tool\\n" > "$PYTHONUSERBASE/bin/mytool"')
    assert await sh(sandbox, 'chmod +x "$PYTHONUSERBASE/bin/mytool" && mytool') == "tool"


@case(needs=EXEC)
async def commands_run_without_privilege(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    status = await sh(sandbox, "cat /proc/self/status")
    fields = {key: value.strip() for key, _, value in (line.partition(":") for line in status.splitlines())}
    assert fields["Uid"].split()[0] == "1000"
    assert fields["Gid"].split()[0] == "1000"
    # Kernels of sandboxes may not list the ambient set and this flag.
    assert {fields.get(name, "0" * 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")} == {"0" * 16}
    assert {"CapEff", "CapPrm", "CapInh"} <= fields.keys()
    assert fields.get("NoNewPrivs", "1") == "1"


@case(needs=EXEC)
async def root_file_system_is_read_only(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for path in ("/b4-x", "/usr/b4-x", "/etc/b4-x", "/usr/bin/b4-x"):
        assert await sh(sandbox, f"(: > {path}) 2>/dev/null && echo written || echo refused") == "refused"
    for path in ("/tmp/x", "/run/x", "/workspace/x"):
        assert await sh(sandbox, f"(: > {path}) && echo written") == "written"


@case("T91", needs=EXEC)
async def only_the_sandboxs_processes_are_seen(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    count = int(await sh(sandbox, "set -- /proc/[0-9]*; echo $#"))
    assert count < 20
    assert await sh(sandbox, f"kill -0 {os.getpid()} 2>/dev/null && cat /proc/{os.getpid()}/comm || echo none") == "none"


@case(needs=EXEC)
async def no_descriptor_leaks_into_commands(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    # The shell looks at its own descriptors and opens none for that.
    listed = await sh(sandbox, "n=0; while [ $n -lt 100 ]; do [ -e /proc/$$/fd/$n ] && echo $n; n=$((n+1)); done; true")
    assert listed.split() == ["0", "1", "2"]


@case(needs=(Capability.EXEC, Capability.NETWORK_ABSENT))
async def denied_network_has_no_way_out(trial: Trial) -> None:
    sandbox = await trial.sandbox(SandboxPolicy(network=Deny()))
    interfaces = await sh(sandbox, "tail -n +3 /proc/net/dev | sed 's/:.*//; s/ //g'")
    assert set(interfaces.split()) <= {"lo"}
    assert await sh(sandbox, "tail -n +2 /proc/net/route") == ""


@case("T88", "T124", needs=(Capability.EXEC, Capability.MEMORY_LIMIT), limit_s=120)
async def memory_limit_holds_and_the_thread_goes_on(trial: Trial) -> None:
    thread = trial.thread()
    policy = SandboxPolicy(resources=Resources(memory_mb=96))
    sandbox = await trial.sandbox(policy, thread)
    await sandbox.files.write("a", b"kept")
    try:
        result = await sandbox.exec.run("x=x; while :; do x=$x$x; done", deadline_ms=60_000)
    except SandboxLost as lost:
        assert (lost.cause, "96 MiB" in lost.message) == ("oom", True)
        sandbox = await trial.sandbox(policy, thread)
    else:
        assert result.exit_code != 0
    assert (await sandbox.exec.run("cat a")).stdout == "kept"


@case("T88", needs=(Capability.EXEC, Capability.MEMORY_LIMIT, Capability.MEMORY_SPARES_SANDBOX), limit_s=120)
async def memory_limit_ends_the_command_alone(trial: Trial) -> None:
    sandbox = await trial.sandbox(SandboxPolicy(resources=Resources(memory_mb=96)))
    result = await sandbox.exec.run("x=x; while :; do x=$x$x; done", deadline_ms=60_000)
    assert result.cause in {Cause.OOM, Cause.SIGNAL, Cause.EXIT}
    assert result.exit_code != 0
    assert not sandbox.lost
    assert (await sandbox.exec.run("echo works")).stdout == "works\n"


@case("T88", "T124", needs=(Capability.EXEC, Capability.MEMORY_LIMIT, Capability.OOM_CAUSE), limit_s=120)
async def death_by_memory_limit_is_told(trial: Trial) -> None:
    sandbox = await trial.sandbox(SandboxPolicy(resources=Resources(memory_mb=96)))
    result = await sandbox.exec.run("x=x; while :; do x=$x$x; done", deadline_ms=60_000)
    assert (result.cause, result.exit_code, result.signal) == (Cause.OOM, 137, 9)
    assert (await sandbox.exec.run("kill -9 $$")).cause is Cause.SIGNAL
