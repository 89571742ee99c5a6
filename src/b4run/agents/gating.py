"""The permission checks of one tool call. What has to be asked pauses the run, and the call is made again when it was answered."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from langgraph.errors import GraphBubbleUp
from langgraph.types import interrupt

from b4run.errors import ResumeRefused
from b4run.permissions import GrantScope, Outcome, PermissionGate, Reason, Request, ThreadRules, interrupt_payload, refusal

logger = logging.getLogger("b4run.agents")

Choice = Literal["once", "always", "deny"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A person's answer to a prompt. An `always` keeps the exact request for the thread, unless `scope` or `pattern` widen it."""

    decision: Choice
    scope: GrantScope = GrantScope.THREAD
    pattern: str | None = None
    expires_at: datetime | None = None
    """When an `always` is over."""
    by: str = "user"
    """Who gave it."""

    @classmethod
    def of(cls, answer: Answer | str) -> Answer:
        """Raises: ResumeRefused: it is none of the three words."""
        if isinstance(answer, Answer):
            return answer
        match answer:
            case "once" | "always" | "deny":
                return cls(answer)
        raise ResumeRefused(reason=f"{answer!r} is no answer")

    def to_resume(self, prompt: Mapping[str, Any]) -> dict[str, Any]:
        """Return the value that LangGraph keeps for the prompt: the answer, and what it is an answer to."""
        return {
            "kind": prompt["kind"],
            "detail": prompt["detail"],
            "decision": self.decision,
            "scope": self.scope.value,
            "pattern": self.pattern,
            "expiresAt": None if self.expires_at is None else self.expires_at.isoformat(),
            "by": self.by,
        }


@dataclass(slots=True)
class CallGate:
    """Asks the app's permissions on behalf of one tool call.

    A call that was paused runs again from its start, and LangGraph hands it its answers in the order of the questions. A question may
    be gone by then, because its answer was `always`; so each answer says what it answers, and is kept until that is asked.
    """

    permissions: PermissionGate
    thread_id: str
    can_ask: bool
    extra: Mapping[str, Any]
    rules: ThreadRules | None = None
    """The thread's own, where it has some."""
    pause: GraphBubbleUp | None = None
    """Set once the call has to wait; a tool that swallows the exception is paused all the same."""
    _answers: list[Mapping[str, Any]] = field(default_factory=list)

    async def require(self, request: Request) -> None:
        """Return when the call may go on.

        Raises:
            PermissionRefused: a rule, a person, or the lack of one says no.
        """
        decision = await self.permissions.decide(request, thread_id=self.thread_id, thread=self.rules)
        if decision.outcome is Outcome.DENY:
            raise refusal(request, decision.reason, rule=decision.rule)
        if decision.outcome is Outcome.ASK:
            await self._ask(request)

    async def refuse_denied(self, request: Request) -> None:
        """Raise PermissionRefused if a rule denies it; what no rule knows goes on."""
        decision = await self.permissions.decide(request, thread_id=self.thread_id, thread=self.rules)
        if decision.reason is Reason.DENIED:
            raise refusal(request, decision.reason, rule=decision.rule)

    async def _ask(self, request: Request) -> None:
        if not self.can_ask:
            raise refusal(request, Reason.NO_PROMPT)
        prompt = interrupt_payload(request, extra=self.extra)
        while (answer := self._answer_to(prompt)) is None:
            try:
                self._answers.append(interrupt(prompt))
            except GraphBubbleUp as pause:
                self.pause = pause
                raise
        if answer["decision"] == "deny":
            raise refusal(request, Reason.USER)
        if answer["decision"] == "always":
            await self._remember(request, answer)

    def _answer_to(self, prompt: Mapping[str, Any]) -> Mapping[str, Any] | None:
        wanted = (prompt["kind"], prompt["detail"])
        return next((answer for answer in self._answers if (answer["kind"], answer["detail"]) == wanted), None)

    async def _remember(self, request: Request, answer: Mapping[str, Any]) -> None:
        warning = await self.permissions.remember(
            request,
            thread_id=self.thread_id,
            thread=self.rules,
            scope=GrantScope(answer["scope"]),
            pattern=answer["pattern"],
            granted_by=answer["by"],
            expires_at=None if answer["expiresAt"] is None else datetime.fromisoformat(answer["expiresAt"]),
        )
        if warning is not None:
            logger.warning(warning, extra={"event": "permission.not_kept", "thread_id": self.thread_id})
