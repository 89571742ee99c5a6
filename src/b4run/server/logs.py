"""The server's log: one JSON object a line for machines, or short lines for a person at a terminal."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import IO

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """Time, level, logger, message, then whatever the caller added: `event`, `thread_id`, `run_id` and the like."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _STANDARD}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


class Lines(logging.Formatter):
    """For a person: level, message, and where it belongs."""

    def format(self, record: logging.LogRecord) -> str:
        where = " ".join(f"{key}={value}" for key in ("thread_id", "run_id", "reason") if (value := vars(record).get(key)) is not None)
        text = f"{record.levelname.lower()}: {record.getMessage()}" + (f" ({where})" if where else "")
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def set_up_logging(form: str, *, debug: bool = False, stream: IO[str] | None = None) -> None:
    """Send the log to standard error as `json` or `text`; libraries speak up from warnings on."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else Lines())
    logging.basicConfig(level=logging.WARNING, handlers=[handler], force=True)
    logging.getLogger("b4run").setLevel(logging.DEBUG if debug else logging.INFO)
