"""OpenTelemetry spans, with the extra `tracing`; a no-op without it, and until the process sets a provider up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def span(name: str, **attributes: Any) -> Iterator[None]:
    """Trace what happens inside as `name`; an exception that leaves it is recorded with it."""
    try:
        from opentelemetry import trace
    except ImportError:
        yield
        return
    with trace.get_tracer("b4run").start_as_current_span(name, attributes=attributes):
        yield
