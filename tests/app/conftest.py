"""Apps as folders, made for one test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest

AGENT = """
from b4run.agents import Agent
from b4run.testing import script
agent = Agent(model=script().user("go").replies("done").model(), prompt="Help.")
"""

MakeApp = Callable[..., Path]


@pytest.fixture
def make_app(tmp_path: Path) -> MakeApp:
    """Write files, given as `path=text` pairs; an app with a configuration and one route `/fix` unless they say otherwise."""

    def make(files: dict[str, str] | None = None) -> Path:
        for name, text in ({"b4_config.py": "config = {}\n", "app/fix/agent.py": AGENT} | (files or {})).items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(dedent(text))
        return tmp_path

    return make
