"""The command as a script calls it: a line in, exit code, stdout and stderr out."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import b4run
from b4run.cli.main import main

PYTHON = [sys.executable, "-m", "b4run.cli"]
"""`b4` as a process of its own, from whatever place this b4run was imported."""

ENVIRONMENT = {**os.environ} | {"PYTHONPATH": str(Path(str(b4run.__file__)).parents[1])}


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


B4 = Callable[..., Outcome]


@pytest.fixture
def b4(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> B4:
    """Run one command line in this process, in an empty folder, with nothing on its standard input."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("B4_APP", raising=False)
    monkeypatch.delenv("B4_PERMISSIONS_MODE", raising=False)

    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        try:
            code = main(arguments)
        except SystemExit as stop:
            code = int(stop.code or 0)
        captured = capfd.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run
