"""Dispatch to subagents: one workspace, rules on the way down, answers on the way up."""

from __future__ import annotations

import pytest

from b4run.agents import Agent, CallInfo, Delegation, DelegationRule, Route, SubagentEvent, SubagentStart, ToolScope, check_route
from b4run.errors import DelegationInvalid
from b4run.permissions import MemoryGrantStore, PermissionGate, PermissionMode, read_rules
from b4run.sandbox.testing import fake_sandbox
from b4run.testing import Script, agent_harness, script

WRITER = Agent(model="none:none", prompt="Write.", description="Writes files.", tools=ToolScope(allow=["writeFile", "runBash"]))
READER = Agent(model="none:none", prompt="Read.")


def parent(delegation: Delegation | None = None, **subagents: Agent) -> Agent:
    return Agent(model="none:none", prompt="Lead.", subagents=subagents, delegation=delegation or Delegation())


def dispatch(name: str = "writer", task: str = "write it") -> Script:
    return script().user("go").calls("task", subagent=name, input=task)


async def test_a_child_writes_where_its_parent_reads():
    model = dispatch().calls("readFile", path="note").replies("read it")
    model.user("write it").calls("writeFile", path="note", content="hello").replies("written")
    provider = fake_sandbox()
    async with agent_harness(parent(writer=WRITER), model=model, sandbox=provider) as harness:
        run = await harness.run("go")
        assert provider.log == [("acquire", harness.thread_id)]
    assert [result.output for result in run.tool_results] == ["written", "hello"]
    (child,) = run.subagents.named("writer")
    assert (child.route, child.depth, child.final_message, child.tool_calls.names) == ("/agent/writer", 1, "written", ("writeFile",))
    assert run.final_message == "read it"
    assert "".join(run.tokens) == "read it"


async def test_the_events_of_a_child_name_its_dispatch():
    model = dispatch().replies("done")
    model.user("write it").replies("nothing to do")
    async with agent_harness(parent(writer=WRITER), model=model) as harness:
        run = await harness.run("go")
    call = run.tool_calls[0].id
    starts = [event for event in run.events if isinstance(event, SubagentStart)]
    assert [start.data() for start in starts] == [
        {
            "call_id": call,
            "parent_call_id": None,
            "name": "writer",
            "routeId": "/agent/writer",
            "depth": 1,
            "description": "Writes files.",
            "input": "write it",
        }
    ]
    assert [event.type for event in run.events if isinstance(event, SubagentEvent)] == ["subagent.token"] * 3


async def test_a_child_has_no_workspace_tools_but_those_it_is_granted():
    model = dispatch("reader").replies("done")
    model.user("write it").calls("runBash", command="id").replies("could not")
    async with agent_harness(parent(reader=READER), model=model) as harness:
        run = await harness.run("go")
    (result,) = run.subagents[0].tool_results
    assert "there is no such tool" in result.output


async def test_only_dispatchable_names_are_offered():
    rules = Delegation(rules={"reader": DelegationRule(action="deny", reason="no readers")})
    model = script().user("go").calls("task", subagent="reader", input="x").calls("task", subagent="ghost", input="x").replies("done")
    async with agent_harness(parent(rules, writer=WRITER, reader=READER), model=model) as harness:
        run = await harness.run("go")
    assert [result.output for result in run.tool_results] == [
        "[B4_E5006] The arguments of task are not valid: `subagent` is one of writer, `input` a text. Correct them and call the tool again."
    ] * 2


async def test_a_failing_child_is_a_coded_answer_and_its_parent_goes_on():
    model = dispatch().replies("went on")
    async with agent_harness(parent(writer=WRITER), model=model) as harness:
        run = await harness.run("go")
    assert run.tool_results[0].output.startswith("[B4_E5003] Subagent 'writer' failed: The scripted model has no answer")
    assert run.subagents[0].error
    assert run.final_message == "went on"


async def test_the_fourth_level_is_refused():
    agent = Agent(model="none:none", prompt="4")
    for level in ("3", "2", "1"):
        agent = Agent(model="none:none", prompt=level, subagents={"deeper": agent})
    model = dispatch("deeper", "level one").replies("end")
    model.user("level one").calls("task", subagent="deeper", input="level two").replies("from one")
    model.user("level two").calls("task", subagent="deeper", input="level three").replies("from two")
    model.user("level three").replies("deepest")
    top = Agent(model="none:none", prompt="0", subagents={"deeper": agent})
    async with agent_harness(top, model=model) as harness:
        run = await harness.run("go")
    assert [(child.depth, child.final_message) for child in run.subagents] == [(1, "from one"), (2, "from two"), (3, "deepest")]

    model = dispatch("deeper", "level one").replies("end")
    model.user("level one").calls("task", subagent="deeper", input="level two").replies("from one")
    model.user("level two").calls("task", subagent="deeper", input="level three").replies("from two")
    model.user("level three").calls("task", subagent="deeper", input="level four").replies("refused")
    async with agent_harness(Agent(model="none:none", prompt="-", subagents={"deeper": top}), model=model) as harness:
        run = await harness.run("go")
    (refused,) = run.subagents[2].tool_results
    assert refused.output.startswith("[B4_E5003]")
    assert "3 levels" in refused.output


async def test_the_prompt_of_a_child_is_answered_at_the_root():
    model = dispatch().replies("end")
    model.user("write it").calls("runBash", command="make").replies("made")
    async with agent_harness(parent(writer=WRITER), model=model) as harness:
        run = await harness.run("go")
        (prompt,) = run.interrupts
        assert (prompt.kind, prompt.detail["command"], prompt.prompt["callId"]) == ("command", "make", run.tool_calls[0].id)
        run = await harness.resume("once")
    assert run.final_message == "end"
    assert run.subagents[0].tool_results[0].output == '{"stdout": "", "stderr": "", "exitCode": 0}'


async def test_an_approved_dispatch_starts_after_the_answer_and_asks_no_second_time():
    rules = Delegation(rules={"writer": DelegationRule(action="approve", reason="costs money")})
    model = dispatch().replies("end")
    model.user("write it").calls("runBash", command="make").replies("made")
    async with agent_harness(parent(rules, writer=WRITER), model=model) as harness:
        (prompt,) = (await harness.run("go")).interrupts
        assert (prompt.kind, prompt.detail["subagentName"], prompt.detail["reason"]) == ("subagent", "writer", "costs money")
        (prompt,) = (await harness.resume("once")).interrupts
        assert prompt.kind == "command"
        assert (await harness.resume("once")).final_message == "end"


async def test_a_denied_dispatch_is_an_answer():
    model = dispatch().replies("end")
    async with agent_harness(parent(Delegation(default="approve"), writer=WRITER), model=model) as harness:
        await harness.run("go")
        run = await harness.resume("deny")
    assert run.tool_results[0].output.startswith("[B4_E3002] This subagent was denied by the user.")


async def test_two_children_wait_at_once():
    model = (
        script()
        .user("go")
        .together(("task", {"subagent": "writer", "input": "first"}), ("task", {"subagent": "writer", "input": "second"}))
    )
    model = model.replies("end").user("first").calls("runBash", command="make a").replies("a")
    model = model.user("second").calls("runBash", command="make b").replies("b")
    async with agent_harness(parent(writer=WRITER), model=model) as harness:
        run = await harness.run("go")
        assert {prompt.detail["command"] for prompt in run.interrupts} == {"make a", "make b"}
        run = await harness.resume("once")
    assert {child.final_message for child in run.subagents} == {"a", "b"}


@pytest.mark.parametrize(
    ("verdict", "told"),
    [(True, None), ("too long", "too long"), (False, "does not allow"), (None, "does not allow"), (ValueError("secret"), "evaluated")],
)
async def test_a_predicate_judges_the_input_and_fails_closed(verdict: object, told: str | None):
    asked: list[tuple[str, str | None]] = []

    def predicate(arguments: object, info: CallInfo) -> object:
        asked.append((info.route, info.child))
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    rule = DelegationRule(action="constrain", predicate=predicate)
    model = dispatch().replies("end")
    if told is None:
        model.user("write it").replies("written")
    async with agent_harness(parent(Delegation(rules={"writer": rule}), writer=WRITER), model=model) as harness:
        run = await harness.run("go")
    output = run.tool_results[0].output
    assert asked == [("/agent", "writer")]
    assert "secret" not in output
    assert output == "written" if told is None else output.startswith("[B4_E3002]") and told in output


async def test_permissions_deny_a_dispatch_that_the_agent_allows():
    deny = read_rules({"subagent": ['["/agent","writer"]']}, where="permissions.deny", denies=True)
    gate = PermissionGate(mode=PermissionMode.BYPASS, deny=deny, grants=MemoryGrantStore())
    async with agent_harness(parent(writer=WRITER), model=dispatch().replies("end"), permissions=gate) as harness:
        run = await harness.run("go")
    assert run.tool_results[0].output.startswith("[B4_E3002]")


@pytest.mark.parametrize(
    ("route", "reason"),
    [
        (Route("/r", "agent", "", parent(**{"a b": READER})), "cannot be the name"),
        (Route("/r", "agent", "", parent(a=READER), subagents={"a": Route("/r/a", "agent", "", READER)}), "twice"),
        (Route("/r", "agent", "", parent(Delegation(rules={"x": DelegationRule(action="deny")}), a=READER)), "names 'x'"),
        (Route("/r", "agent", "", parent(Delegation(rules={"a": DelegationRule(action="constrain")}), a=READER)), "predicate"),
        (Route("/r", "agent", "", parent(), subagents={"g": Route("/r/g", "graph", "", object())}), "is a graph"),
        (Route("/r", "agent", "", Agent(model="m", prompt="", tools=ToolScope(deny=["task"]))), "delegation"),
    ],
)
async def test_a_contradictory_registration_is_refused(route: Route, reason: str):
    (defect,) = check_route(route)
    assert isinstance(defect, DelegationInvalid)
    assert reason in defect.message
    assert defect.code == "B4_E1004"
