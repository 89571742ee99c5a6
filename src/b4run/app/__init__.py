"""An app: a folder with `b4_config.py` and `app/<route>/agent.py`, opened and used from Python without a server.

    async with open_app("examples/code-fixer") as app:
        result = await app.runtime.run("/fix", "Make the tests pass.", thread_id="t-1")

`open_app` loads the agent loop, so it is resolved on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from b4run.app.check import Report, check_app
from b4run.app.entries import AppDefective, load_routes

if TYPE_CHECKING:
    from b4run.app.opening import App, open_app

__all__ = ["App", "AppDefective", "Report", "check_app", "load_routes", "open_app"]


def __getattr__(name: str) -> Any:
    if name not in ("App", "open_app"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("b4run.app.opening"), name)
