"""`b4 doctor`: what this host can enforce."""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, replace

from b4run.cli.aio import run_async
from b4run.cli.main import EXIT_FAILED
from b4run.cli.output import coloured, print_json, printable
from b4run.cli.parser import add_json
from b4run.errors import B4Error
from b4run.sandbox.contract import Finding, Preflight, Severity
from b4run.sandbox.policy import Allow, Deny, Resources, SandboxPolicy
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox

_EVERYTHING = Resources(memory_mb=512, cpus=1, timeout_ms=60_000)
_DISK = SandboxPolicy(network=Deny(), resources=Resources(disk_gb=1))
_POLICIES = (SandboxPolicy(network=Deny(), resources=_EVERYTHING), SandboxPolicy(network=Allow(), resources=_EVERYTHING))
_MARKS = {Severity.OK: ("ok", "green"), Severity.WARNING: ("warn", "yellow"), Severity.ERROR: ("fail", "red")}


def configure(parser: argparse.ArgumentParser) -> None:
    add_json(parser)
    parser.set_defaults(execute=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="b4-doctor-") as state:
        preflight = run_async(_examine(state))
    if options.json:
        findings = [asdict(finding) for finding in preflight.findings]
        print_json({"status": "passed" if preflight.ok else "failed", "host": _host(), "provider": "bubblewrap", "findings": findings})
    else:
        _print(preflight.findings)
    return 0 if preflight.ok else EXIT_FAILED


async def _examine(state: str) -> Preflight:
    """Ask for every control, once with the network closed and once open; each control is told once, by the worse answer.

    A limit on the disk is asked for by itself: a policy need not have one, and its refusal would forbid the trial of the others.
    """
    provider = bubblewrap_sandbox(scope="doctor", state_dir=state)
    found: dict[str, Finding] = {}
    try:
        for policy in _POLICIES:
            try:
                answers: Sequence[Finding] = (await provider.preflight(policy)).findings
            except B4Error as error:
                answers = (Finding("bubblewrap", Severity.ERROR, error.message, error.remedy),)
            for answer in answers:
                known = found.get(answer.control)
                if known is None or known.severity is Severity.OK:
                    found[answer.control] = answer
        refused = [finding for finding in (await provider.preflight(_DISK)).findings if finding.control == "disk limit"]
        found |= {finding.control: replace(finding, severity=Severity.WARNING) for finding in refused}
    finally:
        await provider.aclose()
    return Preflight(tuple(found.values()))


def _host() -> dict[str, str | int]:
    return {
        "system": platform.system(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "python": platform.python_version(),
        "uid": os.geteuid(),
    }


def _print(findings: Sequence[Finding]) -> None:
    host = _host()
    print(f"{host['system']} {host['kernel']} on {host['machine']}, Python {host['python']}, uid {host['uid']}\n")
    width = max(len(finding.control) for finding in findings)
    for finding in findings:
        mark, colour = _MARKS[finding.severity]
        print(f"{finding.control:{width}}  {coloured(f'{mark:4}', colour, sys.stdout)}  {printable(finding.detail)}".rstrip())
        if finding.remedy and finding.severity is not Severity.OK:
            print(f"{'':{width}}        {finding.remedy}")
