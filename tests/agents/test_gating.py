"""What pauses a run, how it goes on, and that nothing runs twice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from b4run.agents import Agent, AgentRuntime, Answer, Route, ToolContext, ToolScope, open_checkpoints
from b4run.errors import ResumeRefused
from b4run.permissions import GrantScope, MemoryGrantStore, PermissionGate, PermissionMode, read_rules
from b4run.sandbox import SandboxSupervisor
from b4run.sandbox.testing import Answer as Reply
from b4run.sandbox.testing import FakeCommand, FakeProvider, fake_sandbox
from b4run.testing import Script, agent_harness, script

AGENT = Agent(model="none:none", prompt="Work.")


def recording() -> tuple[FakeProvider, list[str]]:
    ran: list[str] = []

    def run(command: FakeCommand) -> Reply:
        ran.append(str(command.command))
        return Reply(stdout="ok\n")

    return fake_sandbox(run, outside={"/etc/hostname": b"box\n"}), ran


def rules(**lists: list[str]) -> PermissionGate:
    return PermissionGate(allow=read_rules(lists, where="permissions.allow"), grants=MemoryGrantStore())


def one_command(command: str = "make test") -> Script:
    return script().user("go").calls("runBash", command=command).replies("done")


async def test_an_unknown_command_pauses_before_it_runs():
    provider, ran = recording()
    async with agent_harness(AGENT, model=one_command(), sandbox=provider) as harness:
        run = await harness.run("go")
        assert (run.result.parked, run.final_message, run.tool_results, ran) == (True, "", (), [])
        (prompt,) = run.interrupts
        assert (prompt.kind, prompt.detail) == ("command", {"command": "make test", "suggestedPattern": "make test"})
        assert prompt.prompt["type"] == "permission-request"
        assert prompt.prompt["toolCallId"] == run.tool_calls[0].id
        run = await harness.resume("once")
        assert (run.final_message, ran) == ("done", ["make test"])


async def test_a_denial_is_told_to_the_model_and_the_run_goes_on():
    provider, ran = recording()
    async with agent_harness(AGENT, model=one_command(), sandbox=provider) as harness:
        await harness.run("go")
        run = await harness.resume("deny")
    (result,) = run.tool_results
    assert result.output.startswith("[B4_E3001] This command was denied by the user.")
    assert (result.is_error, run.final_message, ran) == (True, "done", [])


async def test_once_is_for_one_call_and_always_for_the_thread():
    provider, ran = recording()
    gate = rules()
    async with agent_harness(AGENT, model=one_command(), sandbox=provider, permissions=gate) as harness:
        await harness.run("go")
        await harness.resume("once")
        harness.go_on(one_command())
        assert (await harness.run("go")).result.parked
        assert not (await harness.resume("always")).result.parked
        harness.go_on(one_command())
        assert not (await harness.run("go")).result.parked
        harness.reset(one_command())
        assert (await harness.run("go")).result.parked, "another thread is asked again"
        await harness.resume(Answer("always", scope=GrantScope.APP))
        harness.reset(one_command())
        assert not (await harness.run("go")).result.parked
    assert len(ran) == 5


async def test_several_prompts_wait_at_once_and_nothing_runs_twice():
    provider, ran = recording()
    model = (
        script()
        .user("go")
        .together(("runBash", {"command": "echo free"}), ("runBash", {"command": "make a"}), ("runBash", {"command": "make b"}))
    )
    async with agent_harness(AGENT, model=model.replies("done"), sandbox=provider, permissions=rules(bash=["echo"])) as harness:
        run = await harness.run("go")
        assert [prompt.detail["command"] for prompt in run.interrupts] == ["make a", "make b"]
        assert ran == ["echo free"]
        first, second = run.interrupts
        with pytest.raises(ResumeRefused, match=f"not answered: {second.id}"):
            await harness.resume({first.id: "once"})
        with pytest.raises(ResumeRefused, match="not pending: perm-other"):
            await harness.resume({first.id: "once", second.id: "once", "perm-other": "once"})
        with pytest.raises(ResumeRefused, match="'yes' is no answer"):
            await harness.resume("yes")
        assert ran == ["echo free"]
        run = await harness.resume({first.id: "once", second.id: "deny"})
        assert ran == ["echo free", "make a"]
        assert {result.id: result.is_error for result in run.tool_results} == {
            first.prompt["toolCallId"]: False,
            second.prompt["toolCallId"]: True,
        }
        with pytest.raises(ResumeRefused, match="nothing is pending"):
            await harness.resume("once")


@pytest.mark.parametrize("can_ask", [True, False])
async def test_who_cannot_be_asked_is_refused(can_ask: bool):
    provider, ran = recording()
    gate = PermissionGate() if not can_ask else PermissionGate(mode=PermissionMode.NON_INTERACTIVE)
    async with agent_harness(AGENT, model=one_command(), sandbox=provider, permissions=gate, can_ask=can_ask) as harness:
        run = await harness.run("go")
    assert "B4_E3001" in run.tool_results[0].output
    assert "permissions.allow.bash" in run.tool_results[0].output
    assert ran == []


async def test_a_denied_command_never_asks():
    provider, ran = recording()
    gate = PermissionGate(mode=PermissionMode.BYPASS, deny=read_rules({"bash": ["make"]}, where="permissions.deny", denies=True))
    async with agent_harness(AGENT, model=one_command(), sandbox=provider, permissions=gate) as harness:
        run = await harness.run("go")
    assert "is denied by the rule 'make'" in run.tool_results[0].output
    assert ran == []


async def test_a_path_outside_asks_by_its_canonical_name():
    provider, _ = recording()
    model = script().user("go").calls("readFile", path="../etc/./hostname").replies("done")
    async with agent_harness(AGENT, model=model, sandbox=provider) as harness:
        run = await harness.run("go")
        (prompt,) = run.interrupts
        assert (prompt.kind, prompt.detail["operation"], prompt.detail["path"]) == ("path", "readFile", "/etc/hostname")
        run = await harness.resume("once")
    assert run.tool_results[0].output == "box\n"


@pytest.mark.parametrize("first", ["once", "always"])
async def test_an_edit_outside_asks_to_read_and_then_to_write(first: str):
    provider, _ = recording()
    model = script().user("go").calls("editFile", path="/etc/hostname", oldText="box", newText="crate").replies("done")
    async with agent_harness(AGENT, model=model, sandbox=provider) as harness:
        assert [prompt.detail["operation"] for prompt in (await harness.run("go")).interrupts] == ["readFile"]
        assert [prompt.detail["operation"] for prompt in (await harness.resume(first)).interrupts] == ["writeFile"]
        run = await harness.resume("deny")
    assert run.tool_results[0].output.startswith("[B4_E3001] This path was denied by the user.")


async def test_a_denied_file_inside_the_workspace_stays_closed():
    deny = read_rules({"readFile": ["/workspace/secret"]}, where="permissions.deny", denies=True)
    model = script().user("go").calls("readFile", path="./secret/../secret/key").replies("done")
    async with agent_harness(AGENT, model=model, permissions=PermissionGate(deny=deny)) as harness:
        async with harness.sandbox() as sandbox:
            await sandbox.files.write("secret/key", b"k")
        run = await harness.run("go")
    assert "is denied by the rule" in run.tool_results[0].output


async def test_a_prompt_outlives_its_process(tmp_path: Path):
    provider, ran = recording()

    async def runtime(use: Callable[[AgentRuntime], object]) -> None:
        async with SandboxSupervisor(provider) as sandboxes, open_checkpoints(tmp_path / ".b4" / "checkpoints.sqlite") as checkpoints:
            await use(
                AgentRuntime({"/a": Route.of(AGENT, "/a")}, sandboxes=sandboxes, permissions=rules(), checkpointer=checkpoints, model=model)
            )

    model = one_command().model()

    async def park(runtime: AgentRuntime) -> None:
        assert (await runtime.run("/a", "go", thread_id="t")).parked

    async def go_on(runtime: AgentRuntime) -> None:
        (prompt,) = await runtime.pending("/a", thread_id="t")
        assert (prompt.kind, ran) == ("command", [])
        assert (await runtime.resume("/a", {prompt.id: "once"}, thread_id="t")).output == "done"

    await runtime(park)
    await runtime(go_on)
    assert ran == ["make test"]


async def test_a_new_turn_gives_up_what_was_pending():
    provider, ran = recording()
    model = script().user("go").calls("runBash", command="make").user("other").replies("fine")
    async with agent_harness(AGENT, model=model, sandbox=provider) as harness:
        await harness.run("go")
        run = await harness.run("other")
        assert run.final_message == "fine"
        with pytest.raises(ResumeRefused):
            await harness.resume("once")
    assert ran == []


async def test_a_function_that_asks_is_approved_by_name():
    sent: list[str] = []

    def send(text: str) -> str:
        """Send a text."""
        sent.append(text)
        return "sent"

    agent = Agent(model="none:none", prompt="Work.", tools=ToolScope(approve=["send"]))
    model = script().user("go").calls("send", text="x" * 600).replies("done")
    async with agent_harness(agent, model=model, tools=[send]) as harness:
        (prompt,) = (await harness.run("go")).interrupts
        assert (prompt.kind, prompt.detail["toolName"]) == ("tool", "send")
        assert len(prompt.detail["argsPreview"]) == 501
        assert sent == []
        run = await harness.resume("once")
    assert (run.tool_results[0].output, sent) == ("sent", ["x" * 600])


async def test_a_function_that_swallows_the_pause_is_paused_all_the_same():
    async def peek(ctx: ToolContext) -> str:
        """Look outside."""
        try:
            return (await ctx.files.read("/etc/hostname")).data.decode()
        except Exception:
            return "swallowed"

    provider, _ = recording()
    model = script().user("go").calls("peek").replies("done")
    async with agent_harness(AGENT, model=model, tools=[peek], sandbox=provider) as harness:
        run = await harness.run("go")
        assert (run.result.parked, run.tool_results) == (True, ())
        assert (await harness.resume("once")).tool_results[0].output == "box\n"
