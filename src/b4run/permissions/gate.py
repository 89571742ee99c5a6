"""The decision: denials first, then rules, then what people granted, then the mode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from b4run.errors import DispatchRefused, PermissionRefused
from b4run.permissions.grants import Grant, GrantNotRecorded, GrantScope, GrantStore
from b4run.permissions.requests import CommandRequest, PathRequest, Request, SubagentRequest
from b4run.permissions.rules import Key, PermissionMode, RuleLists, ThreadRules, matching_rule
from b4run.permissions.shell import Hit, covering_rule, denial


class Outcome(StrEnum):
    ALLOW = "allow"
    DENY = "deny"
    ASK = "ask"


class Reason(StrEnum):
    """Why it was decided so, and what a refusal says."""

    RULE = "rule"
    GRANT = "grant"
    INSIDE = "inside"
    """Files of the workspace are free."""
    BYPASS = "bypass"
    DENIED = "denied"
    """A rule denies it."""
    UNCLEAR = "unclear"
    """There are denials, and the command hides what it runs."""
    UNKNOWN = "unknown"
    """No rule covers it."""
    USER = "user"
    """A person said no."""
    NO_PROMPT = "no-prompt"
    """A person would have to be asked, and this run cannot pause."""


@dataclass(frozen=True, slots=True)
class Decision:
    outcome: Outcome
    reason: Reason
    rule: str | None = None
    """The rule or grant that decided."""


@dataclass(frozen=True, slots=True)
class PermissionGate:
    """An app's permissions. Its methods take the thread's own rules where it has some."""

    mode: PermissionMode = PermissionMode.INTERACTIVE
    allow: RuleLists = field(default_factory=RuleLists)
    deny: RuleLists = field(default_factory=RuleLists)
    grants: GrantStore | None = None
    workspace_root: str = "/workspace"

    async def decide(self, request: Request, *, thread_id: str, thread: ThreadRules | None = None) -> Decision:
        """Return whether a call may go on. `ask` comes only in interactive mode."""
        hit, rule = self._denial(request, thread)
        if hit is Hit.YES:
            return Decision(Outcome.DENY, Reason.DENIED, rule)
        if isinstance(request, PathRequest) and request.inside:
            return Decision(Outcome.ALLOW, Reason.INSIDE)
        if hit is Hit.UNKNOWN:
            return await self._decide_unclear(request, thread_id, thread)
        if self.mode is PermissionMode.BYPASS:
            return Decision(Outcome.ALLOW, Reason.BYPASS)
        rules = (self.allow if thread is None else thread.allow).of(request.key)
        rule = self._covering(request, rules)
        if rule is not None:
            return Decision(Outcome.ALLOW, Reason.RULE, rule)
        if self.mode is PermissionMode.NON_INTERACTIVE:
            return Decision(Outcome.DENY, Reason.UNKNOWN)
        rule = self._granted(request, rules, await self._grants(request.key, thread_id, thread))
        return Decision(Outcome.ASK, Reason.UNKNOWN) if rule is None else Decision(Outcome.ALLOW, Reason.GRANT, rule)

    async def remember(
        self,
        request: Request,
        *,
        thread_id: str,
        thread: ThreadRules | None = None,
        scope: GrantScope = GrantScope.THREAD,
        pattern: str | None = None,
        granted_by: str = "",
        expires_at: datetime | None = None,
    ) -> str | None:
        """Keep an "always": the exact request, or the wider `pattern`, for the thread or the app.

        A thread with rules of its own grants to itself only. Returns None, or a warning that it holds for this call only.
        """
        if self.grants is None:
            return "This app keeps no grants; it is allowed once."
        everywhere = scope is GrantScope.APP and thread is None
        grant = Grant(
            key=request.key,
            pattern=request.candidate if pattern is None else pattern,
            exact=pattern is None,
            thread_id=None if everywhere else thread_id,
            granted_by=granted_by,
            expires_at=expires_at,
        )
        try:
            await self.grants.add(grant)
        except GrantNotRecorded as error:
            return f"{error.message}; it is allowed once."
        return None

    def _denial(self, request: Request, thread: ThreadRules | None) -> tuple[Hit, str | None]:
        rules = self.deny.of(request.key) + (thread.deny.of(request.key) if thread else ())
        if isinstance(request, CommandRequest):
            return denial(request.command, rules)
        rule = matching_rule(request.key, request.candidate, rules)
        return (Hit.NO if rule is None else Hit.YES), rule

    async def _decide_unclear(self, request: Request, thread_id: str, thread: ThreadRules | None) -> Decision:
        """Only a person may allow what cannot be checked against the denials: now, or earlier by its exact text."""
        if self.mode is not PermissionMode.INTERACTIVE:
            return Decision(Outcome.DENY, Reason.UNCLEAR)
        exact = _exact(request, await self._grants(request.key, thread_id, thread))
        return Decision(Outcome.ASK, Reason.UNCLEAR) if exact is None else Decision(Outcome.ALLOW, Reason.GRANT, exact)

    async def _grants(self, key: Key, thread_id: str, thread: ThreadRules | None) -> Sequence[Grant]:
        if self.grants is None:
            return ()
        return [
            grant
            for grant in await self.grants.list(thread_id)
            if grant.key is key and (thread is None or grant.scope is GrantScope.THREAD)
        ]

    def _covering(self, request: Request, rules: Sequence[str]) -> str | None:
        if isinstance(request, CommandRequest):
            return covering_rule(request.command, rules, self.workspace_root)
        return matching_rule(request.key, request.candidate, rules)

    def _granted(self, request: Request, rules: Sequence[str], grants: Sequence[Grant]) -> str | None:
        wider = [grant.pattern for grant in grants if not grant.exact]
        exact = _exact(request, grants)
        return exact if exact is not None or not wider else self._covering(request, [*wider, *rules])


def _exact(request: Request, grants: Sequence[Grant]) -> str | None:
    return next((grant.pattern for grant in grants if grant.exact and grant.pattern == request.candidate), None)


def refusal(request: Request, reason: Reason, *, rule: str | None = None) -> PermissionRefused:
    """Return the error for a refused call: what was refused, why, and the rule that would allow it."""
    what = _SUBJECTS[request.kind]
    remedy = f"Add {request.suggested_pattern!r} to `permissions.allow.{request.key}` in b4_config.py."
    match reason:
        case Reason.DENIED:
            why, remedy = f"is denied by the rule {rule!r} (`permissions.deny.{request.key}`)", "Find another way, or tell the user."
        case Reason.USER:
            why, remedy = "was denied by the user", "Ask what the user wants before trying another way."
        case Reason.UNCLEAR:
            why, remedy = "hides what it runs, so it cannot be checked against the denied commands", "Write it without expansion."
        case Reason.NO_PROMPT:
            why = "needs the user's approval, and this run has no way to ask"
        case _:
            why = "is not allowed by any rule, and nobody can be asked"
    kind = DispatchRefused if isinstance(request, SubagentRequest) else PermissionRefused
    return kind(reason=f"{what} {why}", remedy=remedy)


_SUBJECTS = {"command": "This command", "path": "This path", "tool": "This tool", "subagent": "This subagent"}
