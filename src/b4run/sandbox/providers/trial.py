"""A sandbox started for preflight alone, to see that the guest runs in its image."""

from __future__ import annotations

import secrets
from typing import Final, Protocol

from b4run.errors import B4Error
from b4run.sandbox.contract import Finding, Severity
from b4run.sandbox.guest import GuestSandbox
from b4run.sandbox.policy import SandboxPolicy

_DEADLINE_MS: Final = 20_000


class TrialProvider(Protocol):
    """What a trial asks of a provider."""

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> GuestSandbox: ...

    async def destroy(self, thread_id: str) -> None: ...


async def run_trial(provider: TrialProvider, policy: SandboxPolicy, *, success: str) -> list[Finding]:
    """Start a sandbox, run a command in it, remove it; `success` says what that has shown."""
    thread_id = f"b4-preflight-{secrets.token_hex(8)}"
    try:
        sandbox = await provider.acquire(thread_id, policy)
        result = await sandbox.exec.run("exit 7", deadline_ms=_DEADLINE_MS)
    except B4Error as error:
        return [Finding("trial", Severity.ERROR, error.message, error.remedy)]
    finally:
        await provider.destroy(thread_id)
    if result.exit_code != 7:
        return [Finding("trial", Severity.ERROR, f"a command ended with {result.exit_code} instead of 7: {result.stderr[:200]}")]
    findings = [Finding("trial", Severity.OK, success)]
    if not sandbox.guest_capabilities & {"subreaper", "marks"}:
        detail = "this kernel cannot follow this user's orphans: what leaves its command by setsid or a double fork outlives timeouts"
        remedy = "Run commands as another user than root, release the sandbox to end what is left, or use another runtime."
        findings.append(Finding("process trees", Severity.WARNING, detail, remedy))
    return findings
