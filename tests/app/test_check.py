"""`check_app`: one report with everything in it."""

from __future__ import annotations

from pathlib import Path

import pytest

from b4run.app import Report, check_app
from b4run.sandbox.contract import Severity

from .conftest import MakeApp

CONFIG = """
from b4run.config import Config, Deny, Sandbox
from b4run.sandbox.contract import Finding, Preflight, Severity
from b4run.sandbox.testing import fake_sandbox

provider = fake_sandbox()

async def preflight(policy):
    {preflight}

provider.preflight = preflight
config = Config(sandbox=Sandbox(provider=provider, {more}))
"""

FINDINGS = """return Preflight((
        Finding("daemon", Severity.ERROR, "the daemon does not answer", "Start it."),
        Finding("memory", Severity.WARNING, "nothing bounds memory", "Delegate a control group."),
        Finding("guest", Severity.OK, "built"),
    ))"""


def config(preflight: str = "return Preflight()", more: str = "network=Deny()") -> dict[str, str]:
    return {"b4_config.py": CONFIG.format(preflight=preflight, more=more)}


def found(report: Report) -> list[tuple[str, str, str]]:
    return [(issue.severity.value, issue.code, issue.text) for issue in report.issues]


async def test_a_valid_app(make_app: MakeApp) -> None:
    report = await check_app(make_app(config()))
    assert (report.ok, report.issues) == (True, ())
    assert [route.id for route in report.routes] == ["/fix"]
    assert report.workspace == "each thread has an empty workspace of its own in a fake sandbox"
    assert report.as_dict()["status"] == "passed"


async def test_without_a_sandbox_it_says_where_the_tools_work(make_app: MakeApp) -> None:
    root = make_app()
    report = await check_app(root)
    assert report.ok
    assert report.workspace == f"tools work on {root}/workspace of this host, without a sandbox"


async def test_preflight_errors_fail_and_warnings_do_not(make_app: MakeApp) -> None:
    report = await check_app(make_app(config(FINDINGS)))
    assert not report.ok
    assert found(report) == [
        ("error", "B4_E2002", "sandbox.provider (fake): daemon: the daemon does not answer"),
        ("warning", "B4_E2002", "sandbox.provider (fake): memory: nothing bounds memory"),
    ]
    assert [issue.hint for issue in report.issues] == ["Start it.", "Delegate a control group."]


async def test_preflight_can_be_left_out(make_app: MakeApp) -> None:
    report = await check_app(make_app(config(FINDINGS)), preflight=False)
    assert (report.ok, report.issues) == (True, ())


async def test_an_exception_of_preflight_is_a_failure_with_its_text(make_app: MakeApp) -> None:
    report = await check_app(make_app(config("raise OSError('socket is gone')")))
    assert found(report) == [("error", "B4_E2002", "sandbox.provider (fake): preflight raised OSError: socket is gone")]


async def test_a_preflight_that_hangs_is_a_failure(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("b4run.app.check.PREFLIGHT_SECONDS", 0.05)
    report = await check_app(make_app(config("import asyncio; await asyncio.Event().wait()")))
    assert found(report) == [("error", "B4_E2002", "sandbox.provider (fake): preflight did not answer within 0.05 s")]


async def test_configuration_routes_and_environment_are_reported_together(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("B4_PERMISSIONS_MODE", "ask")
    root = make_app({**config(more=""), "app/bad/agent.py": "x = 1\n", "app/worse/agent.py": "1 / 0\n"})
    report = await check_app(root)
    assert [(issue.severity, issue.code) for issue in report.issues] == [
        (Severity.WARNING, "B4_E1002"),
        (Severity.ERROR, "B4_E1002"),
        (Severity.ERROR, "B4_E1007"),
        (Severity.ERROR, "B4_E5001"),
    ]
    assert "169.254.169.254" in report.issues[0].message
    assert "B4_PERMISSIONS_MODE is 'ask'" in report.issues[1].message


async def test_bad_configuration_does_not_hide_bad_routes(make_app: MakeApp) -> None:
    report = await check_app(make_app({"b4_config.py": "config = {'bogus': 1, 'app_dri': 'x'}\n", "app/bad/agent.py": "x = 1\n"}))
    assert [issue.code for issue in report.issues] == ["B4_E1002", "B4_E1002", "B4_E1007"]
    assert report.workspace == ""


@pytest.mark.parametrize("text", ["1 / 0", "config = Config(", ""])
async def test_a_configuration_file_that_cannot_be_used(make_app: MakeApp, text: str) -> None:
    report = await check_app(make_app({"b4_config.py": text}))
    assert not report.ok and len(report.issues) == 1
    assert report.issues[0].text.startswith("b4_config.py")


async def test_check_writes_nothing_into_the_app(make_app: MakeApp) -> None:
    root = make_app(config())
    before = sorted(path for path in root.rglob("*") if "__pycache__" not in path.parts)
    await check_app(root)
    assert sorted(path for path in root.rglob("*") if "__pycache__" not in path.parts) == before


async def test_a_resolver_is_never_called(make_app: MakeApp, tmp_path: Path) -> None:
    text = CONFIG.format(preflight="return Preflight()", more="network=Deny(), thread=decide").replace(
        "provider =", "async def decide(thread):\n    open('called', 'w')\n\nprovider =", 1
    )
    report = await check_app(make_app({"b4_config.py": text}))
    assert report.issues == ()
    assert report.workspace == "workspace, image and policy are resolved per thread"
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ("workspace=decide", "managed workspace is resolved per thread"),
        (
            "workspace={'source': {'directory': 'task', 'include': ['a', 'b']}}",
            "each thread starts from 2 files of 'task' in a fake sandbox",
        ),
    ],
)
async def test_how_a_workspace_is_decided_is_told(make_app: MakeApp, more: str, told: str) -> None:
    text = CONFIG.format(preflight="return Preflight()", more=f"network=Deny(), {more}").replace(
        "provider =", "async def decide(thread): ...\n\nprovider =", 1
    )
    report = await check_app(make_app({"b4_config.py": text, "task/a": "", "task/b": ""}))
    assert (report.issues, report.workspace) == ((), told)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("'directory': 'task', 'include': ['a']", "'task/b' is there, and is neither included nor excluded"),
        ("'directory': 'task', 'include': ['a', 'b', 'c']", "'task/c' is included, and is not there"),
        ("'directory': '../task', 'include': []", "directory '../task'"),
        ("'directory': '.', 'include': ['b4_config.py', 'app/fix/agent.py', 'task/a', 'task/b'], 'exclude_directories': ['.b4']", None),
    ],
)
async def test_files_that_cannot_be_captured_are_told_before_any_thread(make_app: MakeApp, source: str, reason: str | None) -> None:
    text = CONFIG.format(preflight="return Preflight()", more="network=Deny(), workspace={'source': {" + source + "}}")
    report = await check_app(make_app({"b4_config.py": text, "task/a": "", "task/b": ""}))
    assert [(issue.key, issue.code) for issue in report.issues] == ([] if reason is None else [("sandbox.workspace", "B4_E2009")])
    assert reason is None or reason in report.issues[0].message


@pytest.mark.parametrize(
    ("model", "code", "told"),
    [
        ("mistralai:large", "B4_E4001", "The model 'mistralai:large' cannot be used: package langchain-mistralai is not installed."),
        ("no-such-provider:x", "B4_E4002", "The model 'no-such-provider:x' cannot be used: "),
    ],
)
async def test_a_model_that_cannot_be_had_here_is_a_warning(make_app: MakeApp, model: str, code: str, told: str) -> None:
    agent = f'from b4run.agents import Agent\nreviewer = Agent(model="{model}", prompt="x", description="Reviews.")\n'
    root = make_app({"app/fix/agent.py": agent + f'agent = Agent(model="{model}", prompt="x", subagents={{"review": reviewer}})\n'})
    report = await check_app(root)
    assert report.ok
    assert [(issue.severity, issue.code, issue.file) for issue in report.issues] == [(Severity.WARNING, code, "app/fix/agent.py")] * 2
    assert all(issue.message.startswith(told) and issue.key == "model" for issue in report.issues)
