"""The suite finds faults: a provider that breaks the contract fails, and what a case made is removed whatever happened."""

from __future__ import annotations

import asyncio

import pytest

from b4run.sandbox import Capability, SandboxPolicy
from b4run.sandbox.testing import FakeProvider, fake_sandbox, run_provider_conformance
from b4run.sandbox.testing.commands import answer_nothing
from b4run.sandbox.testing.conformance import lifecycle
from b4run.sandbox.testing.suite import GROUPS, attempt
from b4run.sandbox.testing.trial import Case, Trial, case


def names(suite: type) -> list[str]:
    (mark,) = [mark for mark in suite.test.pytestmark if mark.name == "parametrize"]  # type: ignore[attr-defined]
    return [parameter.id for parameter in mark.args[1]]


def test_cases_are_chosen_by_capability() -> None:
    plain = names(run_provider_conformance(name="x", make_provider=fake_sandbox, capabilities=()))
    running = names(run_provider_conformance(name="x", make_provider=fake_sandbox, capabilities={Capability.EXEC}))
    limited = names(run_provider_conformance(name="x", make_provider=fake_sandbox, capabilities={Capability.EXEC, Capability.PIDS_LIMIT}))
    assert set(plain) < set(running) < set(limited)
    assert "lifecycle-release_keeps_files-T83" in plain
    assert "trees-fork_bomb_is_ended_by_its_deadline-T114" in set(limited) - set(running)
    assert set(plain) < set(running) < set(limited)
    declared = names(run_provider_conformance(name="x", make_provider=fake_sandbox))
    assert set(declared) - set(plain) == {id for id in declared if id.startswith(("readers-", "workspaces-"))}  # what the fake declares
    assert len(running) >= 80
    assert len(set(limited)) == len(limited)


def test_groups_can_be_chosen_and_faults_need_a_way_to_kill() -> None:
    async def kill(_: object) -> None: ...

    assert names(run_provider_conformance(name="x", make_provider=fake_sandbox, groups=["faults"])) == []
    assert names(run_provider_conformance(name="x", make_provider=fake_sandbox, groups=["faults"], kill_guest=kill))
    assert {id.split("-")[0] for id in names(run_provider_conformance(name="x", make_provider=fake_sandbox))} <= set(GROUPS)


@case()
async def fails(trial: Trial) -> None:
    await trial.sandbox(thread_id=trial.thread("left"))
    assert trial.provider.name == "other"


@case(limit_s=0.02)
async def hangs(trial: Trial) -> None:
    await trial.sandbox(thread_id=trial.thread("left"))
    await asyncio.Future[None]()


@pytest.mark.parametrize(("broken", "expected"), [(fails, AssertionError), (hangs, TimeoutError)])
async def test_threads_are_destroyed_whatever_happened(broken: Case, expected: type[Exception]) -> None:
    provider = fake_sandbox()
    with pytest.raises(expected):
        await attempt(broken, Trial(lambda: provider, None))
    assert [action for action, _ in provider.log] == ["acquire", "destroy"]


async def test_both_failures_are_reported() -> None:
    provider = fake_sandbox()

    async def refuse(_: str) -> None:
        raise PermissionError

    provider.on_destroy = refuse
    with pytest.raises(ExceptionGroup) as caught:
        await attempt(fails, Trial(lambda: provider, None))
    body, cleanup = caught.value.exceptions
    assert isinstance(body, AssertionError)
    assert isinstance(cleanup, ExceptionGroup)
    assert [type(error) for error in cleanup.exceptions] == [PermissionError]


class Forgetful(FakeProvider):
    """Loses files at every release."""

    async def release(self, thread_id: str) -> None:
        await self.destroy(thread_id)


class Careless(FakeProvider):
    """Keeps files at a destroy."""

    async def destroy(self, thread_id: str) -> None:
        await self.release(thread_id)


class Mixing(FakeProvider):
    """Gives every thread the same sandbox."""

    async def acquire(self, thread_id: str, policy: SandboxPolicy):  # type: ignore[no-untyped-def]
        return await super().acquire("one", policy)


@pytest.mark.parametrize(
    ("kind", "found"),
    [
        (Forgetful, "release_keeps_files"),
        (Careless, "destroy_clears"),
        (Mixing, "threads_are_isolated"),
        (Mixing, "handle_tells_thread_and_root"),
    ],
)
async def test_broken_provider_is_found_out(kind: type[FakeProvider], found: str) -> None:
    with pytest.raises(Exception):  # noqa: B017 - which error it is depends on how far the case gets
        await attempt(vars(lifecycle)[found], Trial(lambda: kind(answer_nothing, {}), None))
    await attempt(vars(lifecycle)[found], Trial(fake_sandbox, None))


def test_every_group_has_cases() -> None:
    async def kill(_: object) -> None: ...

    for group in GROUPS:
        suite = run_provider_conformance(
            name="x", make_provider=fake_sandbox, capabilities=set(Capability), kill_guest=kill, groups=[group]
        )
        assert names(suite), group
