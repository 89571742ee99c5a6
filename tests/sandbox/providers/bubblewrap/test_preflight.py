"""What preflight concludes from what it reads and from what a trial saw."""

from __future__ import annotations

import pytest

from b4run.sandbox.contract import Capability, Preflight, Severity
from b4run.sandbox.policy import Allow, Deny, Resources, SandboxPolicy, Security, User
from b4run.sandbox.providers.bubblewrap import controls
from b4run.sandbox.providers.bubblewrap.preflight import diagnose, judge

NAMESPACES = ("cgroup", "ipc", "mnt", "net", "pid", "user", "uts")
HOST = {kind: f"{kind}:[1]" for kind in NAMESPACES}
GOOD = {
    "Uid:": "1000 1000 1000 1000", "Gid:": "1000 1000 1000 1000", "NoNewPrivs:": "1", "Seccomp:": "2",
    **dict.fromkeys(("CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"), "0000000000000000"),
    **{f"ns.{kind}": f"{kind}:[2]" for kind in NAMESPACES},
    "root": "read-only", "usr": "read-only", "shadow": "hidden", "interface.lo:": "",
}  # fmt: skip
DENY = SandboxPolicy(network=Deny())


def failed(facts: dict[str, str], policy: SandboxPolicy = DENY) -> list[str]:
    return [finding.control for finding in judge(facts, policy, HOST) if finding.severity is not Severity.OK]


def test_a_trial_that_saw_what_was_asked_for_passes():
    assert failed(GOOD) == []


@pytest.mark.parametrize(
    ("seen", "control"),
    [
        ({"ns.net": "net:[1]"}, "namespaces"),
        ({"ns.user": "user:[1]"}, "namespaces"),
        ({"Uid:": "0 0 0 0"}, "user"),
        ({"CapEff:": "0000000000000400"}, "capabilities"),
        ({"CapBnd:": "000001ffffffffff"}, "capabilities"),
        ({"NoNewPrivs:": "0"}, "no new privileges"),
        ({"Seccomp:": "0"}, "seccomp"),
        ({"root": "writable"}, "root file system"),
        ({"usr": "writable"}, "root file system"),
        ({"shadow": "readable"}, "host secrets"),
        ({"interface.eth0:": ""}, "network"),
    ],
)
def test_each_control_that_did_not_hold_is_an_error(seen, control):
    assert failed(GOOD | seen) == [control]


def test_a_trial_that_saw_nothing_fails_everywhere():
    controls_failed = failed({})
    assert {"namespaces", "user", "capabilities", "seccomp", "root file system", "host secrets", "network"} <= set(controls_failed)


def test_what_was_asked_for_is_what_is_judged():
    policy = SandboxPolicy(network=Allow(), security=Security(read_only_root_filesystem=False, run_as_non_root=User(uid=7, gid=8)))
    seen = GOOD | {"Uid:": "7 7 7 7", "Gid:": "8 8 8 8", "root": "writable", "interface.eth0:": ""}
    assert failed(seen, policy) == []
    assert failed(GOOD, policy) == ["user", "root file system", "network"]


REFUSAL = "bwrap: Creating new namespace failed: Operation not permitted"


@pytest.mark.parametrize(
    ("files", "reason", "layer", "remedy"),
    [
        ({"/proc/sys/kernel/unprivileged_userns_clone": "0"}, REFUSAL, "kernel.unprivileged_userns_clone", "sysctl -w"),
        ({"/proc/sys/user/max_user_namespaces": "0"}, "bwrap: No space left on device", "user.max_user_namespaces", "sysctl -w"),
        (
            {"/proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"},
            "bwrap: setting up uid map: Permission denied",
            "AppArmor",
            "userns,",
        ),
        ({"/proc/self/status": "Name:\tx\nSeccomp:\t2\n"}, REFUSAL, "seccomp filter of the container", "seccomp profile"),
        ({}, "bwrap: Can't mount proc on /newroot/proc: Operation not permitted", "masked /proc", "systempaths=unconfined"),
    ],
)
def test_the_layer_that_refuses_is_named_with_its_remedy(files, reason, layer, remedy):
    finding = diagnose(reason, files.get)
    assert finding.severity is Severity.ERROR
    assert layer in finding.detail
    assert reason in finding.detail
    assert remedy in finding.remedy


def test_another_failure_is_not_blamed_on_a_layer():
    finding = diagnose("bwrap: Can't find source path", {"/proc/sys/user/max_user_namespaces": "0"}.get)
    assert finding.control == "trial"


def refused(policy: SandboxPolicy, pasta: str | None = "/usr/bin/pasta") -> list[str]:
    return [finding.control for finding in controls.refusals(policy, pasta)]


@pytest.mark.parametrize(
    ("policy", "control"),
    [
        (SandboxPolicy(network=Deny(), security=Security(drop_all_capabilities=False)), "capabilities"),
        (SandboxPolicy(network=Deny(), security=Security(no_new_privileges=False)), "no new privileges"),
        (SandboxPolicy(network=Deny(), resources=Resources(disk_gb=1)), "disk limit"),
    ],
)
def test_a_control_that_cannot_be_given_is_refused(policy, control):
    assert refused(policy) == [control]
    assert refused(DENY) == []


def test_an_open_network_without_pasta_is_refused_with_the_remedy():
    (finding,) = controls.refusals(SandboxPolicy(network=Allow()), None)
    assert "host's own network is never shared" in finding.detail
    assert "passt" in finding.remedy
    assert Capability.NETWORK_ALLOW not in controls.capabilities({}, None)


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (SandboxPolicy(network=Deny(allowlist=("10.0.0.0/8",))), "allowlist is not enforced: nothing can be reached"),
        (SandboxPolicy(network=Allow(denylist=("10.0.0.0/8",))), "denylist is not enforced"),
        (SandboxPolicy(network=Allow()), "metadata service"),
        (SandboxPolicy(network=Deny(), resources=Resources(memory_mb=64)), "memory limit: it holds for each process"),
        (SandboxPolicy(network=Deny(), resources=Resources(cpus=1)), "cpu limit: it is not enforced"),
    ],
)
def test_what_is_weaker_than_its_name_is_a_warning(policy, words):
    result = Preflight(tuple(controls.warnings(policy, {})))
    assert result.ok
    assert any(words in warning for warning in result.warnings)


def test_capabilities_say_what_control_groups_give():
    assert Capability.MEMORY_LIMIT not in controls.capabilities({}, None)
    assert {Capability.EXEC, Capability.NETWORK_DENY, Capability.PERSISTENT} <= controls.capabilities({}, None)
    assert Capability.DISK_LIMIT not in controls.capabilities({}, None)
