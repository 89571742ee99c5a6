"""What a sandbox's network reaches, from its first instruction on; each closed place is reached by one that may, as a control."""

from __future__ import annotations

import asyncio
import json
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from b4run.errors import SandboxUnavailable
from b4run.sandbox.policy import Allow, Deny, SandboxPolicy
from b4run.sandbox.scope import resource_id

from ...kubernetes_cluster import NAMESPACE, find, kubectl, needs_kubernetes

pytestmark = needs_kubernetes

METADATA = "169.254.169.254"
CONNECT = """
import json, socket, sys
def reach(host, port):
    try:
        socket.create_connection((host, port), 1.5).close()
    except OSError as error:
        return type(error).__name__
    return "reached"
print(json.dumps([reach(*place) for place in json.loads(sys.argv[1])]))
"""
REACHED = "reached"


async def reach(sandbox, *places: tuple[str, int]) -> list[bool]:
    """Whether each of these is reached from inside."""
    command = f"python3 -c {shlex.quote(CONNECT)} {shlex.quote(json.dumps(places))}"
    result = await sandbox.exec.run(command, deadline_ms=60_000)
    assert result.exit_code == 0, result.stderr
    return [answer == REACHED for answer in json.loads(result.stdout)]


def address_of(provider, thread: str) -> str:
    pod = find("pod", f"b4-sbx-{resource_id(provider._scope, thread)}")
    return str(pod["status"]["podIP"])


async def serve(provider, thread: str, policy: SandboxPolicy) -> tuple[str, int]:
    """Start a sandbox that serves; return where."""
    sandbox = await provider.acquire(thread, policy)
    await sandbox.exec.start("python3 -m http.server 8080 --bind 0.0.0.0", deadline_ms=600_000)
    for _ in range(100):
        if (await reach(sandbox, ("127.0.0.1", 8080))) == [True]:
            break
        await asyncio.sleep(0.1)
    for _ in range(100):
        pod = find("pod", f"b4-sbx-{resource_id(provider._scope, thread)}")
        if pod["status"].get("podIP"):
            return pod["status"]["podIP"], 8080
        await asyncio.sleep(0.1)
    raise AssertionError("the serving Pod has no address")


def cluster_places() -> dict[str, tuple[str, int]]:
    """Addresses that every Pod of an open network reaches."""
    node = json.loads(kubectl("get", "nodes", "-o", "json"))["items"][0]
    inner = next(address["address"] for address in node["status"]["addresses"] if address["type"] == "InternalIP")
    service = json.loads(kubectl("get", "service", "kubernetes", "-n", "default", "-o", "json"))["spec"]
    endpoints = json.loads(kubectl("get", "endpointslices", "-n", "default", "-l", "kubernetes.io/service-name=kubernetes", "-o", "json"))
    slice_ = endpoints["items"][0]
    return {
        "the node": (inner, 10_250),
        "the API server": (service["clusterIP"], service["ports"][0]["port"]),
        "the API server's own address": (slice_["endpoints"][0]["addresses"][0], slice_["ports"][0]["port"]),
    }


@contextmanager
def metadata_service() -> Iterator[tuple[str, int]]:
    """A listener on the metadata address of this machine, where that is the node; else whatever the node's network has there."""
    added = subprocess.run(["ip", "address", "add", f"{METADATA}/32", "dev", "lo"], capture_output=True, check=False).returncode == 0
    listener = socket.socket()
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((METADATA, 80))
        listener.listen()
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        yield METADATA, 80
    finally:
        listener.close()
        if added:
            subprocess.run(["ip", "address", "del", f"{METADATA}/32", "dev", "lo"], capture_output=True, check=False)


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            listener.accept()[0].close()
        except OSError:
            return


async def test_a_closed_network_reaches_nothing_from_its_first_instruction_on(make):
    provider = make()
    with metadata_service() as metadata:
        places = {**cluster_places(), "another Pod": await serve(provider, "server", SandboxPolicy(network=Allow())), "metadata": metadata}
        open_one = await provider.acquire("open", SandboxPolicy(network=Allow()))
        assert dict(zip(places, await reach(open_one, *places.values()), strict=True)) == dict.fromkeys(places, True)
        for number in range(3):
            closed = await provider.acquire(f"closed-{number}", SandboxPolicy(network=Deny()))
            found = dict(zip(places, await reach(closed, *places.values()), strict=True))
            assert found == dict.fromkeys(places, False)
            assert await reach(closed, ("127.0.0.1", 9)) == [False]
        # Nor is it reached itself.
        inward = await serve(provider, "closed-0", SandboxPolicy(network=Deny()))
        assert await reach(open_one, inward) == [False]
        # No name is looked up, which would carry data out.
        closed = await provider.acquire("closed-1", SandboxPolicy(network=Deny()))
        dns = await closed.exec.run("getent hosts kubernetes.default.svc.cluster.local", deadline_ms=60_000)
        assert dns.exit_code != 0


async def test_an_allowlisted_network_is_reached_and_nothing_else(make):
    provider = make()
    listed = await serve(provider, "listed", SandboxPolicy(network=Allow()))
    other = await serve(provider, "other", SandboxPolicy(network=Allow()))
    sandbox = await provider.acquire("t", SandboxPolicy(network=Deny(allowlist=(f"{listed[0]}/32",))))
    places = cluster_places()
    for _ in range(50):
        if await reach(sandbox, listed) == [True]:
            break
    assert await reach(sandbox, listed, other, *places.values()) == [True, False, False, False, False]


async def test_a_denylisted_network_is_not_reached(make):
    provider = make()
    listed = await serve(provider, "listed", SandboxPolicy(network=Allow()))
    other = await serve(provider, "other", SandboxPolicy(network=Allow()))
    sandbox = await provider.acquire("t", SandboxPolicy(network=Allow(denylist=(f"{listed[0]}/32",))))
    for _ in range(50):
        if await reach(sandbox, listed) == [False]:
            break
    assert await reach(sandbox, listed, other) == [False, True]


async def test_an_allowlist_that_opens_the_api_server_is_refused(make):
    provider = make(startup_timeout_ms=60_000)
    api, own = cluster_places()["the API server"][0], cluster_places()["the API server's own address"][0]
    with pytest.raises(SandboxUnavailable, match="allowlist holds the API server's address"):
        await provider.acquire("t", SandboxPolicy(network=Deny(allowlist=(f"{api}/32", f"{own}/32"))))
    assert find("pod", f"b4-sbx-{resource_id(provider._scope, 't')}") is None


async def test_names_in_lists_are_refused(make):
    for network, key in ((Deny(allowlist=("example.com",)), "allowlist"), (Allow(denylist=("10.0.0.1/8",)), "denylist")):
        with pytest.raises(SandboxUnavailable, match=f"`{key}` holds .*no CIDR"):
            await make().acquire("t", SandboxPolicy(network=network))


async def test_the_policy_stands_before_the_pod_and_goes_after_it(make):
    provider = make()
    await provider.acquire("t", SandboxPolicy(network=Deny()))
    id = resource_id(provider._scope, "t")
    policy, pod = find("networkpolicy", f"b4-sbx-net-{id}"), find("pod", f"b4-sbx-{id}")
    assert policy["metadata"]["creationTimestamp"] <= pod["metadata"]["creationTimestamp"]
    assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
    assert policy["spec"].get("egress", []) == policy["spec"].get("ingress", []) == []
    await provider.release("t")
    assert find("networkpolicy", f"b4-sbx-net-{id}") is None
    assert find("pod", f"b4-sbx-{id}") is None
    assert find("pvc", f"b4-sbx-vol-{id}") is not None
    assert policy["metadata"]["namespace"] == NAMESPACE
