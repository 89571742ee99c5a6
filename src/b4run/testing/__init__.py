"""For an app's own tests: run its agents for real, with only the model replaced.

    from b4run.testing import agent_harness, script

    async with agent_harness("my-app", "/fix", model=script().user("fix").calls("runBash", command="ls").replies("done")) as harness:
        run = await harness.run("fix it")
    assert run.tool_calls.named("runBash")[0].input == {"command": "ls"}

The pytest plugin `b4run.testing.plugin` has fixtures for it. Names are resolved on first use, for the plugin is loaded by every test run.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from b4run.agents.scripts import Script, script
    from b4run.testing.harness import AgentHarness, HarnessRun, Named, SubagentRun, agent_harness

__all__ = ["AgentHarness", "HarnessRun", "Named", "Script", "SubagentRun", "agent_harness", "script"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "b4run.agents.scripts" if name in ("Script", "script") else "b4run.testing.harness"
    value = getattr(import_module(module), name)
    globals()[name] = value
    return value
