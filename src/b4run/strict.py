"""The base of every model that a person writes: frozen, strict, unknown keys refused at every depth.

While `collect_faults` is open, a model that does not validate notes its fault and stands in with its defaults, so that a file which
builds several models tells all its mistakes in one run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError


@dataclass(frozen=True, slots=True)
class Fault:
    """One model that was refused, and the line of the file that built it (None: built elsewhere)."""

    model: type[BaseModel]
    error: ValidationError
    line: int | None


@dataclass(slots=True)
class _Collector:
    file: str
    faults: list[Fault] = field(default_factory=list)
    nested: bool = False
    """A model is being built, so that those inside it belong to its error."""


_collector: ContextVar[_Collector | None] = ContextVar("collector", default=None)


@contextmanager
def collect_faults(file: str) -> Iterator[list[Fault]]:
    """Gather the faults of all models that are built inside, instead of raising at the first; `file` is where lines are counted."""
    collector = _Collector(file)
    token = _collector.set(collector)
    try:
        yield collector.faults
    finally:
        _collector.reset(token)


class StrictModel(BaseModel):
    """Frozen; unknown keys, other types and non-finite numbers are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False, strict=True)

    def __init__(self, /, **data: Any) -> None:
        collector = _collector.get()
        if collector is None or collector.nested:
            super().__init__(**data)
            return
        collector.nested = True
        try:
            super().__init__(**data)
        except ValidationError as error:
            collector.faults.append(Fault(type(self), error, _line_in(collector.file)))
            self.__setstate__(type(self).model_construct().__getstate__())
        finally:
            collector.nested = False


def _line_in(file: str) -> int | None:
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename == file:
            return frame.f_lineno
        frame = frame.f_back  # type: ignore[assignment]
    return None
