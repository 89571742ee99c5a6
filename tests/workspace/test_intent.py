"""Captured workspaces, staged references, intents and what providers answer: vectors and refusals."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from b4run.errors import WorkspaceInvalid
from b4run.workspace import (
    Binding,
    CapturedWorkspace,
    Environment,
    EnvironmentLink,
    Provenance,
    ReadyWorkspace,
    Retention,
    SourceFile,
    WorkspaceIntent,
    WorkspaceReference,
    captured_workspace,
    create_source_bundle,
    create_workspace_intent,
    staged_reference,
)
from b4run.workspace.intent import read_intent, read_ready

OPERATION = "11111111-1111-4111-8111-111111111111"
INSTALLATION = "22222222-2222-4222-8222-222222222222"
SOURCE = "deedbddc57d3f71a4ba6b2eba2d742007de1b9deb26caf56409e3b54bc1d4b8a"
ENVIRONMENT = Environment(Binding("docker", "my-app", "local"), "sha256:" + "a" * 64)
LINK = EnvironmentLink("node_modules", "/opt/deps/node_modules")
BUNDLE = create_source_bundle([SourceFile("README.md", b"# hi\n"), SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True)])


def intent(**changes: object) -> WorkspaceIntent:
    made: dict[str, object] = {
        "operation_id": OPERATION,
        "installation_id": INSTALLATION,
        "thread_id": "t-1",
        "source_digest": SOURCE,
        "environment": ENVIRONMENT,
        "environment_links": (LINK,),
        "baseline": "git",
    }
    return create_workspace_intent(**(made | changes))  # type: ignore[arg-type]


def test_intent_digests_of_the_specification() -> None:
    assert intent().digest == "fe4c2cd49351015696f92497a351855cea6b12288687c25f66de2cfb0e047b02"
    bare = intent(environment_links=(), baseline=None)
    assert bare.digest == "9163076808673dd8def0e8ac1eabdcc3f1f707fb73f2877bfdc4a9908cf67f73"
    other = intent(
        thread_id="t-00000000",
        source_digest="4c8ecb21d959416a6842fe52b7525359c6cc8e508979afc525a46598ebc807f5",
        environment=Environment(Binding("p", "s", "a"), "sha256:x"),
        environment_links=(EnvironmentLink("deps", "/opt/deps"),),
    )
    assert other.digest == "8343215e6e74b94af5f2a8288353b9a4f4f9ed8eaa9e1c0735d3a66e027ce775"
    for made in (intent(), bare, other):
        assert read_intent(json.loads(json.dumps(made.as_dict()))) == made


@pytest.mark.parametrize(
    "changes",
    [
        {"operation_id": OPERATION.upper().replace("1", "A")},
        {"operation_id": "11111111-1111-9111-8111-111111111111"},
        {"installation_id": "22222222-2222-4222-c222-222222222222"},
        {"installation_id": "x"},
        {"thread_id": "  "},
        {"thread_id": "a\x7f"},
        {"thread_id": "a\ud800"},
        {"thread_id": "a" * 1_025},
        {"source_digest": SOURCE.upper()},
        {"baseline": "svn"},
        {"environment_links": (LINK, EnvironmentLink("a", "/b"))},
        {"environment_links": (LINK, LINK)},
    ],
)
def test_intents_that_are_off(changes: dict[str, object]) -> None:
    with pytest.raises(WorkspaceInvalid):
        intent(**changes)


@pytest.mark.parametrize("identity", ["", " ", "x" * 4_097, "a\nb"])
def test_identities_that_are_off(identity: str) -> None:
    with pytest.raises(WorkspaceInvalid):
        Environment(ENVIRONMENT.binding, identity)
    assert Environment(ENVIRONMENT.binding, "x" * 4_096).identity


@pytest.mark.parametrize("target", ["opt", "/", "//a", "/a/", "/../a", "/a b ", "/" + "a/" * 512 + "a", "/é", "", None])
def test_link_targets_that_are_off(target: str) -> None:
    with pytest.raises(WorkspaceInvalid, match="target"):
        EnvironmentLink("a", target)


@pytest.mark.parametrize("path", ["README.md", "readme.MD", "bin", "bin/run.sh/x", "Bin/x", "a//b"])
def test_links_that_do_not_fit_beside_the_files(path: str) -> None:
    with pytest.raises(WorkspaceInvalid):
        CapturedWorkspace(BUNDLE, (EnvironmentLink(path, "/opt/x"),))


def test_nothing_stands_where_the_baseline_will() -> None:
    for path in (".git", ".git/config", ".GIT"):
        CapturedWorkspace(create_source_bundle([SourceFile(path, b"")]))
        with pytest.raises(WorkspaceInvalid, match="conflicts"):
            CapturedWorkspace(create_source_bundle([SourceFile(path, b"")]), baseline="git")
        with pytest.raises(WorkspaceInvalid, match="conflicts"):
            CapturedWorkspace(BUNDLE, (EnvironmentLink(path, "/x"),), "git")


def test_captured_form() -> None:
    made = CapturedWorkspace(BUNDLE, (LINK, EnvironmentLink("deps", "/opt/deps")), "git")
    body = made.as_dict()
    assert list(body) == ["version", "source", "environmentLinks", "baseline"]
    assert body["environmentLinks"] == [
        {"path": "deps", "target": "/opt/deps"},
        {"path": "node_modules", "target": "/opt/deps/node_modules"},
    ]
    assert captured_workspace(body) == made
    assert "baseline" not in CapturedWorkspace(BUNDLE).as_dict()


@pytest.mark.parametrize(
    "changes", [{"version": 2}, {"x": 1}, {"baseline": "hg"}, {"environmentLinks": {}}, {"environmentLinks": [{"path": "a"}]}]
)
def test_captured_forms_that_are_off(changes: dict[str, object]) -> None:
    with pytest.raises(WorkspaceInvalid):
        captured_workspace(CapturedWorkspace(BUNDLE).as_dict() | changes)
    unsorted = [{"path": "b", "target": "/x"}, {"path": "a", "target": "/x"}]
    with pytest.raises(WorkspaceInvalid, match="order"):
        captured_workspace(CapturedWorkspace(BUNDLE).as_dict() | {"environmentLinks": unsorted})


def test_staged_references() -> None:
    paths = ["README.md", "bin/run.sh"]
    given = {"sourceDigest": SOURCE, "environmentLinks": [{"path": "b", "target": "/x"}, {"path": "a", "target": "/x"}], "baseline": "git"}
    made = staged_reference(given, paths)
    assert made.to_json() == (
        f'{{"sourceDigest":"{SOURCE}","environmentLinks":[{{"path":"a","target":"/x"}},{{"path":"b","target":"/x"}}],"baseline":"git"}}'
    )
    assert staged_reference({"sourceDigest": SOURCE}, paths).to_json() == f'{{"sourceDigest":"{SOURCE}","environmentLinks":[]}}'
    for off in ({}, {"sourceDigest": "x"}, given | {"x": 1}, given | {"environmentLinks": [{"path": "BIN", "target": "/x"}]}):
        with pytest.raises(WorkspaceInvalid):
            staged_reference(off, paths)


def ready(asked: WorkspaceIntent) -> ReadyWorkspace:
    reference = WorkspaceReference.to(asked, {"volume": "b4-sbx-vol-1"})
    return ReadyWorkspace(reference, Provenance(asked.source_digest, asked.environment, "c" * 40 if asked.baseline else None))


def test_what_a_provider_answers_is_held_against_the_intent() -> None:
    asked = intent()
    good = ready(asked)
    assert good.check(asked) is good
    assert read_ready(json.loads(json.dumps(good.as_dict()))) == good
    off = [
        replace(good, reference=replace(good.reference, operation_id=INSTALLATION)),
        replace(good, reference=replace(good.reference, thread_id="t-2")),
        replace(good, reference=replace(good.reference, intent_digest="0" * 64)),
        replace(good, provenance=replace(good.provenance, source_digest="0" * 64)),
        replace(good, provenance=replace(good.provenance, environment=Environment(ENVIRONMENT.binding, "sha256:b"))),
        replace(good, provenance=replace(good.provenance, baseline_commit=None)),
        replace(good, provenance=replace(good.provenance, baseline_commit="c" * 39)),
    ]
    for answer in off:
        with pytest.raises(WorkspaceInvalid):
            answer.check(asked)
    plain = intent(baseline=None)
    with pytest.raises(WorkspaceInvalid):
        replace(ready(plain), provenance=replace(ready(plain).provenance, baseline_commit="c" * 40)).check(plain)


def test_references_are_bounded() -> None:
    asked = intent()
    WorkspaceReference.to(asked, {f"k{number}": "v" for number in range(32)})
    for resource in ({f"k{number}": "v" for number in range(33)}, {"k" * 257: "v"}, {"k": "v" * 16_384}, {"k": 1}):
        with pytest.raises(WorkspaceInvalid):
            WorkspaceReference.to(asked, resource)  # type: ignore[arg-type]


def test_retention() -> None:
    assert Retention().as_dict() == {"filesystem": "until-destroy", "memory": "discarded"}
    expiring = Retention("expires", "2026-12-24T00:00:00Z", "retained")
    assert expiring.as_dict() == {"filesystem": "expires", "expiresAt": "2026-12-24T00:00:00Z", "memory": "retained"}
    for filesystem, expires in (("expires", None), ("until-destroy", "2026-12-24T00:00:00Z"), ("never", None)):
        with pytest.raises(WorkspaceInvalid):
            Retention(filesystem, expires)  # type: ignore[arg-type]
