"""Loading what the folders hold: kinds, tools, subagents, and every defect in one run."""

from __future__ import annotations

from pathlib import Path

import pytest

from b4run.agents import Agent, Route
from b4run.app import AppDefective, load_routes
from b4run.config import load_config

from .conftest import AGENT, MakeApp

TOOL = 'def {name}(path: str) -> str:\n    """Do it."""\n    return {answer!r}\n'


def routes_of(root: Path) -> dict[str, Route]:
    return load_routes(load_config(root))


def defects_of(root: Path) -> list[tuple[str, str]]:
    with pytest.raises(AppDefective) as defective:
        routes_of(root)
    return [(defect.code, defect.text) for defect in defective.value.defects]


def test_an_agent_with_its_tools_and_subagents(make_app: MakeApp) -> None:
    root = make_app(
        {
            "app/fix/tools/export.py": "import json\n_SECRET = 1\ndef _helper(): ...\n" + TOOL.format(name="export", answer="mine"),
            "app/fix/subagents/review/agent.py": AGENT,
            "app/fix/subagents/review/tools/lint.py": TOOL.format(name="lint", answer="clean"),
            "tools/search.py": TOOL.format(name="search", answer="found"),
        }
    )
    (fix,) = routes_of(root).values()
    assert (fix.id, fix.kind, fix.file, fix.key) == ("/fix", "agent", "app/fix/agent.py", "/fix#agent")
    assert isinstance(fix.entry, Agent)
    assert sorted(fix.tools) == ["export", "search"]
    review = fix.subagents["review"]
    assert (review.id, review.file) == ("/fix/review", "app/fix/subagents/review/agent.py")
    assert sorted(review.tools) == ["lint", "search"]


def test_a_tool_of_the_route_shadows_a_shared_one(make_app: MakeApp) -> None:
    root = make_app(
        {
            "tools/search.py": TOOL.format(name="search", answer="shared"),
            "app/fix/tools/search.py": TOOL.format(name="search", answer="own"),
        }
    )
    assert routes_of(root)["/fix"].tools["search"](path="x") == "own"


def test_a_graph_is_a_route(make_app: MakeApp) -> None:
    graph = """
    from langgraph.graph import END, START, MessagesState, StateGraph
    builder = StateGraph(MessagesState)
    builder.add_node("echo", lambda state: {"messages": state["messages"][-1:]})
    builder.add_edge(START, "echo")
    builder.add_edge("echo", END)
    graph = builder.compile()
    """
    assert routes_of(make_app({"app/echo/agent.py": graph}))["/echo"].key == "/echo#graph"


def test_every_defective_file_is_named_in_one_run(make_app: MakeApp) -> None:
    root = make_app(
        {
            "app/a/agent.py": "x = 1\n",
            "app/b/agent.py": AGENT + "graph = agent\n",
            "app/c/agent.py": "\nimport nowhere_at_all\n",
            "app/d/agent.py": "agent = 'me'\n",
            "app/e/agent.py": 'from b4run.agents import Agent\nagent = Agent(model="m", promt="x", recursion_limit=0)\n',
            "app/fix/tools/none.py": "x = 1\n",
            "app/fix/tools/two.py": TOOL.format(name="one", answer="") + TOOL.format(name="two", answer=""),
            "app/fix/tools/bare.py": "def bare() -> str:\n    return ''\n",
            "app/fix/tools/task.py": TOOL.format(name="task", answer=""),
            "app/fix/tools/same1.py": TOOL.format(name="same", answer=""),
            "app/fix/tools/same2.py": TOOL.format(name="same", answer=""),
            "app/fix/subagents/broken/agent.py": "raise ValueError('why')\n",
            "tools/raises.py": "{}['x']\n",
        }
    )
    assert sorted(defects_of(root)) == [
        ("B4_E1006", "app/e/agent.py:2: Agent.prompt: is required"),
        ("B4_E1006", "app/e/agent.py:2: Agent.promt: unknown key; known: " + ", ".join(Agent.model_fields) + " (did you mean prompt?)"),
        ("B4_E1006", "app/e/agent.py:2: Agent.recursion_limit: must be at least 1, got 0"),
        ("B4_E1007", "app/a/agent.py binds neither an `Agent` to `agent` nor a graph to `graph`."),
        ("B4_E1007", "app/d/agent.py binds neither an `Agent` to `agent` nor a graph to `graph`."),
        ("B4_E1008", "app/b/agent.py binds both `agent` and `graph`."),
        ("B4_E5001", "app/c/agent.py, line 2: ModuleNotFoundError: No module named 'nowhere_at_all'"),
        ("B4_E5001", "app/fix/subagents/broken/agent.py, line 1: ValueError: why"),
        ("B4_E5001", "tools/raises.py, line 1: KeyError: 'x'"),
        ("B4_E5002", "app/fix/tools/bare.py: bare has no docstring, which the model needs to know what it does"),
        ("B4_E5002", "app/fix/tools/none.py: has no public function"),
        ("B4_E5002", "app/fix/tools/same2.py: another file of the same folder already has a tool 'same'"),
        ("B4_E5002", "app/fix/tools/task.py: a tool cannot be called 'task': that is how work is handed to a subagent"),
        ("B4_E5002", "app/fix/tools/two.py: has 2 public functions (one, two), not one"),
    ]


def test_two_agents_of_one_name_never_clash(make_app: MakeApp) -> None:
    root = make_app({f"app/{name}/agent.py": AGENT.replace("Help.", name) for name in ("one", "two")})
    routes = routes_of(root)
    assert (routes["/one"].entry.prompt, routes["/two"].entry.prompt) == ("one", "two")
