"""Telling before the first command what a cluster allows and enforces for a policy."""

from __future__ import annotations

import asyncio
from typing import Final

from b4run.sandbox.contract import Finding, Preflight, Severity
from b4run.sandbox.policy import Deny, SandboxPolicy
from b4run.sandbox.providers.kubernetes import controls
from b4run.sandbox.providers.kubernetes.cluster import Cluster, ClusterRefused, ClusterUnreachable
from b4run.sandbox.providers.trial import TrialProvider, run_trial

NEEDED: Final = {
    ("", "pods"): ("create", "get", "list", "watch", "delete"),
    ("", "pods/exec"): ("create", "get"),
    ("", "persistentvolumeclaims"): ("create", "get", "list", "patch", "delete"),
    ("networking.k8s.io", "networkpolicies"): ("create", "get", "list", "update", "delete"),
}
"""What the provider does, by API group and resource: a Role needs this and nothing more."""


async def examine(provider: TrialProvider, cluster: Cluster, policy: SandboxPolicy) -> Preflight:
    """Return what `policy` meets on this cluster. A trial is started only when nothing already forbids it."""
    findings: list[Finding] = []
    try:
        findings.append(await _server(cluster))
        findings.append(await _permissions(cluster))
        findings += [*controls.refusals(policy), *controls.warnings(policy)]
        if Preflight(tuple(findings)).ok:
            findings += await _trial(provider, policy)
    except ClusterUnreachable as error:
        findings.append(Finding("cluster", Severity.ERROR, error.message, error.remedy))
    except ClusterRefused as error:
        findings.append(Finding("cluster", Severity.ERROR, error.message, "Check the credentials: the API server knows them, and refuses."))
    return Preflight(tuple(findings))


async def _server(cluster: Cluster) -> Finding:
    version = await cluster.call("tell its version", "GET", "/version")
    return Finding("cluster", Severity.OK, f"Kubernetes {version.get('gitVersion')}, namespace {cluster.namespace}")


async def _permissions(cluster: Cluster) -> Finding:
    asked = [(group, resource, verb) for (group, resource), verbs in NEEDED.items() for verb in verbs]
    allowed = await asyncio.gather(*(_may(cluster, *one) for one in asked))
    denied = [f"{verb} {resource}" for (_, resource, verb), may in zip(asked, allowed, strict=True) if not may]
    if not denied:
        return Finding("permissions", Severity.OK, f"all {len(asked)} that are needed")
    remedy = "Bind a Role that allows them to who runs the app: `kubectl create role` and `kubectl create rolebinding`."
    return Finding("permissions", Severity.ERROR, f"denied in namespace {cluster.namespace}: {', '.join(denied)}", remedy)


async def _may(cluster: Cluster, group: str, resource: str, verb: str) -> bool:
    kind, _, part = resource.partition("/")
    attributes = {"namespace": cluster.namespace, "group": group, "resource": kind, "verb": verb} | ({"subresource": part} if part else {})
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview", "spec": {"resourceAttributes": attributes}}
    answer = await cluster.call("review access", "POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body=body)
    return bool((answer.get("status") or {}).get("allowed"))


async def _trial(provider: TrialProvider, policy: SandboxPolicy) -> list[Finding]:
    findings = await run_trial(provider, policy, success="a Pod starts, and the guest runs in this image")
    if isinstance(policy.network, Deny) and Preflight(tuple(findings)).ok:
        detail = "the NetworkPolicy is enforced: seen from inside, before the guest listened to anybody"
        findings.append(Finding("network", Severity.OK, detail))
    return findings
