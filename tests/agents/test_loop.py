"""The loop around the model: its history, its retries, its limits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph

from b4run.agents import Agent, AgentRuntime, Retry, Route, ScriptedChatModel, local_workspace, open_checkpoints
from b4run.agents.history import repaired
from b4run.errors import ModelFailed, ModelProviderMissing, ModelUnknown, RouteUnknown, StepLimitReached
from b4run.permissions import PermissionGate
from b4run.sandbox import SandboxSupervisor
from b4run.sandbox.testing import fake_sandbox
from b4run.testing import agent_harness, script

AGENT = Agent(model="none:none", prompt="Work.", retry=Retry(base_delay_ms=0))


def asked(call_id: str, name: str = "runBash") -> dict[str, Any]:
    return {"name": name, "args": {}, "id": call_id, "type": "tool_call"}


def kinds(messages: list[BaseMessage]) -> list[tuple[str, str]]:
    return [(message.type, message.tool_call_id if isinstance(message, ToolMessage) else message.text) for message in messages]


async def test_calls_that_were_cut_off_are_answered_in_the_model_s_view():
    stored = [
        HumanMessage("go"),
        AIMessage("", tool_calls=[asked("1"), asked("2")]),
        ToolMessage("ok", tool_call_id="2"),
        HumanMessage("again"),
        AIMessage("", tool_calls=[asked("3")]),
    ]
    seen = repaired(stored)
    assert kinds(seen) == [("human", "go"), ("ai", ""), ("tool", "2"), ("tool", "1"), ("human", "again"), ("ai", ""), ("tool", "3")]
    assert [message.status for message in seen if isinstance(message, ToolMessage)] == ["success", "error", "error"]
    assert "unknown" in seen[3].text
    assert len(stored) == 5
    assert repaired(seen) == seen


class Failing(ScriptedChatModel):
    """Raises what it is given, then answers."""

    failures: list[Any]
    asked: list[list[BaseMessage]] = []

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        self.asked.append(messages)
        if self.failures:
            raise self.failures.pop(0)
        return ChatResult(generations=[ChatGeneration(message=AIMessage("fine"))])

    _stream = ScriptedChatModel._stream


class Refusal(Exception):
    def __init__(self, status_code: int, retry_after: str | None = None) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code
        headers = {"retry-after": retry_after} if retry_after else {}
        self.response = type("Response", (), {"status_code": status_code, "headers": headers})()


class Unstreamed(Failing):
    disable_streaming: bool = True


async def turn(model: Any) -> str:
    async with agent_harness(AGENT, model=model) as harness:
        return (await harness.run("go")).final_message


@pytest.mark.parametrize("failure", [Refusal(429), Refusal(503), ConnectionResetError(), Refusal(429, "0")])
async def test_a_passing_failure_is_tried_again(failure: Exception):
    model = Unstreamed(fixtures=(), failures=[failure, failure], asked=[])
    assert await turn(model) == "fine"
    assert len(model.asked) == 3


@pytest.mark.parametrize("failure", [Refusal(401), Refusal(400), Refusal(429, "60"), ValueError("odd")])
async def test_a_lasting_failure_is_told_at_once(failure: Exception):
    model = Unstreamed(fixtures=(), failures=[failure], asked=[])
    with pytest.raises(ModelFailed, match="1 attempts") as caught:
        await turn(model)
    assert caught.value.code == "B4_E4003"
    assert len(model.asked) == 1


async def test_attempts_are_bounded():
    model = Unstreamed(fixtures=(), failures=[Refusal(500)] * 9, asked=[])
    with pytest.raises(ModelFailed, match="3 attempts"):
        await turn(model)
    assert len(model.asked) == 3


async def test_a_missing_provider_package_is_named_with_its_command():
    async with agent_harness(Agent(model="openai:gpt-5-mini", prompt=""), model=None) as harness:
        with pytest.raises(ModelProviderMissing) as caught:
            await harness.run("go")
    assert (caught.value.code, caught.value.remedy) == ("B4_E4001", "Install it: pip install langchain-openai")


async def test_a_model_of_no_provider_is_refused():
    async with agent_harness(Agent(model="fable-9", prompt=""), model=None) as harness:
        with pytest.raises(ModelUnknown):
            await harness.run("go")


async def test_a_chat_model_object_serves():
    class Listed(FakeListChatModel):
        def bind_tools(self, tools: Any, **kwargs: Any) -> Any:
            return self

    async with agent_harness(Agent(model=Listed(responses=["from the object"]), prompt=""), model=None) as harness:
        assert (await harness.run("go")).final_message == "from the object"


async def test_steps_are_limited_and_the_thread_goes_on():
    agent = Agent(model="none:none", prompt="", recursion_limit=3)
    model = script().user("go").calls("listDir").calls("listDir").user("on").replies("fine")
    async with agent_harness(agent, model=model) as harness:
        with pytest.raises(StepLimitReached, match="after 3 steps"):
            await harness.run("go")
        assert (await harness.run("on")).final_message == "fine"


@pytest.mark.parametrize(
    ("input", "text"),
    [("hi", "hi"), ({"messages": [{"role": "user", "content": "hi"}]}, "hi"), ({"task": "é"}, '{"task": "é"}'), (None, "null")],
)
async def test_every_input_reaches_the_model(input: Any, text: str):
    async with agent_harness(AGENT, model=script().user(text).replies("ok")) as harness:
        run = await harness.run(input)
    assert [message.text for message in run.messages] == [text, "ok"]


async def test_an_unknown_route_names_those_there_are():
    async with SandboxSupervisor(fake_sandbox()) as sandboxes:
        runtime = AgentRuntime({"/a": Route.of(AGENT, "/a")}, sandboxes=sandboxes, permissions=PermissionGate())
        with pytest.raises(RouteUnknown, match="There is no route '/b'") as caught:
            await runtime.run("/b", "go", thread_id="t")
    assert caught.value.remedy == "The app's routes: /a."


async def test_a_graph_of_the_app_s_own_is_a_route():
    def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"{len(state['messages'])} so far")]}

    graph = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").add_edge("answer", END).compile()
    async with SandboxSupervisor(fake_sandbox()) as sandboxes:
        runtime = AgentRuntime({"/g": Route("/g", "graph", "", graph)}, sandboxes=sandboxes, permissions=PermissionGate())
        assert (await runtime.run("/g", "go", thread_id="t")).output == "1 so far"
        assert (await runtime.run("/g", "go", thread_id="t")).output == "3 so far"


async def test_a_conversation_outlives_its_process_and_can_be_forgotten(tmp_path: Path):
    model = script().user("one").calls("runBash", command="x").replies("first").user("two").replies("second").model()
    name = "caf\udce9"
    odd = script().user("three").calls("readFile", path=name).replies("third").model()
    for turn, scripted in (("one", model), ("two", model), ("three", odd)):
        async with SandboxSupervisor(fake_sandbox()) as sandboxes, open_checkpoints(tmp_path / "c.sqlite") as checkpoints:
            runtime = AgentRuntime(
                {"/a": Route.of(AGENT, "/a")},
                sandboxes=sandboxes,
                permissions=PermissionGate(),
                checkpointer=checkpoints,
                model=scripted,
                can_ask=False,
            )
            await runtime.run("/a", turn, thread_id="t")
            last = [message.text for message in await runtime.messages("/a", thread_id="t") if message.type in ("human", "ai")]
            if turn == "three":
                await runtime.forget("t")
                assert not await runtime.messages("/a", thread_id="t")
    assert last == ["one", "", "first", "two", "second", "three", "", "third"]


async def test_threads_run_at_once(tmp_path: Path):
    async with local_workspace(tmp_path) as sandboxes:
        model = script().user("go").replies("ok").model(repeat=True)
        runtime = AgentRuntime({"/a": Route.of(AGENT, "/a")}, sandboxes=sandboxes, permissions=PermissionGate(), model=model)
        import asyncio

        results = await asyncio.gather(*(runtime.run("/a", "go", thread_id=f"t{number}") for number in range(5)))
    assert [result.output for result in results] == ["ok"] * 5
