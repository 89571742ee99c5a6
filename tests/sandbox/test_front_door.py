"""`b4run.sandbox` offers every name it promises, and importing it loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import b4run.sandbox

SOURCES = str(Path(b4run.sandbox.__file__).parents[2])


@pytest.mark.parametrize("name", b4run.sandbox.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(b4run.sandbox, name) is not None


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        b4run.sandbox.no_such_name  # noqa: B018


def test_import_is_light() -> None:
    program = "import sys, b4run.sandbox; print([name for name in ('pydantic', 'asyncio', 'msgpack') if name in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60, env={"PYTHONPATH": SOURCES}
    )
    assert answer.stdout == "[]\n"
