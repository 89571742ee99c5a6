"""A start that fails says why, without the host's paths, and leaves nothing."""

from __future__ import annotations

import pytest

from b4run.errors import SandboxUnavailable
from b4run.sandbox.contract import Severity
from b4run.sandbox.policy import Deny, SandboxPolicy

DENY = SandboxPolicy(network=Deny())


def script(path, text: str):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


async def test_no_bubblewrap_is_a_refusal_and_never_the_host(make_provider, tmp_path, state_dir):
    provider = make_provider(bwrap=tmp_path / "missing")
    with pytest.raises(SandboxUnavailable, match="bubblewrap cannot be used"):
        await provider.acquire("t-1", DENY)
    result = await provider.preflight(DENY)
    assert not result.ok
    (finding,) = [finding for finding in result.findings if finding.severity is Severity.ERROR]
    assert finding.control == "bubblewrap"
    assert "apt install bubblewrap" in finding.remedy


async def test_a_bubblewrap_that_fails_is_quoted(make_provider, tmp_path, our_groups):
    fails = script(
        tmp_path / "bwrap", 'case "$1" in --version) echo bubblewrap 0.9.0 ;; *) echo "bwrap: no luck today" >&2; exit 1 ;; esac'
    )
    provider = make_provider(bwrap=fails)
    with pytest.raises(SandboxUnavailable, match="bwrap: no luck today") as refusal:
        await provider.acquire("t-1", DENY)
    assert str(tmp_path) not in str(refusal.value)
    assert our_groups() == set()
    await provider.destroy("t-1")


async def test_a_start_that_hangs_or_ends_in_silence_is_bounded(make_provider, tmp_path):
    silent = script(tmp_path / "bwrap", 'case "$1" in --version) echo bubblewrap 0.9.0 ;; esac')
    with pytest.raises(SandboxUnavailable):
        await make_provider(bwrap=silent).acquire("t-1", DENY)


async def test_preflight_observes_what_holds(provider):
    result = await provider.preflight(DENY)
    assert result.ok, result.detail
    held = {finding.control for finding in result.findings if finding.severity is Severity.OK}
    assert {"bubblewrap", "guest", "namespaces", "user", "capabilities", "seccomp", "root file system", "network", "host secrets"} <= held
    assert await provider.list_sandboxes() == [], "the trial leaves no thread"
