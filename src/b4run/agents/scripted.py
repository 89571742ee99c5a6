"""A chat model that answers from a script, for tests and demonstrations: everything but the model is real."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolMessage
from langchain_core.messages.tool import tool_call, tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import Runnable
from pydantic import PrivateAttr

from b4run.agents.scripts import Fixture, Match, Response, Script, ScriptedCall
from b4run.errors import ScriptMismatch

_TOLD = 200
_PIECES = re.compile(r"\S+\s*|\s+")


class ScriptedChatModel(BaseChatModel):
    """Answers with the first fixture that fits and is not used up. Each is used once, unless `repeat`.

    Several may work at once in one process; nothing is shared between them.
    """

    fixtures: tuple[Fixture, ...]
    repeat: bool = False
    _used: set[int] = PrivateAttr(default_factory=set)

    @classmethod
    def load(cls, path: Path, *, repeat: bool = False) -> Self:
        """Read the fixtures from a JSON file. Raises: ScriptMismatch."""
        return cls(fixtures=tuple(Script.load(path).fixtures), repeat=repeat)

    @property
    def unused(self) -> tuple[Fixture, ...]:
        return tuple(fixture for index, fixture in enumerate(self.fixtures) if index not in self._used)

    def check_used(self) -> None:
        """Raise ScriptMismatch when an answer was never asked for."""
        if self.unused:
            raise ScriptMismatch(reason="these answers were never asked for: " + "; ".join(map(_told, self.unused)))

    @property
    def _llm_type(self) -> str:
        return "b4run-scripted"

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Runnable[LanguageModelInput, AIMessage]:
        return self.bind(tools=tools, **kwargs)

    def _generate(self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any) -> ChatResult:
        response = self._next(messages)
        calls = [tool_call(name=call.name, args=call.args, id=_call_id(call)) for call in response.toolCalls]
        return ChatResult(generations=[ChatGeneration(message=AIMessage(content=response.content, tool_calls=calls))])

    def _stream(
        self, messages: list[BaseMessage], stop: list[str] | None = None, run_manager: Any = None, **kwargs: Any
    ) -> Iterator[ChatGenerationChunk]:
        response = self._next(messages)
        for piece in _PIECES.findall(response.content):
            yield ChatGenerationChunk(message=AIMessageChunk(content=piece))
        calls = [
            tool_call_chunk(name=call.name, args=json.dumps(call.args), id=_call_id(call), index=index)
            for index, call in enumerate(response.toolCalls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=calls, chunk_position="last"))

    def _next(self, messages: Sequence[BaseMessage]) -> Response:
        asked = _Asked.of(messages)
        fitting = [index for index, fixture in enumerate(self.fixtures) if asked.fits(fixture.match)]
        index = next((index for index in fitting if self.repeat or index not in self._used), None)
        if index is None:
            known = "; ".join(_told(fixture) for fixture in self.unused) or "none"
            spent = "the one that fits was used already" if fitting else "none fits"
            raise ScriptMismatch(reason=f"{spent} for {asked}. Not used yet: {known}")
        self._used.add(index)
        return self.fixtures[index].response


@dataclass(frozen=True, slots=True)
class _Asked:
    """The state of a conversation that a fixture can match."""

    user: str
    turn: int
    tool_result: bool

    @classmethod
    def of(cls, messages: Sequence[BaseMessage]) -> _Asked:
        last = max((index for index, message in enumerate(messages) if isinstance(message, HumanMessage)), default=-1)
        since = messages[last + 1 :]
        return cls(
            messages[last].text if last >= 0 else "",
            sum(isinstance(message, AIMessage) for message in since),
            any(isinstance(message, ToolMessage) for message in since),
        )

    def fits(self, match: Match) -> bool:
        return (
            (match.userMessage is None or match.userMessage in self.user)
            and (match.turnIndex is None or match.turnIndex == self.turn)
            and (match.hasToolResult is None or match.hasToolResult == self.tool_result)
        )

    def __str__(self) -> str:
        return f"turn {self.turn} of {self.user[:_TOLD]!r}"


def _told(fixture: Fixture) -> str:
    match, response = fixture.match, fixture.response
    answer = ", ".join(call.name for call in response.toolCalls) or repr(response.content[:_TOLD])
    return f"turn {match.turnIndex} of {(match.userMessage or '')[:_TOLD]!r}: {answer}"


def _call_id(call: ScriptedCall) -> str:
    return call.id or f"call_{secrets.token_hex(6)}"
