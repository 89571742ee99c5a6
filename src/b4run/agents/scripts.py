"""Scripts for a model: what it answers, turn by turn, written in Python or kept in a JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from b4run.errors import ScriptMismatch

if TYPE_CHECKING:
    from b4run.agents.scripted import ScriptedChatModel


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ScriptedCall(_Part):
    name: str
    args: dict[str, Any] = Field(default_factory=dict, serialization_alias="arguments", validation_alias=AliasChoices("arguments", "args"))
    id: str | None = None


class Match(_Part):
    """When an answer fits: the latest user text contains `userMessage`, and the model has answered `turnIndex` times since."""

    userMessage: str | None = None
    turnIndex: int | None = None
    hasToolResult: bool | None = None


class Response(_Part):
    content: str = ""
    toolCalls: tuple[ScriptedCall, ...] = ()


class Fixture(_Part):
    """One answer and when it fits."""

    match: Match = Match()
    response: Response


@dataclass(slots=True)
class Script:
    """Builds fixtures: each `user` begins a conversation's turn, each line after it is one answer of the model."""

    fixtures: list[Fixture] = field(default_factory=list)
    _user: str | None = None
    _turn: int = 0

    def user(self, text: str) -> Self:
        """What follows answers a user text that contains this one."""
        self._user, self._turn = text, 0
        return self

    def calls(self, tool: str, /, **arguments: Any) -> Self:
        """Ask for one tool."""
        return self.together((tool, arguments))

    def together(self, *calls: tuple[str, Mapping[str, Any]]) -> Self:
        """Ask for several tools at once."""
        return self._add(Response(toolCalls=tuple(ScriptedCall(name=name, args=dict(arguments)) for name, arguments in calls)))

    def replies(self, text: str) -> Self:
        """Answer with a text, which ends the turn."""
        return self._add(Response(content=text))

    def model(self, *, repeat: bool = False) -> ScriptedChatModel:
        """Return a model that follows this script."""
        from b4run.agents.scripted import ScriptedChatModel

        return ScriptedChatModel(fixtures=tuple(self.fixtures), repeat=repeat)

    def save(self, path: Path) -> None:
        fixtures = [fixture.model_dump(by_alias=True, exclude_none=True, exclude_defaults=True) for fixture in self.fixtures]
        path.write_text(json.dumps({"fixtures": fixtures}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path) -> Script:
        """Read a file: a list of fixtures, or an object whose `fixtures` it is.

        Raises:
            ScriptMismatch: it holds no fixtures.
        """
        try:
            held = json.loads(path.read_text(encoding="utf-8"))
            return cls(TypeAdapter(list[Fixture]).validate_python(held["fixtures"] if isinstance(held, dict) else held))
        except (ValueError, KeyError, ValidationError) as error:
            raise ScriptMismatch(reason=f"{path.name} holds no fixtures ({type(error).__name__}: {error})") from error

    def _add(self, response: Response) -> Self:
        self.fixtures.append(Fixture(match=Match(userMessage=self._user, turnIndex=self._turn), response=response))
        self._turn += 1
        return self


def script() -> Script:
    """Begin a script: `script().user("fix it").calls("runBash", command="ls").replies("done")`."""
    return Script()
