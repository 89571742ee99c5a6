"""A new compute of the same thread is told from the old one, and takes nothing of it along but files."""

from __future__ import annotations

from b4run.sandbox.contract import Capability
from b4run.sandbox.testing.trial import Trial, case, contents, sh


@case("T87")
async def every_compute_has_an_instance_of_its_own(trial: Trial) -> None:
    thread = trial.thread()
    instances: list[str] = []
    for _ in range(3):
        instances.append((await trial.sandbox(thread_id=thread)).instance)
        await trial.provider.release(thread)
    assert len(set(instances)) == 3


@case("T91", needs=(Capability.EXEC,))
async def release_ends_background_processes_and_clears_tmp(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sandbox.exec.start("while :; do date >> ticks; sleep 0.05; done")
    await sh(sandbox, "until [ -s ticks ]; do sleep 0.05; done; echo old > /tmp/old")
    await trial.provider.release(thread)
    again = await trial.sandbox(thread_id=thread)
    assert await again.exec.jobs() == []
    assert await sh(again, "[ -e /tmp/old ] && echo there || echo clean") == "clean"
    size = (await again.files.stat("ticks")).size
    await sh(again, "sleep 0.3")
    assert (await again.files.stat("ticks")).size == size


@case("T83", needs=(Capability.EXEC,))
async def files_made_by_commands_are_kept(trial: Trial) -> None:
    thread = trial.thread()
    sandbox = await trial.sandbox(thread_id=thread)
    await sh(sandbox, "mkdir -p src && printf x > src/a && chmod 750 src/a && ln -s a src/b")
    await trial.provider.release(thread)
    again = await trial.sandbox(thread_id=thread)
    assert await contents(again, "src") == ["a", "b"]
    entry = await again.files.stat("src/a")
    assert (entry.mode, entry.size) == (0o750, 1)
    assert (await again.files.stat("src/b", follow=False)).target == "a"
