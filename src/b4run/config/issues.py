"""What a check finds: one line a person can act on, and the same as data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from b4run.errors import B4Error, ConfigurationError
from b4run.sandbox.contract import Severity


@dataclass(frozen=True, slots=True)
class Issue:
    """One finding about an app. `file` is relative to its root; `key` is dotted, or names the route or control."""

    severity: Severity
    code: str
    key: str
    message: str
    hint: str = ""
    file: str = ""
    line: int | None = None

    @property
    def text(self) -> str:
        """One line: where, what, and what to do."""
        place = f"{self.file}:{self.line}" if self.file and self.line else self.file
        return ": ".join(part for part in (place, self.key, self.message) if part)

    def as_dict(self) -> dict[str, str | int | None]:
        return {
            "severity": self.severity.value,
            "code": self.code,
            "key": self.key,
            "message": self.message,
            "hint": self.hint,
            "file": self.file,
            "line": self.line,
        }


class ConfigInvalid(ConfigurationError):
    """{reason}"""

    def __init__(self, issues: Sequence[Issue]) -> None:
        self.issues = tuple(issues)
        super().__init__(reason="\n".join(issue.text for issue in self.issues))


def issue_of(error: B4Error, *, file: str = "", key: str = "") -> Issue:
    """Return the finding that an error amounts to."""
    return Issue(Severity.ERROR, error.code, key, error.message, error.remedy, file)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ` (did you mean x?)` for a near match, else nothing."""
    near = get_close_matches(name.lower(), list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]}?)" if near else ""
