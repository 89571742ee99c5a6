"""`open_app`: turns on an app's routes from Python, without a server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from b4run.agents import ToolResult, script
from b4run.app import AppDefective, open_app
from b4run.config import ConfigInvalid
from b4run.errors import AppInvalid, ConfigurationError, RouteUnknown
from b4run.permissions import Grant, Key
from b4run.sandbox.testing import fake_sandbox

from .conftest import AGENT, MakeApp

CONFIG = """
from b4run.config import Config, Deny, Permissions, Sandbox
from b4run.sandbox.testing import fake_sandbox
config = Config(
    permissions=Permissions(allow={"bash": ["ls"]}, deny={"bash": ["rm"]}),
    sandbox=Sandbox(provider=fake_sandbox(lambda command: "from the configured one"), network=Deny()),
)
"""


def answers(result: object) -> list[str]:
    return [event.output for event in result.events if isinstance(event, ToolResult)]  # type: ignore[attr-defined]


def one_command(command: str, *, times: int = 1) -> object:
    told = script()
    for _ in range(times):
        told.user("go").calls("runBash", command=command).replies("done")
    return told.model()


async def test_a_turn_works_in_the_configured_sandbox(make_app: MakeApp) -> None:
    root = make_app({"b4_config.py": CONFIG})
    async with open_app(root / "app" / "fix", model=one_command("ls")) as app:
        assert (app.root, list(app.routes)) == (root, ["/fix"])
        result = await app.runtime.run("/fix", "go", thread_id="t-1")
        assert result.output == "done"
        assert json.loads(answers(result)[0]) == {"stdout": "from the configured one", "stderr": "", "exitCode": 0}
        assert [status.thread_id for status in app.sandboxes.status()] == ["t-1"]


async def test_a_provider_of_the_callers_stands_in(make_app: MakeApp) -> None:
    provider = fake_sandbox(lambda command: "from the caller's")
    async with open_app(make_app({"b4_config.py": CONFIG}), model=one_command("ls"), provider=provider) as app:
        assert "from the caller's" in answers(await app.runtime.run("/fix", "go", thread_id="t-1"))[0]
    assert provider.log == [("acquire", "t-1"), ("release", "t-1")]


async def test_permissions_and_grants_are_the_apps(make_app: MakeApp) -> None:
    root = make_app({"b4_config.py": CONFIG})
    async with open_app(root, model=one_command("make all", times=2)) as app:
        parked = await app.runtime.run("/fix", "go", thread_id="t-1")
        (interrupt,) = parked.interrupts
        assert (interrupt.kind, interrupt.detail["command"]) == ("command", "make all")
        assert (await app.runtime.resume("/fix", {interrupt.id: "always"}, thread_id="t-1")).output == "done"
    async with open_app(root, model=one_command("make all")) as app:
        (grant,) = await app.storage.grants.list("t-1")
        assert (grant.key, grant.pattern) == (Key.BASH, "make all")
        assert (await app.runtime.run("/fix", "go", thread_id="t-1")).output == "done"
    async with open_app(root, model=one_command("rm x")) as app:
        await app.storage.grants.add(Grant(Key.BASH, "rm x", thread_id="t-1"))
        assert "denied" in answers(await app.runtime.run("/fix", "go", thread_id="t-1"))[0]


async def test_with_nobody_to_ask_it_is_refused(make_app: MakeApp) -> None:
    async with open_app(make_app({"b4_config.py": CONFIG}), model=one_command("make"), can_ask=False) as app:
        result = await app.runtime.run("/fix", "go", thread_id="t-1")
        assert result.output == "done" and "no way to ask" in answers(result)[0]


async def test_the_mode_can_be_overridden_for_a_process(make_app: MakeApp, monkeypatch: pytest.MonkeyPatch) -> None:
    root = make_app({"b4_config.py": CONFIG})
    monkeypatch.setenv("B4_PERMISSIONS_MODE", "bypass")
    async with open_app(root, model=one_command("make")) as app:
        assert (await app.runtime.run("/fix", "go", thread_id="t-1")).output == "done"
    monkeypatch.setenv("B4_PERMISSIONS_MODE", "ask")
    with pytest.raises(ConfigurationError, match="B4_PERMISSIONS_MODE"):
        async with open_app(root):
            pass


async def test_conversations_outlive_the_app(make_app: MakeApp) -> None:
    root = make_app({"b4_config.py": CONFIG})
    async with open_app(root, model=script().user("one").replies("first").model()) as app:
        await app.runtime.run("/fix", "one", thread_id="t-1")
    async with open_app(root, model=script().user("two").replies("second").model()) as app:
        await app.runtime.run("/fix", "two", thread_id="t-1")
        told = [message.text for message in await app.runtime.messages("/fix", thread_id="t-1")]
        assert told == ["one", "first", "two", "second"]


async def test_without_a_sandbox_the_tools_work_on_the_workspace_folder(make_app: MakeApp) -> None:
    root = make_app({"b4_config.py": 'config = {"permissions": {"mode": "bypass"}}', "workspace/hello.txt": "hi"})
    async with open_app(root, model=one_command("cat hello.txt; echo made > new.txt")) as app:
        assert json.loads(answers(await app.runtime.run("/fix", "go", thread_id="t-1"))[0])["stdout"] == "hi"
    assert (root / "workspace" / "new.txt").read_text() == "made\n"


@pytest.mark.parametrize(
    ("files", "error"),
    [
        ({"b4_config.py": "config = {'bogus': 1}"}, ConfigInvalid),
        ({"app/bad/agent.py": "x = 1\n"}, AppDefective),
    ],
)
async def test_nothing_is_made_for_an_app_that_cannot_be_used(make_app: MakeApp, files: dict[str, str], error: type[AppInvalid]) -> None:
    root = make_app(files)
    with pytest.raises(error):
        async with open_app(root):
            pass
    assert not (root / ".b4").exists()


async def test_an_unknown_route_names_those_there_are(make_app: MakeApp) -> None:
    async with open_app(make_app({"app/other/agent.py": AGENT})) as app:
        with pytest.raises(RouteUnknown) as unknown:
            await app.runtime.run("/fxi", "go", thread_id="t-1")
        assert unknown.value.remedy == "The app's routes: /fix, /other."


async def test_no_app_says_where_it_was_looked_for(tmp_path: Path) -> None:
    with pytest.raises(AppInvalid, match=str(tmp_path)):
        async with open_app(tmp_path):
            pass
