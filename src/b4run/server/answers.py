"""People's answers to the prompts of a parked run: their shape, and whether they are the answers to what waits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from b4run.agents.gating import Answer
from b4run.permissions import GrantScope
from b4run.permissions.rules import MAX_PATTERN
from b4run.server.refusals import Refusal, invalid
from b4run.threads.state import ThreadState

MAX_EXPIRY_MS = 366 * 86_400_000
_ENTRY_KEYS = {"interruptId", "status"}
_DECISION_KEYS = {"payload"}
_GRANT_KEYS = {"scope", "pattern", "expiresInMs"}
"""Ours: how far an `always` reaches, and for how long."""


@dataclass(frozen=True, slots=True)
class GivenAnswers:
    """A resume's body. Entries are in the order they came, duplicates included."""

    route: str
    entries: tuple[tuple[str, Mapping[str, Any]], ...]

    @property
    def for_everybody(self) -> bool:
        """Whether an `always` is to hold for every thread."""
        return any(entry.get("scope") == "app" for _, entry in self.entries)

    def by_interrupt(self, by: str) -> dict[str, Answer]:
        return {interrupt: _answer(entry, by) for interrupt, entry in self.entries}


def read_answers(body: Mapping[str, Any]) -> GivenAnswers:
    """Return what a body says. Raises: Refusal: 400, it has another shape."""
    if set(body) != {"resume", "route"} or not isinstance(body["route"], str) or not body["route"] or not isinstance(body["resume"], list):
        raise invalid("The body has exactly `resume`, a list of answers, and `route`, a text.")
    return GivenAnswers(body["route"], tuple(_entry(entry) for entry in body["resume"]))


def _entry(entry: Any) -> tuple[str, Mapping[str, Any]]:
    if not isinstance(entry, dict) or not set(entry) >= _ENTRY_KEYS or not isinstance(entry["interruptId"], str):
        raise invalid("An answer has `interruptId`, a text, and `status`.")
    if entry["status"] == "cancelled":
        _only(entry, _ENTRY_KEYS)
        return entry["interruptId"], entry
    if entry["status"] != "resolved":
        raise invalid("An answer's `status` is 'resolved' or 'cancelled'.")
    if entry.get("payload") not in ("once", "always", "deny"):
        raise Refusal(400, "invalid_resume_payload", "An answer's `payload` is 'once', 'always' or 'deny'.")
    _only(entry, _ENTRY_KEYS | _DECISION_KEYS | (_GRANT_KEYS if entry["payload"] == "always" else set()))
    if entry.get("scope", "thread") not in ("thread", "app"):
        raise invalid("An answer's `scope` is 'thread' or 'app'.")
    pattern = entry.get("pattern")
    if pattern is not None and not (isinstance(pattern, str) and pattern.strip() and len(pattern) <= MAX_PATTERN):
        raise invalid(f"An answer's `pattern` is a text of 1 to {MAX_PATTERN:,} characters.")
    expires = entry.get("expiresInMs")
    if expires is not None and not (type(expires) is int and 1 <= expires <= MAX_EXPIRY_MS):
        raise invalid(f"An answer's `expiresInMs` is a number from 1 to {MAX_EXPIRY_MS:,}.")
    return entry["interruptId"], entry


def _only(entry: Mapping[str, Any], keys: set[str]) -> None:
    unknown = sorted(set(entry) - keys)
    if unknown:
        raise invalid(f"An answer has an unknown key {unknown[0][:80]!r}.")


def check_answers(given: GivenAnswers, found: ThreadState) -> None:
    """Check that every prompt that waits is answered exactly once. Raises: Refusal: 409."""
    if found.malformed:
        raise Refusal(409, "malformed_checkpoint", "The thread waits for something that cannot be answered here.")
    pending = [prompt.interrupt_id for prompt in found.prompts]
    if not pending:
        raise Refusal(409, "stale_interrupt", "Nothing waits for an answer on the thread.")
    if not given.entries:
        raise Refusal(409, "resume_required", "Every prompt that waits has to be answered.")
    if sorted(interrupt for interrupt, _ in given.entries) != sorted(pending):
        raise Refusal(409, "interrupt_set_mismatch", "The answers are not those to the prompts that wait, each once.")


def _answer(entry: Mapping[str, Any], by: str) -> Answer:
    if entry["status"] == "cancelled":
        return Answer("deny", by=by)
    expires = entry.get("expiresInMs")
    return Answer(
        entry["payload"],
        scope=GrantScope(entry.get("scope", "thread")),
        pattern=entry.get("pattern"),
        expires_at=None if expires is None else datetime.now(UTC) + timedelta(milliseconds=expires),
        by=by,
    )
