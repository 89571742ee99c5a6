"""Asks an app's predicate about one call. Whatever is not a clear yes refuses."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping
from typing import Any, Literal

from langgraph.errors import GraphBubbleUp

from b4run.agents.definition import CallInfo, Predicate
from b4run.errors import DispatchRefused, PermissionRefused

logger = logging.getLogger("b4run.agents")

_REMEDY = "Find another way, or ask the user."


async def judge(predicate: Predicate, arguments: Mapping[str, Any], info: CallInfo, tool: str) -> Literal["allow", "approve"]:
    """Return whether the call may go on at once or has to be approved.

    Raises:
        PermissionRefused: the predicate refuses, raises, or answers neither yes nor no.
    """
    refusal = PermissionRefused if info.child is None else DispatchRefused
    subject = tool if info.child is None else f"subagent {info.child!r}"
    try:
        verdict: Any = predicate(dict(arguments), info)
        if inspect.isawaitable(verdict):
            verdict = await verdict
    except GraphBubbleUp:
        raise
    except Exception:
        logger.exception("a predicate raised", extra={"event": "predicate.raised", "route": info.route, "tool": tool})
        raise refusal(reason=f"The rule for {subject} could not be evaluated", remedy=_REMEDY) from None
    if verdict is True:
        return "allow"
    if isinstance(verdict, Mapping) and dict(verdict) == {"approve": True}:
        return "approve"
    if isinstance(verdict, str) and verdict:
        raise refusal(reason=f"The rule for {subject} refuses this call: {verdict}", remedy=_REMEDY)
    raise refusal(reason=f"The rule for {subject} does not allow this call", remedy=_REMEDY)
