"""Acquire, release, destroy: who gets what, and what stays."""

from __future__ import annotations

import asyncio

import pytest

from b4run.errors import PolicyConflict, SandboxLost
from b4run.sandbox.contract import WORKSPACE_ROOT, Capability, SandboxHandle, SandboxProvider
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.testing.trial import Trial, case, contents, refused


@case()
async def provider_tells_its_name_and_capabilities(trial: Trial) -> None:
    assert isinstance(trial.provider, SandboxProvider)
    assert trial.provider.name
    assert all(isinstance(item, Capability) for item in trial.provider.capabilities)


@case()
async def handle_tells_thread_and_root(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    assert (sandbox.thread_id, sandbox.workspace_root, sandbox.lost) == (thread, WORKSPACE_ROOT, False)
    assert sandbox.instance


@case()
async def workspace_starts_empty(trial: Trial) -> None:
    assert await contents(await trial.sandbox()) == []


@case("T76")
async def acquire_is_idempotent_and_reattaches(trial: Trial) -> None:
    thread = trial.thread()
    first = await trial.sandbox(thread_id=thread)
    await first.files.write("a.txt", b"a")
    second = await trial.sandbox(thread_id=thread)
    assert second.instance == first.instance
    assert (await second.files.read("a.txt")).data == b"a"
    assert (await first.files.read("a.txt")).data == b"a"


@case("T75", "T95")
async def racing_first_calls_share_one_sandbox(trial: Trial) -> None:
    thread = trial.thread()
    handles = await asyncio.gather(*(trial.sandbox(thread_id=thread) for _ in range(8)))
    assert len({handle.instance for handle in handles}) == 1
    await handles[0].files.write("a.txt", b"a")
    assert [await contents(handle) for handle in handles] == [["a.txt"]] * 8


@case("T79")
async def threads_are_isolated(trial: Trial) -> None:
    one, two = await trial.sandbox(), await trial.sandbox()
    await one.files.write("secret.txt", b"1")
    assert await contents(two) == []
    await two.files.write("secret.txt", b"2")
    assert (await one.files.read("secret.txt")).data == b"1"
    assert one.instance != two.instance


@case("T77", limit_s=120)
async def many_threads_at_once(trial: Trial) -> None:
    sandboxes = await asyncio.gather(*(trial.sandbox() for _ in range(20)))
    await asyncio.gather(*(sandbox.files.write("name", sandbox.thread_id.encode()) for sandbox in sandboxes))
    for sandbox in sandboxes:
        assert (await sandbox.files.read("name")).data == sandbox.thread_id.encode()


@case("T57", "T77")
async def any_text_is_a_thread_id_of_its_own(trial: Trial) -> None:
    names = ["../../x", "a/b", "a b", "A b", "поток\n\u2028\U0001f600", "x" * 2_000, "%s;$(id)'\"", "\ud800", "."]
    sandboxes: list[SandboxHandle] = []
    for name in names:
        sandbox = await trial.sandbox(thread_id=trial.thread(name))
        await sandbox.files.write("number", str(len(sandboxes)).encode())
        sandboxes.append(sandbox)
    numbers = [(await sandbox.files.read("number")).data for sandbox in sandboxes]
    assert numbers == [str(index).encode() for index in range(len(names))]


@case("T83")
async def release_keeps_files(trial: Trial) -> None:
    thread = trial.thread()
    before = await trial.sandbox(thread_id=thread)
    await before.files.write("deep/er/a.txt", b"kept", mode=0o755)
    await trial.provider.release(thread)
    after = await trial.sandbox(thread_id=thread)
    assert (await after.files.read("deep/er/a.txt")).data == b"kept"
    assert (await after.files.stat("deep/er/a.txt")).mode == 0o755
    assert after.instance != before.instance


@case()
async def released_handle_is_lost(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await trial.provider.release(sandbox.thread_id)
    assert sandbox.lost
    assert await sandbox.idle()
    with pytest.raises(SandboxLost):
        await sandbox.files.list()
    with pytest.raises(SandboxLost):
        await sandbox.exec.run("true")


@case("T83", "T85")
async def destroy_clears(trial: Trial) -> None:
    thread = trial.thread()
    before = await trial.sandbox(thread_id=thread)
    await before.files.write("deep/a.txt", b"gone")
    await trial.provider.destroy(thread)
    assert before.lost
    after = await trial.sandbox(thread_id=thread)
    assert await contents(after) == []
    async with refused("not_found"):
        await after.files.read("deep/a.txt")


@case("T78")
async def use_right_after_destroy(trial: Trial) -> None:
    thread = trial.thread()
    for round_number in range(5):
        sandbox = await trial.sandbox(thread_id=thread)
        assert await contents(sandbox) == []
        await sandbox.files.write("round", str(round_number).encode())
        await trial.provider.destroy(thread)


@case()
async def destroy_after_release_clears(trial: Trial) -> None:
    thread = trial.thread()
    await (await trial.sandbox(thread_id=thread)).files.write("a", b"a")
    await trial.provider.release(thread)
    await trial.provider.destroy(thread)
    assert await contents(await trial.sandbox(thread_id=thread)) == []


@case("T85")
async def release_and_destroy_can_be_repeated(trial: Trial) -> None:
    thread = trial.thread()
    await trial.provider.release(thread)
    await trial.provider.destroy(thread)
    await trial.sandbox(thread_id=thread)
    await trial.provider.release(thread)
    await trial.provider.release(thread)
    await trial.provider.destroy(thread)
    await trial.provider.destroy(thread)


@case("T78")
async def release_and_destroy_can_be_raced(trial: Trial) -> None:
    thread = trial.thread()
    await (await trial.sandbox(thread_id=thread)).files.write("a", b"a")
    await asyncio.gather(*(trial.provider.release(thread) for _ in range(4)))
    await trial.sandbox(thread_id=thread)
    await asyncio.gather(*(trial.provider.destroy(thread) for _ in range(4)), trial.provider.release(thread))
    assert await contents(await trial.sandbox(thread_id=thread)) == []


@case("T96")
async def cancelled_acquire_leaves_the_thread_acquirable(trial: Trial) -> None:
    thread = trial.thread()
    for steps in range(6):
        acquiring = asyncio.create_task(trial.sandbox(thread_id=thread))
        for _ in range(steps):
            await asyncio.sleep(0)
        acquiring.cancel()
        await asyncio.wait({acquiring})
    sandbox = await trial.sandbox(thread_id=thread)
    await sandbox.files.write("a", b"a")
    assert await contents(sandbox) == ["a"]


@case()
async def another_policy_is_refused_while_held(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(SandboxPolicy(env={"A": "1"}), thread)
    with pytest.raises(PolicyConflict):
        await trial.sandbox(SandboxPolicy(env={"A": "2"}), thread)
    await sandbox.files.write("still", b"usable")
    await trial.provider.release(thread)
    assert await contents(await trial.sandbox(SandboxPolicy(env={"A": "2"}), thread)) == ["still"]


@case()
async def closing_ends_handles(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await trial.provider.aclose()
    assert sandbox.lost
    await trial.provider.aclose()


@case("T83", needs=(Capability.PERSISTENT,))
async def files_outlive_the_provider(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sandbox.files.write("a/b.txt", b"kept", mode=0o700)
    await trial.reopen()
    again = await trial.sandbox(thread_id=thread)
    assert (await again.files.read("a/b.txt")).data == b"kept"
    assert (await again.files.stat("a/b.txt")).mode == 0o700


@case("T85", needs=(Capability.PERSISTENT,))
async def destroy_works_without_acquire(trial: Trial) -> None:
    thread = trial.thread()
    await (await trial.sandbox(thread_id=thread)).files.write("a", b"a")
    await trial.reopen()
    await trial.provider.destroy(thread)
    assert await contents(await trial.sandbox(thread_id=thread)) == []


@case("T80", "T81", needs=(Capability.EXEC,))
async def idle_tells_work_from_silence(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    assert await sandbox.idle()
    job = await sandbox.exec.start("sleep 60")
    assert not await sandbox.idle()
    await job.cancel()
    assert await sandbox.idle()
    result = await sandbox.exec.run("sleep 60 & true")
    assert not await sandbox.idle()
    await sandbox.exec.job(result.job).cancel()
    assert await sandbox.idle()


@case("T80", needs=(Capability.EXEC,))
async def running_command_is_not_idle(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    running = asyncio.create_task(sandbox.exec.run("until [ -e go ]; do sleep 0.05; done"))
    await asyncio.sleep(0)
    assert not await sandbox.idle()
    await sandbox.files.write("go", b"")
    assert (await running).ok
    assert await sandbox.idle()
