"""For an app's own tests: run its agents for real, with only the model replaced.

    from b4run.testing import agent_harness, script

    async with agent_harness("my-app", "/fix", model=script().user("fix").calls("runBash", command="ls").replies("done")) as harness:
        run = await harness.run("fix it")
    assert run.tool_calls.named("runBash")[0].input == {"command": "ls"}

The pytest plugin `b4run.testing.plugin` has fixtures for it.
"""

from __future__ import annotations

from b4run.agents.scripts import Script, script
from b4run.testing.harness import AgentHarness, HarnessRun, Named, SubagentRun, agent_harness

__all__ = ["AgentHarness", "HarnessRun", "Named", "Script", "SubagentRun", "agent_harness", "script"]
