"""`b4 check` and `b4 routes`: the verdict comes last, findings go to stderr, `--json` is one document."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import B4

AGENT = """
from b4run.agents import Agent
from b4run.testing import script
agent = Agent(model=script().user("go").replies("done").model(), prompt="Help.")
"""
CONFIG = """
from b4run.config import Config, Sandbox
from b4run.sandbox.contract import Finding, Preflight, Severity
from b4run.sandbox.testing import fake_sandbox

async def preflight(policy):
    return Preflight((Finding("daemon", Severity.ERROR, "the daemon\\x1b[2J does not answer", "Start it."),))

provider = fake_sandbox()
provider.preflight = preflight
config = Config(sandbox=Sandbox(provider=provider))
"""


@pytest.fixture(autouse=True)
def app(tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text(CONFIG)
    (tmp_path / "app" / "fix").mkdir(parents=True)
    (tmp_path / "app" / "fix" / "agent.py").write_text(AGENT)


def test_warnings_do_not_fail_and_the_verdict_comes_last(b4: B4) -> None:
    outcome = b4("check", "--no-preflight")
    assert outcome.code == 0
    assert outcome.out.splitlines() == [
        "/fix  agent  app/fix/agent.py",
        "Workspace: each thread has an empty workspace of its own in a fake sandbox.",
        "The app is valid: 1 route, 1 warning.",
    ]
    assert outcome.err.startswith("warning: b4_config.py: sandbox.network: is not set")
    assert "169.254.169.254" in outcome.err


def test_a_failed_preflight_fails_with_the_providers_own_detail(b4: B4) -> None:
    outcome = b4("check")
    assert (outcome.code, outcome.out) == (1, "")
    assert "error: sandbox.provider (fake): daemon: the daemon\\x1b[2J does not answer\n    [B4_E2002] Start it.\n" in outcome.err
    assert outcome.err.splitlines()[-1].endswith("cannot run: 1 error, 1 warning.")
    assert "valid" not in outcome.err


def test_json_is_one_document_with_every_finding(b4: B4, tmp_path: Path) -> None:
    (tmp_path / "app" / "bad").mkdir()
    (tmp_path / "app" / "bad" / "agent.py").write_text("x = 1\n")
    outcome = b4("check", "--json")
    assert (outcome.code, outcome.err) == (1, "")
    report = outcome.json
    assert (report["status"], report["app"], report["counts"]) == ("failed", str(tmp_path), {"errors": 2, "warnings": 1})
    assert [(finding["severity"], finding["code"], finding["key"]) for finding in report["findings"]] == [
        ("warning", "B4_E1002", "sandbox.network"),
        ("error", "B4_E1007", ""),
        ("error", "B4_E2002", "sandbox.provider (fake): daemon"),
    ]
    assert all(set(finding) == {"severity", "code", "key", "message", "hint", "file", "line"} for finding in report["findings"])
    assert report["routes"] == [{"id": "/fix", "kind": "agent", "file": "app/fix/agent.py"}]


def test_no_colour_where_it_is_not_wanted(b4: B4) -> None:
    assert "\x1b" not in b4("check").err


def test_routes_as_a_table_and_as_json(b4: B4) -> None:
    assert [line.split() for line in b4("routes").out.splitlines()] == [
        ["ROUTE", "KIND", "FILE", "TOOLS", "SUBAGENTS"],
        ["/fix", "agent", "app/fix/agent.py", "-", "-"],
    ]
    assert b4("routes", "--json").json == [{"id": "/fix", "kind": "agent", "file": "app/fix/agent.py", "tools": [], "subagents": []}]


def test_routes_of_a_defective_app_are_refused_with_every_defect(b4: B4, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "app" / name).mkdir()
        (tmp_path / "app" / name / "agent.py").write_text("x = 1\n")
    outcome = b4("routes")
    assert (outcome.code, outcome.out) == (1, "")
    assert "app/a/agent.py" in outcome.err and "app/b/agent.py" in outcome.err
    assert outcome.err.splitlines()[-1] == "    [B4_E1006] `b4 check` lists all that is wrong with the app."
