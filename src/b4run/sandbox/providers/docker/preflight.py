"""Telling before the first command what an engine can do for a policy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from b4run.errors import B4Error
from b4run.sandbox.contract import Finding, Preflight, Severity
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.providers.docker import controls
from b4run.sandbox.providers.docker.engine import Engine, EngineUnreachable
from b4run.sandbox.providers.docker.images import resolve_image
from b4run.sandbox.providers.trial import TrialProvider, run_trial


async def examine(provider: TrialProvider, engine: Engine, policy: SandboxPolicy, *, image: str | None, runtime: str | None) -> Preflight:
    """Return what `policy` meets on this engine. A trial is started only when nothing already forbids it."""
    findings: list[Finding] = []
    try:
        findings += _engine(await engine.get("tell about itself", "info"), runtime)
        findings += [*controls.refusals(policy), *controls.warnings(policy)]
        if image is None:
            findings.append(Finding("image", Severity.OK, "each thread names its own; none was tried"))
        else:
            findings.append(await _image(engine, image))
        if image is not None and Preflight(tuple(findings)).ok:
            findings += await run_trial(provider, policy, success="the guest runs in this image")
    except EngineUnreachable as error:
        findings.append(Finding("engine", Severity.ERROR, error.message, error.remedy))
    return Preflight(tuple(findings))


def _engine(info: dict[str, Any], runtime: str | None) -> Iterator[Finding]:
    yield Finding("engine", Severity.OK, f"Docker Engine {info['ServerVersion']} on {info['OperatingSystem']}, {info['Architecture']}")
    if runtime is None:
        return
    known = sorted(info.get("Runtimes") or {})
    if runtime in known:
        yield Finding("runtime", Severity.OK, f"{runtime} is installed")
    else:
        remedy = f"Install it and add it to the engine's daemon.json, or name another: {', '.join(known)}."
        yield Finding("runtime", Severity.ERROR, f"the engine has no runtime {runtime!r}", remedy)


async def _image(engine: Engine, reference: str) -> Finding:
    try:
        image = await resolve_image(engine, reference)
    except EngineUnreachable:
        raise
    except B4Error as error:
        return Finding("image", Severity.ERROR, error.message, "Name an image that the engine has or can pull.")
    return Finding("image", Severity.OK, f"{reference} is {image.id[:19]}")
