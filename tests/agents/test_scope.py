"""Which tools the model sees."""

from __future__ import annotations

import pytest

from b4run.agents import Agent, Route, ToolScope, check_route
from b4run.agents.scope import route_warnings, selected_tools
from b4run.errors import ToolScopeInvalid
from b4run.testing import agent_harness, script


def export(path: str) -> str:
    """Export a file."""
    return path


def route(**scope: object) -> Route:
    return Route.of(Agent(model="m", prompt="", tools=ToolScope(**scope)), "/r", tools=(export,))


@pytest.mark.parametrize(
    ("scope", "is_child", "expected"),
    [
        ({}, False, {"readFile", "writeFile", "editFile", "listDir", "runBash", "export"}),
        ({}, True, {"export"}),
        ({"allow": ["runBash", "readFile"]}, True, {"export", "runBash", "readFile"}),
        ({"deny": ["writeFile"]}, False, {"readFile", "listDir", "runBash", "export"}),
        ({"deny": ["writeFile"], "allow": ["editFile"]}, False, {"readFile", "editFile", "listDir", "runBash", "export"}),
        ({"deny": ["editFile"]}, False, {"readFile", "writeFile", "listDir", "runBash", "export"}),
        ({"deny": ["runBash", "export"], "allow": ["runBash"]}, True, set()),
    ],
)
async def test_the_selection(scope: dict[str, object], is_child: bool, expected: set[str]):
    assert set(selected_tools(route(**scope), is_child=is_child)) == expected


@pytest.mark.parametrize("field", ["allow", "deny", "approve"])
async def test_an_unknown_name_is_refused_with_those_there_are(field: str):
    (defect,) = check_route(route(**{field: ["runbash"]}))
    assert isinstance(defect, ToolScopeInvalid)
    assert (defect.code, defect.message) == ("B4_E1001", f"Route /r: `tools.{field}` names 'runbash', which this agent does not have.")
    assert defect.remedy == "Its tools: editFile, export, listDir, readFile, runBash, writeFile."


async def test_a_contradiction_stops_the_first_turn():
    with pytest.raises(ToolScopeInvalid):
        async with agent_harness(route(constrain={"nope": lambda arguments, info: True}), model=script()) as harness:
            await harness.run("go")


async def test_rules_without_effect_are_told():
    warnings = route_warnings(route(approve=["runBash", "export"], constrain={"export": lambda arguments, info: True}))
    assert [("runBash" in warning, "export" in warning) for warning in warnings] == [(True, False), (False, True)]


async def test_a_denied_tool_cannot_be_called():
    model = script().user("go").calls("runBash", command="id").replies("no")
    async with agent_harness(route(deny=["runBash"]), model=model) as harness:
        run = await harness.run("go")
    assert "there is no such tool" in run.tool_results[0].output


@pytest.mark.parametrize(
    ("verdict", "told"), [("only below out/", "only below out/"), (False, "does not allow"), (RuntimeError("inner"), "evaluated")]
)
async def test_a_predicate_refuses_a_call(verdict: object, told: str):
    async def judge(arguments: object, info: object) -> object:
        if isinstance(verdict, Exception):
            raise verdict
        return verdict

    model = script().user("go").calls("export", path="x").replies("no")
    async with agent_harness(route(constrain={"export": judge}), model=model) as harness:
        run = await harness.run("go")
    (result,) = run.tool_results
    assert result.output.startswith("[B4_E3001]")
    assert told in result.output
    assert "inner" not in result.output


async def test_a_predicate_can_ask():
    model = script().user("go").calls("export", path="x").replies("yes")
    async with agent_harness(route(constrain={"export": lambda arguments, info: {"approve": True}}), model=model) as harness:
        (prompt,) = (await harness.run("go")).interrupts
        assert prompt.kind == "tool"
        assert (await harness.resume("once")).tool_results[0].output == "x"
