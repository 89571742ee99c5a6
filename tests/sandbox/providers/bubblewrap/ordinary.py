"""Scenarios for an ordinary user. Run by root: imports everything, gives root up for good, then acts; prints a JSON object."""

from __future__ import annotations

import asyncio
import codecs
import concurrent.futures
import ctypes
import json
import os
import sys
from pathlib import Path

from b4run.errors import SandboxLost, SandboxUnavailable
from b4run.sandbox.contract import Severity
from b4run.sandbox.policy import Allow, Deny, Resources, SandboxPolicy, Security
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox

NOBODY = 65534
PR_SET_DUMPABLE = 4
CLONE_NEWUSER = 0x10000000
LIBC = ctypes.CDLL(None, use_errno=True)
DENY = SandboxPolicy(network=Deny(), resources=Resources(memory_mb=512), security=Security(pids_limit=64))

FORKS = (
    "import os, signal\nmade = 0\ntry:\n  while made < 300:\n    if os.fork() == 0: signal.pause()\n    made += 1\n"
    "except OSError: pass\nprint(made, flush=True)\nos.killpg(0, 9)"
)
ALLOCATE = "block = bytearray(700 * 2**20)"


def give_up_root() -> None:
    # What the interpreter loads late must be loaded now: afterwards its own folder may be closed.
    codecs.lookup("utf-16-le")
    concurrent.futures.ThreadPoolExecutor(1).shutdown()
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # Changing the user makes /proc/self root's; a program that a user starts does not have that.
    LIBC.prctl(PR_SET_DUMPABLE, 1, 0, 0, 0)


async def work(state_dir: str) -> dict[str, object]:
    provider = bubblewrap_sandbox(scope="test", state_dir=state_dir)
    sandbox = await provider.acquire("t-1", DENY)
    seen = (await sandbox.exec.run("id -u; cat /proc/self/status | grep -E '^(CapEff|CapBnd|NoNewPrivs)'")).stdout.split()
    await sandbox.exec.run("printf x > kept")
    forks = await sandbox.exec.run(["python3", "-c", FORKS], deadline_ms=20_000)
    memory = await sandbox.exec.run(["python3", "-c", ALLOCATE], deadline_ms=20_000)
    writable = await sandbox.exec.run("touch /usr/x || touch /x || unshare -U true")
    shadow = await sandbox.exec.run("cat /etc/shadow")
    await sandbox.exec.run("mkdir -p a/b && touch a/b/c && chmod 0 a/b && chmod 500 a")
    await provider.release("t-1")
    lost = False
    try:
        await sandbox.exec.run("true")
    except SandboxLost:
        lost = True
    again = await provider.acquire("t-1", DENY)
    kept = (await again.exec.run("cat kept")).stdout
    await provider.destroy("t-1")
    result = {
        "seen": seen,
        "forks": int(forks.stdout),
        "memory_ok": memory.ok,
        "memory_error": "MemoryError" in memory.stderr,
        "escaped": writable.ok or shadow.ok,
        "lost": lost,
        "kept": kept,
        "left": sorted(name for name in os.listdir(state_dir) if not name.startswith("etc-")),
    }
    await provider.aclose()
    return result


async def preflight(state_dir: str) -> dict[str, object]:
    provider = bubblewrap_sandbox(scope="test", state_dir=state_dir)
    result = await provider.preflight(DENY)
    return {"ok": result.ok, "detail": result.detail, "warnings": list(result.warnings), "remedies": [f.remedy for f in result.findings]}


async def forbidden(state_dir: str) -> dict[str, object]:
    """In a user namespace that allows no further one, as a hardened host does."""
    assert LIBC.unshare(CLONE_NEWUSER) == 0
    Path("/proc/sys/user/max_user_namespaces").write_text("0")
    return await preflight(state_dir)


async def network(state_dir: str) -> dict[str, object]:
    provider = bubblewrap_sandbox(scope="test", state_dir=state_dir)
    try:
        sandbox = await provider.acquire("t-1", SandboxPolicy(network=Allow()))
    except SandboxUnavailable as error:
        found = await provider.preflight(SandboxPolicy(network=Allow()))
        return {"refused": str(error), "errors": [f.control for f in found.findings if f.severity is Severity.ERROR]}
    interfaces = (await sandbox.exec.run("cut -d: -f1 /proc/net/dev | tail -n +3 | tr -d ' '")).stdout.split()
    await provider.destroy("t-1")
    return {"interfaces": interfaces}


if __name__ == "__main__":
    scenario = {"work": work, "preflight": preflight, "forbidden": forbidden, "network": network}[sys.argv[1]]
    give_up_root()
    print(json.dumps(asyncio.run(scenario(sys.argv[2]))))
