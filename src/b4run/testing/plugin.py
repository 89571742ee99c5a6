"""Pytest fixtures for an app's tests. Named as an entry point of b4run, so that nothing has to be imported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from b4run.sandbox.testing import FakeProvider
    from b4run.testing.harness import AgentHarness


try:
    import pytest_asyncio

    fixture = pytest_asyncio.fixture
except ImportError:
    # anyio's plugin runs plain ones.
    fixture = pytest.fixture  # type: ignore[assignment, unused-ignore]


@fixture
async def fake_sandbox() -> AsyncIterator[FakeProvider]:
    """A sandbox provider in memory, whose commands print nothing and succeed."""
    from b4run.sandbox.testing import fake_sandbox as make

    provider = make()
    yield provider
    await provider.aclose()


@fixture
async def agent_harness() -> AsyncIterator[Callable[..., Awaitable[AgentHarness]]]:
    """A function with the arguments of `b4run.testing.agent_harness`; what it opens is closed after the test."""
    from b4run.testing import agent_harness as open_harness

    async with AsyncExitStack() as stack:

        async def opened(*arguments: Any, **options: Any) -> AgentHarness:
            return await stack.enter_async_context(open_harness(*arguments, **options))

        yield opened
