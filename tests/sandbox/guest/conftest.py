from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from .real import Guest, started


@pytest.fixture
async def guest(tmp_path: Path) -> AsyncIterator[Guest]:
    async with started(tmp_path / "workspace") as guest:
        yield guest
