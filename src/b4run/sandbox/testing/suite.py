"""The conformance suite: what every provider is put through, as a class for pytest.

    TestMine = run_provider_conformance(name="mine", make_provider=lambda: my_sandbox(scope="conformance"))

Cases are functions in `conformance/`, grouped by module and chosen by the provider's capabilities. Their ids name the fault of the
survey that they guard against, where one applies.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Collection, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from importlib import import_module
from typing import Any

from b4run.sandbox.contract import Capability, SandboxProvider
from b4run.sandbox.testing.trial import Case, KillGuest, Trial, cases_of

GROUPS = (
    "lifecycle",
    "identity",
    "files_basic",
    "files_write",
    "files_paths",
    "files_names",
    "files_links",
    "files_escape",
    "listing",
    "commands",
    "output",
    "stdin",
    "endings",
    "trees",
    "jobs",
    "environment",
    "load",
    "faults",
    "readers",
    "workspaces",
)
"""The modules of `conformance/`."""

_PACKAGE = f"{__package__}.conformance"

if "pytest" in sys.modules:
    # Before any case is imported, so that a failed assertion shows its values.
    sys.modules["pytest"].register_assert_rewrite(_PACKAGE)


def run_provider_conformance(
    *,
    name: str,
    make_provider: Callable[[], SandboxProvider],
    capabilities: Collection[Capability] | None = None,
    kill_guest: KillGuest | None = None,
    groups: Iterable[str] = GROUPS,
    at_once: int = 1,
) -> type:
    """Return a test class with one test for each case that applies; bind it to a module-level name that starts with `Test`.

    `make_provider` gives a provider on the same scope and storage each time. Without `capabilities` it is called once, now, to learn
    what it declares. `kill_guest` ends a handle's guest from outside, as a crash would; without it the cases of faults are left out.
    `at_once` is how many cases run at a time, each in a thread of its own: for providers whose places take seconds to make.
    """
    import pytest

    declared = frozenset(make_provider().capabilities if capabilities is None else capabilities)
    chosen = [case for case in cases(groups) if case.applies(declared, kill_guest)]

    def run(case: Case) -> None:
        asyncio.run(attempt(case, Trial(make_provider, kill_guest)))

    ahead = _Ahead(run, at_once)

    def one_by_one(self: object, case: Case) -> None:
        run(case)

    def some_at_once(self: object, case: Case, request: pytest.FixtureRequest) -> None:
        ahead.result(case, [item for item in request.session.items if getattr(item, "cls", None) is type(self)])

    test = one_by_one if at_once == 1 else some_at_once
    parametrized = pytest.mark.parametrize("case", [pytest.param(case, id=case.id) for case in chosen])(test)
    return type(f"Test{name.capitalize()}Conformance", (), {"test": parametrized, "__doc__": f"Provider {name!r} keeps the contract."})


class _Ahead:
    """Runs the selected cases in threads, some at a time, from the moment that the first of them is asked for."""

    def __init__(self, run: Callable[[Case], None], at_once: int) -> None:
        self._run = run
        self._at_once = at_once
        self._results: dict[str, Future[None]] = {}

    def result(self, case: Case, items: Iterable[Any]) -> None:
        """Wait for the end of a case; raise what it raised."""
        if case.alone:
            wait(self._results.values())
            self._run(case)
            return
        if not self._results:
            pool = ThreadPoolExecutor(self._at_once, thread_name_prefix="conformance")
            for chosen in (item.callspec.params["case"] for item in items):
                if not chosen.alone:
                    self._results[chosen.id] = pool.submit(self._run, chosen)
            pool.shutdown(wait=False)
        self._results[case.id].result()


def cases(groups: Iterable[str] = GROUPS) -> list[Case]:
    """Return every case of `groups`, whatever it needs."""
    return [case for group in groups for case in cases_of(import_module(f"{_PACKAGE}.{group}"))]


async def attempt(case: Case, trial: Trial) -> None:
    """Run one case and remove what it made; report a failure of either, or of both together."""
    failures: list[Exception] = []
    steps: list[tuple[Callable[[], Awaitable[None]], float]] = [(lambda: case.body(trial), case.limit_s), (trial.clean_up, 60.0)]
    for step, limit in steps:
        try:
            async with asyncio.timeout(limit):
                await step()
        except Exception as error:  # noqa: BLE001 - raised below, with the other step's
            failures.append(error)
    if len(failures) > 1:
        raise ExceptionGroup("the case and its clean-up failed", failures)
    if failures:
        raise failures[0]
