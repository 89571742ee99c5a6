"""`kill -9` at every step of admission and deletion, and at any moment, on real sandboxes and both databases."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ..databases import BOTH, database
from .crash_rounds import MOMENTS

ROUNDS = int(os.environ.get("B4_TEST_CRASH_ROUNDS", 2 * len(MOMENTS)))
"""100 take about a minute on each database."""


@pytest.mark.parametrize("kind", BOTH)
def test_no_crash_doubles_loses_or_halves_a_workspace(kind: str, tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "app" / "src").mkdir(parents=True)
    (closed / "app" / "README.md").write_text("# hi\n")
    (closed / "app" / "src" / "main.py").write_text("print()\n")
    with database(kind, closed) as url:
        command = [sys.executable, str(Path(__file__).with_name("crash_rounds.py")), url, str(closed), str(ROUNDS)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=30 + 5 * ROUNDS, check=False)
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.endswith(" good")] == [], done.stderr[-4_000:]
    assert len(lines) == ROUNDS, done.stderr[-4_000:]
    assert [path.name for path in (closed / "state").iterdir() if path.name.startswith(".gone-") or len(path.name) == 40] == []
