"""Admission, use and deletion of managed threads, on both databases, with the provider in memory."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from b4run.config import (
    Allow,
    Deny,
    Resources,
    Rules,
    ThreadContext,
    ThreadPermissions,
    ThreadPolicy,
    ThreadSandbox,
    WorkspaceDefinition,
    WorkspaceSource,
)
from b4run.errors import (
    B4Error,
    ImageRefused,
    ResolverFailed,
    SandboxHeld,
    SandboxUnavailable,
    StorageUnusable,
    WorkspaceMissing,
    WorkspaceUnusable,
)
from b4run.permissions import Key
from b4run.sandbox import SandboxPolicy, SandboxSupervisor
from b4run.sandbox.testing import FakeProvider, fake_sandbox
from b4run.storage import RecordState, Storage, open_storage
from b4run.threads import ManagedWorkspaces, Step, WorkspaceResolver
from b4run.workspace import Creation, CreationState, Retention, inspect_workspace

from ..databases import BOTH, database

POLICY = SandboxPolicy(network=Deny(), resources=Resources(memory_mb=512))
DEFINITION = WorkspaceDefinition(source=WorkspaceSource(directory="task", include=("README.md",)), baseline="git")

TABLES = ("workspaces", "thread_sandboxes", "sources", "source_rows")


@pytest.fixture(params=BOTH)
async def storage(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Storage]:
    with database(request.param, tmp_path) as url:
        async with open_storage(url) as opened:
            yield opened


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "app"
    (root / "task").mkdir(parents=True)
    (root / "task" / "README.md").write_text("# hi\n")
    return root


@pytest.fixture
def provider() -> FakeProvider:
    return fake_sandbox()


Make = Callable[..., ManagedWorkspaces]


@pytest.fixture
def make(storage: Storage, root: Path, provider: FakeProvider) -> Make:
    def managed(
        decide: Callable[[ThreadContext], Any] | None = None,
        *,
        everything: bool = False,
        over: Any = None,
        policy: SandboxPolicy = POLICY,
        deadline_s: float = 5,
        **options: Any,
    ) -> ManagedWorkspaces:
        definition = None if decide else DEFINITION
        resolver = WorkspaceResolver(root, definition, decide, everything=everything, deadline_s=deadline_s)
        return ManagedWorkspaces(over or provider, storage, resolver, policy=policy, **options)

    return managed


async def counts(storage: Storage) -> dict[str, int]:
    async with storage.engines.durable.connect() as connection:
        return {table: int(await connection.scalar(text(f"SELECT count(*) FROM {table}"))) for table in TABLES}  # type: ignore[arg-type]


NOTHING = dict.fromkeys(TABLES, 0)


async def test_a_thread_starts_from_its_definition_and_keeps_its_files(make: Make, storage: Storage) -> None:
    managed = make()
    sandbox = await managed.acquire("t-1", POLICY)
    assert (await sandbox.files.read("README.md")).data == b"# hi\n"
    assert (await sandbox.files.stat(".git/HEAD")).size
    await sandbox.files.write("README.md", b"mine")
    await managed.release("t-1")
    assert sandbox.lost
    again = await make().acquire("t-1", POLICY)
    assert (await again.files.read("README.md")).data == b"mine"
    record = await storage.workspaces.find("t-1")
    assert record is not None and record.ready is not None
    assert (record.state, record.revision) == (RecordState.READY, 2)
    assert record.ready.provenance.source_digest == record.intent.source_digest
    assert record.intent.installation_id == await storage.workspaces.installation_id()


async def test_a_deleted_threads_id_is_new_again(make: Make, root: Path, storage: Storage) -> None:
    managed = make()
    await (await managed.acquire("t-1", POLICY)).files.write("mine", b"x")
    first = await storage.workspaces.find("t-1")
    await managed.destroy("t-1")
    assert await counts(storage) == NOTHING
    (root / "task" / "README.md").write_text("# new\n")
    sandbox = await managed.acquire("t-1", POLICY)
    assert [entry.path for entry in await sandbox.files.entries()] == [".git", "README.md"]
    assert (await sandbox.files.read("README.md")).data == b"# new\n"
    second = await storage.workspaces.find("t-1")
    assert first and second and first.intent.operation_id != second.intent.operation_id
    await managed.destroy("t-1")
    await managed.destroy("t-1")
    await managed.destroy("never")


async def test_threads_of_one_source_share_it_and_the_last_takes_it_away(make: Make, storage: Storage) -> None:
    managed = make()
    for thread in ("t-1", "t-2"):
        await managed.acquire(thread, POLICY)
    assert (await counts(storage))["sources"] == 1
    await managed.destroy("t-1")
    assert (await counts(storage))["sources"] == 1
    assert (await (await managed.acquire("t-2", POLICY)).files.read("README.md")).data == b"# hi\n"
    await managed.destroy("t-2")
    assert await counts(storage) == NOTHING


class Counted:
    """A resolver that counts how often it is asked and of whom."""

    def __init__(self, answer: Callable[[ThreadContext], Any]) -> None:
        self.asked: list[ThreadContext] = []
        self._answer = answer

    async def __call__(self, context: ThreadContext) -> Any:
        self.asked.append(context)
        await asyncio.sleep(0.01)
        return self._answer(context)


async def test_a_resolver_is_asked_once_per_thread_whoever_asks(make: Make, storage: Storage) -> None:
    resolver = Counted(lambda _: DEFINITION)

    async def metadata(thread_id: str) -> dict[str, str]:
        return {"task": thread_id}

    supervisors = [SandboxSupervisor(make(resolver, metadata_of=metadata), POLICY) for _ in range(3)]

    async def use(supervisor: SandboxSupervisor, thread: str) -> bytes:
        async with supervisor.lease(thread) as sandbox:
            return (await sandbox.files.read("README.md")).data

    found = await asyncio.gather(*(use(supervisor, thread) for supervisor in supervisors for thread in ("t-1", "t-2") for _ in range(3)))
    assert set(found) == {b"# hi\n"}
    assert sorted((context.thread_id, context.metadata["task"]) for context in resolver.asked) == [("t-1", "t-1"), ("t-2", "t-2")]
    await make(resolver).acquire("t-1", POLICY)
    assert len(resolver.asked) == 2
    assert (await counts(storage))["workspaces"] == 2


async def raises(_: ThreadContext) -> Any:
    raise ValueError("thread names no known task")


async def never(_: ThreadContext) -> Any:
    await asyncio.sleep(60)


async def deaf(_: ThreadContext) -> Any:
    for _ in range(40):
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0.1)
    return DEFINITION


async def takes_nothing() -> Any:
    return DEFINITION


def answering(answer: Any) -> Callable[[ThreadContext], Any]:
    async def decide(_: ThreadContext) -> Any:
        return answer

    return decide


MISSING = WorkspaceDefinition(source=WorkspaceSource(directory="task", include=("README.md", "nope")))


@pytest.mark.parametrize(
    ("decide", "everything", "error", "reason"),
    [
        (raises, False, ResolverFailed, "'t-1' was not resolved: it raised ValueError: thread names no known task"),
        (never, False, ResolverFailed, "did not answer within 0.3 s"),
        (deaf, False, ResolverFailed, "did not answer within 0.3 s"),
        (takes_nothing, False, ResolverFailed, "it raised TypeError"),
        (answering(None), False, ResolverFailed, "it answered NoneType, not a WorkspaceDefinition"),
        (answering(DEFINITION), True, ResolverFailed, "it answered WorkspaceDefinition, not a ThreadSandbox"),
        (answering(MISSING), False, ResolverFailed, "'task/nope' is included, and is not there"),
        (answering(ThreadSandbox(workspace=DEFINITION, policy=ThreadPolicy(network=Allow()))), True, WorkspaceUnusable, "denies"),
        (
            answering(ThreadSandbox(workspace=DEFINITION, policy=ThreadPolicy(env={f"N{n}": "x" * 32_768 for n in range(9)}))),
            True,
            ResolverFailed,
            "262,144",
        ),
    ],
)
async def test_what_is_not_resolved_leaves_nothing(
    make: Make, storage: Storage, provider: FakeProvider, decide: Any, everything: bool, error: type[B4Error], reason: str
) -> None:
    calls: list[str] = []

    class Watched:
        capabilities = provider.capabilities
        name = "watched"

        def __getattr__(self, name: str) -> Any:
            calls.append(name)
            return getattr(provider, name)

    managed = make(decide, everything=everything, over=Watched(), deadline_s=0.3)
    async with asyncio.timeout(5):
        with pytest.raises(error, match=reason):
            await managed.acquire("t-1", POLICY)
    assert calls == []
    assert await counts(storage) == NOTHING
    await make().acquire("t-1", POLICY)


async def test_a_cancelled_admission_leaves_nothing(make: Make, storage: Storage, provider: FakeProvider) -> None:
    for decide in (never, deaf):
        task = asyncio.create_task(make(decide).acquire("t-1", POLICY))
        await asyncio.sleep(0.05)
        task.cancel()
        async with asyncio.timeout(3):
            with pytest.raises(asyncio.CancelledError):
                await task
    assert await counts(storage) == NOTHING
    assert provider.log == []


async def test_a_refused_image_leaves_nothing(make: Make, storage: Storage, provider: FakeProvider) -> None:
    async def refuse(reference: str) -> Any:
        raise ImageRefused(reference=reference, reason="`images` does not admit it")

    provider.resolve_image_environment = refuse  # type: ignore[method-assign]
    managed = make(answering(ThreadSandbox(workspace=DEFINITION, image="x:1")), everything=True)
    with pytest.raises(ImageRefused, match="x:1"):
        await managed.acquire("t-1", POLICY)
    assert await counts(storage) == NOTHING
    provider.capabilities -= {"image_resolution"}  # type: ignore[assignment]
    with pytest.raises(WorkspaceUnusable, match="has none to choose") as refusal:
        await managed.acquire("t-1", POLICY)
    assert refusal.value.lifecycle == "unsupported"
    assert await counts(storage) == NOTHING


async def test_a_threads_own_settings_are_recorded_and_held(make: Make, storage: Storage, provider: FakeProvider) -> None:
    policy = ThreadPolicy(env={"A": "1"}, resources=Resources(memory_mb=64))
    rules = ThreadPermissions(allow=Rules(bash=("npm test",)))
    decide = Counted(lambda _: ThreadSandbox(workspace=DEFINITION, image="x:1", policy=policy, permissions=rules))
    managed = make(decide, everything=True)
    await managed.acquire("t-1", POLICY)
    expected = POLICY.model_copy(update={"env": {"A": "1"}, "resources": Resources(memory_mb=64)})
    assert provider.handle("t-1").policy == expected
    record = await storage.workspaces.find("t-1")
    assert record is not None
    assert record.sandbox == (
        '{"version":1,"image":"x:1","policy":{"env":{"A":"1"},"resources":{"memoryMb":64}},'
        '"permissions":{"allow":{"bash":["npm test"]},"deny":{}}}'
    )
    assert record.intent.environment.identity == "image:x:1"
    other = make(answering(ThreadSandbox(workspace=DEFINITION)), everything=True)
    settings = await other.settings("t-1")
    assert settings.image == "x:1" and settings.rules is not None and settings.rules.allow.of(Key.BASH) == ("npm test",)
    await managed.release("t-1")
    await other.acquire("t-1", POLICY)
    assert provider.handle("t-1").policy == expected
    await other.acquire("t-2", POLICY)
    plain = await storage.workspaces.find("t-2")
    assert plain is not None and plain.sandbox == '{"version":1}'
    assert len(decide.asked) == 1


async def test_the_apps_denial_is_held_against_the_record_at_every_connection(make: Make) -> None:
    decide = answering(ThreadSandbox(workspace=DEFINITION, policy=ThreadPolicy(network=Allow())))
    managed = make(decide, everything=True)
    await managed.acquire("t-1", SandboxPolicy(network=Allow()))
    await managed.release("t-1")
    with pytest.raises(WorkspaceUnusable, match="denies"):
        await managed.acquire("t-1", POLICY)


async def test_a_thread_without_settings_is_refused_where_every_thread_has_its_own(make: Make) -> None:
    await make().acquire("t-1", POLICY)
    managed = make(answering(ThreadSandbox(workspace=DEFINITION)), everything=True)
    for use in (managed.acquire("t-1", POLICY), managed.settings("t-1"), managed.open_workspace_reader("t-1")):
        with pytest.raises(WorkspaceUnusable, match=r"sandbox\.thread") as refusal:
            await use
        assert refusal.value.lifecycle == "conflict"
    await managed.destroy("t-1")
    await managed.acquire("t-1", POLICY)


async def test_another_installations_thread_is_refused(make: Make, storage: Storage) -> None:
    await make().acquire("t-1", POLICY)
    async with storage.engines.durable.begin() as connection:
        await connection.execute(text("UPDATE installation SET installation_id = '33333333-3333-4333-8333-333333333333'"))
    with pytest.raises(WorkspaceUnusable, match="another installation") as refusal:
        await make().acquire("t-1", POLICY)
    assert refusal.value.lifecycle == "conflict"


TAMPERED = {
    "intent": "UPDATE workspaces SET intent = replace(intent, '\"t-1\"', '\"t-2\"')",
    "spaces": "UPDATE workspaces SET intent = replace(intent, ':', ': ')",
    "ready": "UPDATE workspaces SET ready = replace(ready, 'until-destroy', 'expires')",
    "state": "UPDATE workspaces SET state = 'odd'",
    "json": "UPDATE workspaces SET intent = '{'",
}


@pytest.mark.parametrize("how", TAMPERED)
async def test_a_tampered_record_is_refused_and_blocks_no_other(make: Make, storage: Storage, how: str) -> None:
    managed = make()
    await managed.acquire("t-1", POLICY)
    async with storage.engines.durable.begin() as connection:
        await connection.execute(text(TAMPERED[how]))
    with pytest.raises(StorageUnusable, match="'t-1'"):
        await managed.acquire("t-1", POLICY)
    await managed.acquire("t-2", POLICY)
    assert await managed.recover() == 0


async def test_a_tampered_source_never_becomes_a_workspace(make: Make, storage: Storage) -> None:
    def stop(step: Step) -> None:
        if step is Step.RECORDED:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        await make(on_step=stop).acquire("t-1", POLICY)
    async with storage.engines.durable.begin() as connection:
        await connection.execute(text("UPDATE source_rows SET data = :data WHERE part = 1"), {"data": b"# ho\n"})
    with pytest.raises(WorkspaceUnusable, match="not what they were") as refusal:
        await make().acquire("t-1", POLICY)
    assert refusal.value.lifecycle == "lost"
    await make().destroy("t-1")
    assert await counts(storage) == NOTHING


@pytest.mark.parametrize(
    ("creation", "lifecycle"),
    [
        (Creation(CreationState.UNKNOWN, reason="no answer"), "uncertain"),
        (Creation(CreationState.FAILED, code="retryable", reason="no room"), "retryable"),
    ],
)
async def test_an_unclear_creation_is_never_begun_again(
    make: Make, provider: FakeProvider, storage: Storage, creation: Creation, lifecycle: str
) -> None:
    async def answer(_: Any) -> Creation:
        return creation

    honest, provider.inspect_creation = provider.inspect_creation, answer  # type: ignore[method-assign]
    for _ in range(2):
        with pytest.raises(WorkspaceUnusable) as refusal:
            await make().acquire("t-1", POLICY)
        assert refusal.value.lifecycle == lifecycle
    assert {action for action, _ in provider.log} <= {"release"}
    provider.inspect_creation = honest  # type: ignore[method-assign]
    await make().acquire("t-1", POLICY)


async def test_a_provider_that_answers_for_something_else_is_not_believed(make: Make, provider: FakeProvider, storage: Storage) -> None:
    honest = provider.create_workspace

    async def lie(*arguments: Any) -> Any:
        ready = await honest(*arguments)
        return replace(ready, provenance=replace(ready.provenance, source_digest="0" * 64))

    provider.create_workspace = lie  # type: ignore[method-assign]
    with pytest.raises(WorkspaceUnusable, match="something else"):
        await make().acquire("t-1", POLICY)
    assert provider._handles == {}
    record = await storage.workspaces.find("t-1")
    assert record is not None and record.state is RecordState.CREATING


async def test_files_that_have_expired_are_not_used(make: Make, provider: FakeProvider) -> None:
    honest = provider.create_workspace

    async def brief(*arguments: Any) -> Any:
        ready = await honest(*arguments)
        return replace(ready, provenance=replace(ready.provenance, retention=Retention("expires", "2020-01-01T00:00:00Z")))

    provider.create_workspace = brief  # type: ignore[method-assign]
    with pytest.raises(WorkspaceUnusable, match="2020") as refusal:
        await make().acquire("t-1", POLICY)
    assert refusal.value.lifecycle == "expired"


async def test_readers_see_the_thread_and_nothing_before_it_is_ready(make: Make) -> None:
    managed = make()
    with pytest.raises(WorkspaceMissing):
        await managed.open_workspace_reader("t-1")
    await managed.acquire("t-1", POLICY)
    reader = await managed.open_workspace_reader("t-1")
    inspection = await inspect_workspace(reader, exclude_root_directories=[".git"])
    assert inspection.files == {"README.md": "# hi\n"}


async def test_a_deletion_that_fails_keeps_the_thread_out_and_is_finished_later(
    make: Make, provider: FakeProvider, storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    managed = make()
    await managed.acquire("t-1", POLICY)
    await managed.acquire("t-2", POLICY)

    async def stuck(thread_id: str) -> None:
        if thread_id == "t-1":
            raise SandboxUnavailable(thread_id=thread_id, reason="the engine is away")

    provider.on_destroy = stuck
    with pytest.raises(SandboxUnavailable, match="away"):
        await managed.destroy("t-1")
    with pytest.raises(WorkspaceUnusable, match="being deleted"):
        await managed.acquire("t-1", POLICY)
    with caplog.at_level(logging.WARNING):
        assert await make().recover() == 1
    assert "not finished yet" in caplog.text
    await managed.acquire("t-2", POLICY)
    provider.on_destroy = fake_sandbox().on_destroy
    assert await make().recover() == 0
    assert (await counts(storage))["workspaces"] == 1
    await managed.acquire("t-1", POLICY)


STEPS = {"admission": [Step.RESOLVED, Step.RECORDED, Step.CREATED, Step.READY], "deletion": [Step.DELETING, Step.DESTROYED, Step.FORGOTTEN]}


@pytest.mark.parametrize("step", [step for steps in STEPS.values() for step in steps])
@pytest.mark.parametrize("by", ["recovery", "use"])
async def test_whatever_stops_halfway_is_finished_or_undone_once(
    make: Make, provider: FakeProvider, storage: Storage, step: Step, by: str
) -> None:
    def stop(reached: Step) -> None:
        if reached is step:
            raise KeyboardInterrupt

    resolver = Counted(lambda _: DEFINITION)
    managed = make(resolver, on_step=stop)
    with pytest.raises(KeyboardInterrupt):
        await managed.acquire("t-1", POLICY)
        await managed.destroy("t-1")
    after = make(resolver)
    if by == "recovery":
        assert await after.recover() == 0
        assert await after.recover() == 0
    if step in STEPS["deletion"]:
        if by == "recovery":
            assert await counts(storage) == NOTHING
            assert provider._trees == {}
        else:
            await after.destroy("t-1")
    sandbox = await after.acquire("t-1", POLICY)
    assert (await sandbox.files.read("README.md")).data == b"# hi\n"
    assert len(provider._trees) == 1
    assert len(resolver.asked) == (2 if step is Step.RESOLVED or step in STEPS["deletion"] else 1)
    await after.destroy("t-1")
    assert (await counts(storage), provider._trees) == (NOTHING, {})


async def test_recovery_goes_on_until_nothing_is_left(make: Make, provider: FakeProvider, storage: Storage) -> None:
    managed = make()
    await managed.acquire("t-1", POLICY)
    record = await storage.workspaces.find("t-1")
    assert record is not None
    await storage.workspaces.mark_deleting(record)
    async with asyncio.timeout(10):
        await managed.keep_recovering()
    assert await counts(storage) == NOTHING


async def test_a_thread_that_another_process_works_on_is_told_so(make: Make, storage: Storage) -> None:
    managed = make(lock_deadline_s=0.1)
    async with storage.locks.hold("the workspace of thread 't-1'", deadline_s=1):
        with pytest.raises(SandboxHeld, match="another process"):
            await managed.acquire("t-1", POLICY)
        await managed.acquire("t-2", POLICY)
    await managed.acquire("t-1", POLICY)


@pytest.mark.parametrize("thread", ['поток "1"\u2028\U0001f600', "x" * 1_024, "../..", "a\\b"])
async def test_any_thread_id_that_can_be_recorded_works(make: Make, thread: str) -> None:
    managed = make()
    await managed.acquire(thread, POLICY)
    await managed.destroy(thread)


@pytest.mark.parametrize("thread", ["", " ", "a\nb", "x" * 1_025, "\ud800"])
async def test_a_thread_id_that_cannot_be_recorded_is_refused(make: Make, storage: Storage, thread: str) -> None:
    with pytest.raises(B4Error):
        await make().acquire(thread, POLICY)
    assert await counts(storage) == NOTHING
