"""Every field of the manifests: nothing here asks a cluster."""

from __future__ import annotations

import pytest

from b4run.errors import ConfigurationError
from b4run.sandbox.policy import Allow, Deny, Resources, SandboxPolicy, Security, User
from b4run.sandbox.providers.kubernetes import kubernetes_sandbox
from b4run.sandbox.providers.kubernetes.launch import Launch, claim_body, pod_body, policy_body
from b4run.sandbox.providers.kubernetes.names import ThreadNames
from b4run.sandbox.scope import resource_id

NAMES = ThreadNames("scope", "thread/1 ü")
LAUNCH = Launch("image:1")
ID = resource_id("scope", "thread/1 ü")


def container(body, name="sandbox"):
    return next(one for one in body["spec"]["containers"] if one["name"] == name)


def test_names_and_labels_are_the_specified_ones():
    pod = pod_body(NAMES, SandboxPolicy(), LAUNCH)
    claim, policy = claim_body(NAMES, SandboxPolicy(), LAUNCH), policy_body(NAMES, SandboxPolicy(network=Deny()))
    assert [body["metadata"]["name"] for body in (pod, claim, policy)] == [f"b4-sbx-{ID}", f"b4-sbx-vol-{ID}", f"b4-sbx-net-{ID}"]
    for body in (pod, claim, policy):
        labels = body["metadata"]["labels"]
        assert (labels["app.kubernetes.io/managed-by"], labels["b4.run/thread"]) == ("b4", ID)
        assert all(len(value) <= 63 for value in labels.values())
        assert body["metadata"]["annotations"]["b4.run/thread-id"] == '"thread/1 \\u00fc"'


def test_a_pod_is_hardened():
    spec = pod_body(NAMES, SandboxPolicy(), LAUNCH)["spec"]
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"] == {
        "seccompProfile": {"type": "RuntimeDefault"},
        "runAsUser": 1000,
        "runAsGroup": 1000,
        "runAsNonRoot": True,
        "fsGroup": 1000,
        "fsGroupChangePolicy": "OnRootMismatch",
    }
    for name in ("sandbox", "guest"):
        assert container({"spec": spec}, name)["securityContext"] == {
            "privileged": False,
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    mounts = {mount["mountPath"]: mount for mount in container({"spec": spec})["volumeMounts"]}
    assert mounts["/b4/bin"]["readOnly"] is True
    assert set(mounts) == {"/workspace", "/b4/bin", "/tmp", "/run", "/b4/home"}
    assert {volume["name"]: volume for volume in spec["volumes"]}["workspace"]["persistentVolumeClaim"] == {"claimName": f"b4-sbx-vol-{ID}"}
    assert "runtimeClassName" not in spec


def test_each_security_setting_can_be_overridden():
    security = Security(drop_all_capabilities=False, no_new_privileges=False, read_only_root_filesystem=False, run_as_non_root=False)
    body = pod_body(NAMES, SandboxPolicy(security=security), LAUNCH)
    assert body["spec"]["securityContext"] == {"seccompProfile": {"type": "RuntimeDefault"}}
    context = container(body)["securityContext"]
    assert context == {"privileged": False, "allowPrivilegeEscalation": True, "readOnlyRootFilesystem": False}
    user = pod_body(NAMES, SandboxPolicy(security=Security(run_as_non_root=User(uid=7, gid=8))), LAUNCH)["spec"]["securityContext"]
    assert (user["runAsUser"], user["runAsGroup"], user["fsGroup"], user["runAsNonRoot"]) == (7, 8, 8, True)
    root = pod_body(NAMES, SandboxPolicy(security=Security(run_as_non_root=User(uid=0, gid=0))), LAUNCH)["spec"]["securityContext"]
    assert root["runAsNonRoot"] is False


def test_limits_and_classes():
    policy = SandboxPolicy(resources=Resources(memory_mb=512, cpus=0.25, disk_gb=3))
    body = pod_body(NAMES, policy, Launch("image:1", runtime_class="gvisor"))
    assert container(body)["resources"] == {"limits": {"memory": "512Mi", "cpu": "250m"}}
    assert body["spec"]["runtimeClassName"] == "gvisor"
    assert {volume["name"]: volume for volume in body["spec"]["volumes"]}["tmp"]["emptyDir"] == {
        "medium": "Memory",
        "sizeLimit": str(256 * 1024 * 1024),
    }
    claim = claim_body(NAMES, policy, Launch("image:1", storage_class="fast"))["spec"]
    assert claim == {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3072Mi"}}, "storageClassName": "fast"}
    half = claim_body(NAMES, SandboxPolicy(resources=Resources(disk_gb=0.5)), LAUNCH)["spec"]
    assert half["resources"]["requests"]["storage"] == "512Mi"
    assert claim_body(NAMES, SandboxPolicy(), LAUNCH)["spec"]["resources"]["requests"]["storage"] == "1024Mi"
    assert "storageClassName" not in claim_body(NAMES, SandboxPolicy(), LAUNCH)["spec"]


def test_an_image_that_brings_the_guest():
    body = pod_body(NAMES, SandboxPolicy(), Launch("image:1", guest_image="guest:1"))
    assert (container(body, "guest")["image"], container(body, "guest")["command"]) == (
        "guest:1",
        ["/b4-guest", "install", "/b4/bin/b4-guest"],
    )
    assert container(body)["image"] == "image:1"


def test_networks():
    closed = policy_body(NAMES, SandboxPolicy(network=Deny()))["spec"]
    assert closed == {
        "podSelector": {"matchLabels": {"b4.run/thread": ID}},
        "policyTypes": ["Ingress", "Egress"],
        "ingress": [],
        "egress": [],
    }
    dns, listed = policy_body(NAMES, SandboxPolicy(network=Deny(allowlist=("10.0.0.0/8", "2001:db8::/32"))))["spec"]["egress"]
    assert dns["ports"] == [{"protocol": "UDP", "port": 53}, {"protocol": "TCP", "port": 53}]
    assert listed == {"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}}, {"ipBlock": {"cidr": "2001:db8::/32"}}]}
    assert policy_body(NAMES, SandboxPolicy(network=Allow())) is None
    (rule,) = policy_body(NAMES, SandboxPolicy(network=Allow(denylist=("10.0.0.0/8", "fd00::/8"))))["spec"]["egress"]
    assert rule == {
        "to": [
            {"ipBlock": {"cidr": "0.0.0.0/0", "except": ["10.0.0.0/8"]}},
            {"ipBlock": {"cidr": "::/0", "except": ["fd00::/8"]}},
        ]
    }
    assert "--closed-to" in container(pod_body(NAMES, SandboxPolicy(network=Deny()), LAUNCH))["command"][2]
    assert "--closed-to" not in container(pod_body(NAMES, SandboxPolicy(network=Allow()), LAUNCH))["command"][2]


def test_the_identity_follows_launch_settings_and_nothing_else():
    def identity(policy=None, launch=LAUNCH):
        return pod_body(NAMES, policy or SandboxPolicy(), launch)["metadata"]["annotations"]["b4.run/identity"]

    same = identity()
    assert identity(SandboxPolicy(env={"A": "1"})) == same
    assert identity(SandboxPolicy(resources=Resources(timeout_ms=1_000))) == same
    others = [
        identity(SandboxPolicy(network=Deny())),
        identity(SandboxPolicy(network=Deny(allowlist=("10.0.0.0/8",)))),
        identity(SandboxPolicy(network=Allow(denylist=("10.0.0.0/8",)))),
        identity(SandboxPolicy(resources=Resources(memory_mb=64))),
        identity(launch=Launch("image:2")),
        identity(launch=Launch("image:1", runtime_class="gvisor")),
    ]
    assert len({same, *others}) == 1 + len(others)


@pytest.mark.parametrize(
    "options",
    [
        {"image": " "},
        {"namespace": ""},
        {"storage_class": ""},
        {"runtime_class": " "},
        {"guest_image": ""},
        {"startup_timeout_ms": 999},
        {"startup_timeout_ms": 3_600_001},
        {"startup_timeout_ms": True},
        {"scope": " "},
    ],
)
def test_options_are_checked(options):
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        kubernetes_sandbox(**{"scope": "s", "image": "i"} | options)
