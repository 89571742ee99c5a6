"""How an app describes its agents. Nothing here imports the agent loop, so that a definition loads at once."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from b4run.sandbox.contract import FileBackend, SandboxHandle
from b4run.strict import StrictModel

DISPATCH_TOOL = "task"
"""The tool that hands work to a subagent; no other tool may take its name."""

WORKSPACE_TOOLS = ("readFile", "writeFile", "editFile", "listDir", "runBash")
"""The tools that every route has, and a subagent only where its scope allows them by name."""

Tool = Callable[..., Any]
"""A plain function, sync or async: its name, type hints and docstring make the schema that the model sees."""

Verdict = bool | str | Mapping[str, bool]
"""`True`: go on; a text: refuse for that reason; `{"approve": True}`: ask a person. Anything else refuses."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a function tool gets when one of its parameters is annotated with this class; the model does not see that parameter.

    `files` is gated like the built-in file tools. `sandbox` is not: what it runs is the tool author's responsibility.
    """

    files: FileBackend
    sandbox: SandboxHandle
    thread_id: str


@dataclass(frozen=True, slots=True)
class CallInfo:
    """Who makes the call that a predicate judges. `child` is the subagent's name for a dispatch."""

    route: str
    thread_id: str
    child: str | None = None


Predicate = Callable[[Mapping[str, Any], CallInfo], Verdict | Awaitable[Verdict]]
"""Judges the arguments of one call. One that raises, or answers anything but a verdict, refuses."""

Names = Annotated[tuple[str, ...], Field(strict=False)]


class ToolScope(StrictModel):
    """Which tools an agent has, which ask first, and which are judged by a predicate. `deny` wins over `allow`."""

    allow: Names = ()
    """Grants a subagent the workspace tools it is otherwise without; and `editFile` beside a denied `writeFile`."""
    deny: Names = ()
    approve: Names = ()
    constrain: Mapping[str, Predicate] = Field(default_factory=dict)


class DelegationRule(StrictModel):
    """What becomes of a dispatch to one subagent; `reason` is shown to the person, or to the model when it is denied."""

    action: Literal["allow", "deny", "approve", "constrain"]
    reason: str = ""
    predicate: Predicate | None = None


class Delegation(StrictModel):
    """Rules for the direct subagents of an agent, by name; `default` is for those without one."""

    default: Literal["allow", "deny", "approve"] = "allow"
    rules: Mapping[str, DelegationRule] = Field(default_factory=dict)


class Retry(StrictModel):
    """How single model calls are repeated when they fail for a passing reason. Tools never are."""

    max_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    base_delay_ms: Annotated[int, Field(ge=0, le=60_000)] = 1_000


def _usable_model(model: object) -> object:
    usable = bool(model.strip()) if isinstance(model, str) else callable(getattr(model, "bind_tools", None))
    if not usable:
        raise ValueError("must be a name such as 'openai:gpt-5-mini', or a LangChain chat model")
    return model


class Agent(StrictModel):
    """One agent: a model, what it is told, and what it may use.

    `model` is a name that LangChain's `init_chat_model` knows, such as `openai:gpt-5-mini`, or a chat model. `description` is shown to
    a parent that may dispatch to it. `recursion_limit` bounds the steps of one run: a model answer and its tool calls are two.
    """

    model: Annotated[Any, AfterValidator(_usable_model)]
    prompt: str
    description: str = ""
    tools: ToolScope = Field(default_factory=ToolScope)
    subagents: Mapping[str, Agent] = Field(default_factory=dict)
    delegation: Delegation = Field(default_factory=Delegation)
    recursion_limit: Annotated[int, Field(ge=1, le=10_000)] = 25
    retry: Retry = Field(default_factory=Retry)


@dataclass(frozen=True, slots=True)
class Route:
    """An agent, or a LangGraph graph, with the function tools and subagents that are its own."""

    id: str
    """Such as `/fix`; of a subagent its parent's id and its name, `/fix/review`."""
    kind: Literal["agent", "graph"]
    file: str
    """Relative to the app's root; empty for one that comes from no file."""
    entry: Any
    """The `Agent`, or the graph."""
    tools: Mapping[str, Tool] = field(default_factory=dict)
    subagents: Mapping[str, Route] = field(default_factory=dict)

    @property
    def key(self) -> str:
        return f"{self.id}#{self.kind}"

    @classmethod
    def of(cls, agent: Agent, id: str = "/agent", *, tools: tuple[Tool, ...] = ()) -> Route:
        """Return a route for an agent that comes from no app."""
        return cls(id, "agent", "", agent, {tool.__name__: tool for tool in tools})
