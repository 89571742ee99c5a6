"""Who reaches whom. Every target listens for real; each denial is shown beside the same connection that succeeds when allowed.

The other host is a network namespace joined by a pair of interfaces; nothing leaves this machine.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import pytest

from b4run.errors import SandboxLost, SandboxUnavailable
from b4run.sandbox.contract import Capability, Severity
from b4run.sandbox.policy import Allow, Deny, SandboxPolicy
from b4run.sandbox.providers.bubblewrap import network

DENY, ALLOW = SandboxPolicy(network=Deny()), SandboxPolicy(network=Allow())
METADATA = "169.254.169.254"
NEIGHBOUR, GATE = "198.51.100.2", "198.51.100.1"
NEIGHBOUR_6, GATE_6 = "fd00:b4::2", "fd00:b4::1"

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another host")

SERVER = """
import socket, sys
servers = []
for host in sys.argv[1:]:
    server = socket.create_server((host, 8080), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    servers.append(server)
print("listening", flush=True)
import selectors
selector = selectors.DefaultSelector()
for server in servers: selector.register(server, selectors.EVENT_READ)
while True:
    for key, _ in selector.select():
        connection, _ = key.fileobj.accept()
        connection.sendall(b"reached")
        connection.close()
"""

CONNECT = """
import socket, sys
host, port = sys.argv[1], int(sys.argv[2])
try:
    with socket.create_connection((host, port), timeout=3) as connection:
        print(connection.recv(20).decode())
except OSError as error:
    print("refused", error)
"""


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=10)


@dataclass(frozen=True)
class Neighbour:
    addresses: tuple[str, ...]


@pytest.fixture(scope="module")
def neighbour() -> Iterator[Neighbour]:
    """Another host beside this one, which also has the address of the metadata services."""
    name = f"b4test{os.getpid()}"
    link = f"b4t{os.getpid()}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("addr", "add", f"{GATE}/24", "dev", link)
        _ip("-6", "addr", "add", f"{GATE_6}/64", "dev", link, "nodad")
        _ip("link", "set", link, "up")
        _ip("-n", name, "addr", "add", f"{NEIGHBOUR}/24", "dev", "eth0")
        _ip("-n", name, "-6", "addr", "add", f"{NEIGHBOUR_6}/64", "dev", "eth0", "nodad")
        _ip("-n", name, "addr", "add", f"{METADATA}/32", "dev", "lo")
        _ip("-n", name, "link", "set", "eth0", "up")
        _ip("-n", name, "link", "set", "lo", "up")
        _ip("-n", name, "route", "add", "default", "via", GATE)
        _ip("route", "add", f"{METADATA}/32", "via", NEIGHBOUR)
        addresses = (NEIGHBOUR, METADATA, NEIGHBOUR_6)
        server = subprocess.Popen(
            ["ip", "netns", "exec", name, sys.executable, "-c", SERVER, *addresses],
            stdout=subprocess.PIPE,
        )
        try:
            assert server.stdout is not None
            assert server.stdout.readline() == b"listening\n"
            yield Neighbour(addresses)
        finally:
            server.kill()
            server.communicate(timeout=10)
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=10)
        subprocess.run(["ip", "link", "delete", link], check=False, capture_output=True, timeout=10)


@contextmanager
def listening(address: object, family: int = socket.AF_INET) -> Iterator[socket.socket]:
    """A server on this host that answers `reached`."""
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.bind(address)
        server.listen(8)

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"reached")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join(5)


async def connect(sandbox, host: str, port: int) -> str:
    result = await sandbox.exec.run(["python3", "-c", CONNECT, host, str(port)], deadline_ms=20_000)
    return str(result.stdout.strip().split(" ")[0])


@pytest.fixture
async def closed(provider):
    return await provider.acquire("closed", DENY)


@pytest.fixture
async def opened(provider):
    if Capability.NETWORK_ALLOW not in provider.capabilities:
        pytest.skip("no pasta, or no tun device")
    return await provider.acquire("opened", ALLOW)


@as_root
async def test_another_host_and_the_metadata_address_are_reached_only_when_allowed(neighbour, closed, opened):
    for address in neighbour.addresses:
        assert await connect(opened, address, 8080) == "reached", address
        assert await connect(closed, address, 8080) == "refused", address


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
async def test_the_hosts_loopback_is_never_reached(closed, opened, address):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with listening((address, 0), family) as server:
        port = server.getsockname()[1]
        with socket.create_connection((address, port), timeout=5) as control:
            assert control.recv(20) == b"reached"
        assert await connect(opened, address, port) == "refused"
        assert await connect(closed, address, port) == "refused"


async def test_no_address_of_the_gateway_leads_to_the_hosts_loopback(opened):
    routes = (await opened.exec.run("cat /proc/net/route")).stdout.splitlines()[1:]
    gateways = [socket.inet_ntoa(bytes.fromhex(line.split()[2])[::-1]) for line in routes if line.split()[1] == "00000000"]
    assert gateways
    with listening(("127.0.0.1", 0)) as server:
        for gateway in gateways:
            assert await connect(opened, gateway, server.getsockname()[1]) == "refused"


async def test_abstract_sockets_of_the_host_are_never_reached(closed, opened):
    name = f"\0b4-test-{os.getpid()}"
    code = f"import socket; s = socket.socket(socket.AF_UNIX); s.connect({name!r}); print(s.recv(20).decode())"
    with listening(name, socket.AF_UNIX):
        with socket.socket(socket.AF_UNIX) as control:
            control.connect(name)
            assert control.recv(20) == b"reached"
        for sandbox in (closed, opened):
            result = await sandbox.exec.run(["python3", "-c", code], deadline_ms=20_000)
            assert "ConnectionRefusedError" in result.stderr


async def test_programs_inside_reach_each_other_on_their_own_loopback(closed, opened):
    code = (
        "import socket; server = socket.create_server(('127.0.0.1', 0)); "
        "client = socket.create_connection(server.getsockname()); server.accept()[0].sendall(b'own'); print(client.recv(9).decode())"
    )
    for sandbox in (closed, opened):
        assert (await sandbox.exec.run(["python3", "-c", code], deadline_ms=20_000)).stdout == "own\n"


async def test_names_are_asked_only_when_the_network_is_open(closed, opened):
    assert not (await closed.exec.run("cat /etc/resolv.conf")).ok
    assert (await opened.exec.run("cat /etc/resolv.conf")).stdout == f"nameserver {network.NAME_SERVER}\n"


async def test_nothing_inside_may_change_the_network(opened):
    assert not (await opened.exec.run("ip link add x type dummy")).ok
    assert not (await opened.exec.run("ip route add 203.0.113.0/24 dev lo")).ok


async def test_the_end_of_pasta_ends_the_sandbox_and_the_next_has_a_network(provider, opened):
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit() and _is_pasta_of_ours(entry)]
    assert len(pids) == 1
    os.kill(pids[0], 9)
    with pytest.raises(SandboxLost):
        await opened.exec.run("sleep 20", deadline_ms=20_000)
    again = await provider.acquire("opened", ALLOW)
    assert (await again.exec.run("wc -l < /proc/net/route")).stdout.strip() != "1"
    await provider.release("opened")
    assert not any(_is_pasta_of_ours(entry) for entry in os.listdir("/proc") if entry.isdigit())


def _is_pasta_of_ours(pid: str) -> bool:
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
    except OSError:
        return False
    return os.path.basename(words[0]).startswith(b"pasta") and network.NAME_SERVER.encode() in words


async def test_without_pasta_an_open_network_is_refused_with_the_remedy(make_provider, monkeypatch, tmp_path):
    (tmp_path / "bwrap").symlink_to("/usr/bin/bwrap")
    monkeypatch.setenv("PATH", str(tmp_path))
    provider = make_provider()
    with pytest.raises(SandboxUnavailable, match="apt install passt"):
        await provider.acquire("t-1", ALLOW)
    result = await provider.preflight(ALLOW)
    assert [finding.control for finding in result.findings if finding.severity is Severity.ERROR] == ["network"]
    assert Capability.NETWORK_ALLOW not in provider.capabilities


async def test_preflight_sees_the_open_network(provider):
    result = await provider.preflight(ALLOW)
    assert result.ok, result.detail
    assert any("open, in a namespace of its own" in finding.detail for finding in result.findings)
