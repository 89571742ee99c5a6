"""What can ask for permission, and the prompt that a person sees."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from b4run.permissions.rules import Key, subagent_pattern
from b4run.permissions.shell import covering_rule

_PREVIEW = 500
_BASE36 = "0123456789abcdefghijklmnopqrstuvwxyz"

Operation = Literal["readFile", "writeFile", "listDir"]


@dataclass(frozen=True, slots=True)
class CommandRequest:
    """A shell command, as `runBash` was given it."""

    command: str
    kind: Literal["command"] = "command"

    @property
    def key(self) -> Key:
        return Key.BASH

    @property
    def candidate(self) -> str:
        return self.command

    @property
    def suggested_pattern(self) -> str:
        """The first two words, where a rule of them would cover the command; else the command itself."""
        pattern = " ".join(self.command.split()[:2])
        return self.command if covering_rule(self.command, [pattern]) is None else pattern

    def detail(self) -> dict[str, Any]:
        return {"command": self.command}


@dataclass(frozen=True, slots=True)
class PathRequest:
    """A file operation. `path` is canonical, as the sandbox's `real_path` gives it; `inside` the workspace only denials count."""

    operation: Operation
    path: str
    inside: bool = False
    kind: Literal["path"] = "path"

    @property
    def key(self) -> Key:
        return Key(self.operation)

    @property
    def candidate(self) -> str:
        return self.path

    @property
    def suggested_pattern(self) -> str:
        """The parent folder, but never the root."""
        if self.path.endswith("/"):
            return self.path
        parent = self.path.rpartition("/")[0]
        return f"{parent}/" if parent else self.path

    def detail(self) -> dict[str, Any]:
        return {"operation": self.operation, "path": self.path}


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of a tool that asks for approval. `arguments` are shown, cut short; the decision is about the name."""

    tool_name: str
    arguments: str = ""
    kind: Literal["tool"] = "tool"

    @property
    def key(self) -> Key:
        return Key.TOOL

    @property
    def candidate(self) -> str:
        return self.tool_name

    @property
    def suggested_pattern(self) -> str:
        return self.tool_name

    def detail(self) -> dict[str, Any]:
        return {"toolName": self.tool_name, "argsPreview": _preview(self.arguments)}


@dataclass(frozen=True, slots=True)
class SubagentRequest:
    """A dispatch from a parent route to one of its subagents."""

    parent_route: str
    subagent: str
    subagent_route: str
    input: str = ""
    reason: str = ""
    kind: Literal["subagent"] = "subagent"

    @property
    def key(self) -> Key:
        return Key.SUBAGENT

    @property
    def candidate(self) -> str:
        return subagent_pattern(self.parent_route, self.subagent)

    @property
    def suggested_pattern(self) -> str:
        return self.candidate

    def detail(self) -> dict[str, Any]:
        detail = {
            "parentRouteId": self.parent_route,
            "subagentName": self.subagent,
            "subagentRouteId": self.subagent_route,
            "inputPreview": _preview(self.input),
        }
        return detail | ({"reason": self.reason} if self.reason else {})


Request = CommandRequest | PathRequest | ToolRequest | SubagentRequest


def interrupt_payload(request: Request, *, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the prompt that pauses a run; `extra` adds top-level fields such as `callId` or `threadId`. Each has an id of its own."""
    detail = request.detail() | {"suggestedPattern": request.suggested_pattern}
    return {"interruptId": _interrupt_id(), "type": "permission-request", "kind": request.kind, "detail": detail} | dict(extra or {})


def always_means(prompt: Mapping[str, Any]) -> str:
    """Return what answering "always" to a prompt allows from then on, in words to show with it."""
    detail = prompt["detail"]
    match prompt["kind"]:
        case "command":
            return "this exact command, and nothing joined to it by `;`, `|` or `&&`"
        case "path":
            return f"{detail['operation']} of exactly {detail['path']}"
        case "tool":
            return f"every call of {detail['toolName']}, whatever its arguments"
        case _:
            return f"every dispatch from {detail['parentRouteId']} to {detail['subagentName']}"


def _preview(text: str) -> str:
    return text if len(text) <= _PREVIEW else f"{text[:_PREVIEW]}…"


def _interrupt_id() -> str:
    return f"perm-{time.time_ns() // 1_000_000}-{''.join(secrets.choice(_BASE36) for _ in range(6))}"
