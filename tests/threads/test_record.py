"""A thread's recorded settings: the canonical text, strict reading, and how they meet the app's."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from b4run.config import (
    Allow,
    Deny,
    Resources,
    Rules,
    ThreadPermissions,
    ThreadPolicy,
    ThreadSandbox,
    WorkspaceDefinition,
    WorkspaceSource,
)
from b4run.errors import WorkspaceInvalid, WorkspaceUnusable
from b4run.permissions import Key
from b4run.sandbox.policy import SandboxPolicy, Security
from b4run.threads.record import merged_policy, read_record, write_record

WORKSPACE = WorkspaceDefinition(source=WorkspaceSource(directory=".", include=("a",)))


def sandbox(**changes: object) -> ThreadSandbox:
    return ThreadSandbox(workspace=WORKSPACE, **changes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({}, '{"version":1}'),
        (
            {"image": "x:1", "policy": ThreadPolicy(env={"B": "2", "A": "1"}, resources=Resources(memory_mb=1))},
            '{"version":1,"image":"x:1","policy":{"env":{"A":"1","B":"2"},"resources":{"memoryMb":1}}}',
        ),
        ({"policy": ThreadPolicy()}, '{"version":1}'),
        (
            {"policy": ThreadPolicy(network=Deny(), resources=Resources(timeout_ms=5, cpus=2.0, memory_mb=7))},
            '{"version":1,"policy":{"network":{"mode":"deny"},"resources":{"memoryMb":7,"cpus":2,"timeoutMs":5}}}',
        ),
        ({"policy": ThreadPolicy(env={})}, '{"version":1,"policy":{"env":{}}}'),
        (
            {"permissions": ThreadPermissions(allow=Rules(readFile=("/etc",), bash=("npm test", "ls")), deny=Rules(tool=("x",)))},
            '{"version":1,"permissions":{"allow":{"bash":["npm test","ls"],"readFile":["/etc"]},"deny":{"tool":["x"]}}}',
        ),
        ({"policy": ThreadPolicy(env={"A": 'é\u2028"'})}, '{"version":1,"policy":{"env":{"A":"é\u2028\\""}}}'),
    ],
)
def test_the_canonical_text(settings: dict[str, object], text: str) -> None:
    made = sandbox(**settings)
    assert write_record(made) == text
    record = read_record(text)
    assert record.image == made.image
    assert (record.policy or ThreadPolicy()) == (made.policy or ThreadPolicy())
    if made.permissions is not None:
        assert record.rules is not None
        assert record.rules.allow.of(Key.BASH) == made.permissions.allow.bash


@pytest.mark.parametrize(
    ("cpus", "text"),
    [(0.5, "0.5"), (1.0, "1"), (0.00001, "0.00001"), (0.000001, "0.000001"), (1e-7, "1e-7"), (1.5e-7, "1.5e-7"), (1e21, "1e+21")],
)
def test_numbers_are_spelled_as_javascript_spells_them(cpus: float, text: str) -> None:
    written = write_record(sandbox(policy=ThreadPolicy(resources=Resources(cpus=cpus))))
    assert written == f'{{"version":1,"policy":{{"resources":{{"cpus":{text}}}}}}}'
    policy = read_record(written).policy
    assert policy is not None and policy.resources is not None and policy.resources.cpus == cpus


@pytest.mark.parametrize(
    "make",
    [
        lambda: ThreadPolicy(network=Deny(allowlist=("10.0.0.0/8",))),
        lambda: ThreadPolicy(network=Allow(denylist=("x",))),
        lambda: ThreadPolicy(resources=Resources(disk_gb=1.0)),
        lambda: ThreadPolicy(security=Security()),  # type: ignore[call-arg]
        lambda: sandbox(image="/x"),
        lambda: sandbox(image="x y"),
        lambda: sandbox(image="x" * 513),
        lambda: sandbox(image=""),
        lambda: sandbox(other=1),
        lambda: ThreadSandbox(workspace={"source": {}}),
        lambda: ThreadPermissions(allow=Rules(bash=("",))),
        lambda: ThreadPermissions(deny=Rules(tool=("a\0b",))),
    ],
)
def test_what_a_resolver_may_not_answer(make: object) -> None:
    with pytest.raises(ValidationError):
        make()  # type: ignore[operator]


def test_a_record_is_bounded() -> None:
    env = {f"N{number}": "x" * 32_768 for number in range(8)}
    with pytest.raises(WorkspaceInvalid, match="262,144"):
        write_record(sandbox(policy=ThreadPolicy(env=env)))


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"version": 1, "x": 1},
        {"version": 1, "policy": {"x": 1}},
        {"version": 1, "policy": {"network": {"mode": "deny", "allowlist": []}}},
        {"version": 1, "policy": {"network": "deny"}},
        {"version": 1, "policy": {"resources": {"disk_gb": 1}}},
        {"version": 1, "permissions": {"allow": {"nope": []}}},
        {"version": 1, "permissions": []},
        {"version": 2},
        {"version": True},
        {"version": 1, "image": 5},
        {"version": 1, "policy": {"resources": {"cpus": "1"}}},
    ],
)
def test_a_record_that_is_not_as_it_was_written_is_refused(body: object) -> None:
    with pytest.raises(WorkspaceInvalid):
        read_record(json.dumps(body))


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 1}',
        '{"version":1,"policy":{}}',
        '{"version":1,"policy":{"env":{"B":"2","A":"1"}}}',
        '{"version":1,"policy":{"resources":{"cpus":2.0}}}',
        '{"version":1,"image":"\\u0078"}',
        '{"version":1,"permissions":{"allow":{}}}',
    ],
)
def test_a_record_is_canonical_or_refused(text: str) -> None:
    with pytest.raises(WorkspaceInvalid, match="written"):
        read_record(text)


def test_the_threads_settings_go_over_the_apps() -> None:
    app = SandboxPolicy(
        network=Allow(), env={"A": "1", "B": "2"}, resources=Resources(memory_mb=512, cpus=2.0), security=Security(pids_limit=9)
    )
    thread = ThreadPolicy(network=Deny(), env={"C": "3"}, resources=Resources(memory_mb=64, timeout_ms=5))
    merged = merged_policy("t", app, thread)
    assert merged == SandboxPolicy(
        network=Deny(), env={"C": "3"}, resources=Resources(memory_mb=64, cpus=2.0, timeout_ms=5), security=Security(pids_limit=9)
    )
    assert merged_policy("t", app, None) is app
    assert merged_policy("t", app, ThreadPolicy()) == app
    assert merged_policy("t", app, ThreadPolicy(env={})).env == {}


def test_a_thread_keeps_or_narrows_the_network() -> None:
    closed, listed = SandboxPolicy(network=Deny(allowlist=("10.0.0.0/8",))), SandboxPolicy(network=Allow(denylist=("x",)))
    assert merged_policy("t", closed, ThreadPolicy(network=Deny())).network is closed.network
    assert merged_policy("t", listed, ThreadPolicy(network=Allow())).network is listed.network
    with pytest.raises(WorkspaceUnusable, match="denies") as refusal:
        merged_policy("t", closed, ThreadPolicy(network=Allow()))
    assert refusal.value.lifecycle == "unsupported"
