"""Managed workspaces: made from an intent, exactly its source, found again, never doubled, gone when destroyed."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest

from b4run.errors import WorkspaceInvalid, WorkspaceMissing, WorkspaceUnusable
from b4run.sandbox.contract import Capability, FileKind, ManagedWorkspaceProvider, ReaderProvider, SandboxHandle
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.testing.trial import Trial, case
from b4run.workspace import (
    CreationState,
    EnvironmentLink,
    SourceBundle,
    SourceEntry,
    SourceFile,
    WorkspaceIntent,
    create_source_bundle,
    create_workspace_intent,
)
from b4run.workspace.content import BundleContent

MANAGED = (Capability.MANAGED_WORKSPACES,)
POLICY = SandboxPolicy()
INSTALLATION = "22222222-2222-4222-8222-222222222222"
TWO_FILES = create_source_bundle([SourceFile("README.md", b"# hi\n"), SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True)])
LINKS = (EnvironmentLink("deps/tools", "/usr/bin"),)


class _Managed:
    """One thread of the trial and what it is made of."""

    def __init__(self, trial: Trial, intent: WorkspaceIntent, source: SourceBundle) -> None:
        assert isinstance(trial.provider, ManagedWorkspaceProvider)
        self.intent = intent
        self.source = source
        self._trial = trial

    @classmethod
    async def make(cls, trial: Trial, source: SourceBundle = TWO_FILES, *, bare: bool = False, thread: str | None = None) -> _Managed:
        assert isinstance(trial.provider, ManagedWorkspaceProvider)
        intent = create_workspace_intent(
            operation_id=str(uuid.uuid4()),
            installation_id=INSTALLATION,
            thread_id=thread or trial.thread(),
            source_digest=source.digest,
            environment=await trial.provider.resolve_environment(),
            environment_links=() if bare else LINKS,
            baseline=None if bare else "git",
        )
        trial.at_the_end(lambda: trial.provider.destroy_workspace(intent))  # type: ignore[attr-defined]
        return cls(trial, intent, source)

    @property
    def provider(self) -> ManagedWorkspaceProvider:
        assert isinstance(self._trial.provider, ManagedWorkspaceProvider)
        return self._trial.provider

    async def create(self) -> SandboxHandle:
        ready = await self.provider.create_workspace(self.intent, BundleContent(self.source), POLICY)
        ready.check(self.intent)
        return await self.connect()

    async def connect(self) -> SandboxHandle:
        return await self.provider.connect_workspace(self.intent, POLICY)

    async def state(self) -> CreationState:
        return (await self.provider.inspect_creation(self.intent)).state


async def _tree(sandbox: SandboxHandle) -> dict[str, tuple[FileKind, int, bytes | str | None]]:
    found: dict[str, tuple[FileKind, int, bytes | str | None]] = {}
    for entry in await sandbox.files.walk():
        if entry.path.startswith(".git"):
            continue
        if entry.kind is FileKind.FILE:
            found[entry.path] = (entry.kind, entry.mode, (await sandbox.files.read(entry.path)).data)
        else:
            found[entry.path] = (entry.kind, 0, entry.target)
    return found


@case(needs=MANAGED)
async def workspace_is_exactly_its_source(trial: Trial) -> None:
    files = [
        SourceFile("README.md", b"# hi\n"),
        SourceFile("a b/c-d/e.bin", bytes(range(256)) * 5),
        SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True),
        SourceFile("empty", b""),
        SourceFile("large", b"0123456789abcdef" * 200_000),
    ]
    managed = await _Managed.make(trial, create_source_bundle(files), bare=True)
    sandbox = await managed.create()
    assert sandbox.thread_id == managed.intent.thread_id
    folders = dict.fromkeys(("a b", "a b/c-d", "bin"), (FileKind.DIRECTORY, 0, None))
    assert await _tree(sandbox) == folders | {file.path: (FileKind.FILE, 0o755 if file.executable else 0o644, file.data) for file in files}


@case(needs=(*MANAGED, Capability.EXEC))
async def agent_owns_what_it_finds(trial: Trial) -> None:
    sandbox = await (await _Managed.make(trial)).create()
    script = "bin/run.sh && echo more >> README.md && mkdir bin/new && rm bin/run.sh && cat README.md && test -x deps/tools/env && echo 1"
    result = await sandbox.exec.run(script)
    assert (result.exit_code, result.stdout.split()) == (0, ["ok", "#", "hi", "more", "1"]), result.stderr


@case(needs=MANAGED)
async def workspace_without_files_is_empty(trial: Trial) -> None:
    sandbox = await (await _Managed.make(trial, create_source_bundle([]), bare=True)).create()
    assert await _tree(sandbox) == {}


@case(needs=MANAGED)
async def links_and_baseline_are_the_same_everywhere(trial: Trial) -> None:
    managed = await _Managed.make(trial)
    ready = await managed.provider.create_workspace(managed.intent, BundleContent(TWO_FILES), POLICY)
    commit = "c897e22289c55cd57171f08e3ef7657aa820720e"
    assert ready.provenance.baseline_commit == commit
    sandbox = await managed.connect()
    assert (await sandbox.files.read(".git/refs/heads/main")).data == f"{commit}\n".encode()
    assert (await sandbox.files.stat("deps/tools", follow=False)).target == "/usr/bin"
    assert (await sandbox.files.read(".git/info/exclude")).data == b"/deps/tools\n"


@case(needs=(*MANAGED, Capability.EXEC))
async def git_of_the_image_agrees_with_the_baseline(trial: Trial) -> None:
    sandbox = await (await _Managed.make(trial)).create()
    result = await sandbox.exec.run(
        "command -v git >/dev/null || exit 99; git status --porcelain; git fsck --strict && git log --format=%H"
    )
    if result.exit_code != 99:
        assert (result.exit_code, result.stdout) == (0, "c897e22289c55cd57171f08e3ef7657aa820720e\n"), result.stderr


@case(needs=MANAGED)
async def release_keeps_and_another_process_finds_it(trial: Trial) -> None:
    managed = await _Managed.make(trial)
    sandbox = await managed.create()
    await sandbox.files.write("mine", b"x")
    await managed.provider.release_workspace(managed.intent)
    await managed.provider.release_workspace(managed.intent)
    assert sandbox.lost
    again = await managed.connect()
    assert again.instance != sandbox.instance
    assert (await again.files.read("mine")).data == b"x"


@case(needs=(*MANAGED, Capability.PERSISTENT))
async def workspace_outlives_the_provider_object(trial: Trial) -> None:
    managed = await _Managed.make(trial)
    await (await managed.create()).files.write("mine", b"x")
    await trial.reopen()
    assert (await (await managed.connect()).files.read("mine")).data == b"x"


@case(needs=MANAGED)
async def interrupted_creation_is_taken_over_and_never_doubled(trial: Trial) -> None:
    managed = await _Managed.make(trial)
    assert await managed.state() is CreationState.ABSENT
    sandbox = await managed.create()
    assert await managed.state() in (CreationState.PENDING, CreationState.READY)
    before = await _tree(sandbox)
    for path in ("junk/deep", "bin/run.sh", "README.md"):
        await sandbox.files.write(path, b"half made")
    assert await _tree(await managed.create()) == before


@case(needs=MANAGED)
async def connecting_makes_nothing(trial: Trial) -> None:
    managed = await _Managed.make(trial)
    for _ in range(2):
        with pytest.raises(WorkspaceUnusable) as refusal:
            await managed.connect()
        assert refusal.value.lifecycle == "lost"
        assert await managed.state() is CreationState.ABSENT


@case(needs=MANAGED)
async def destroying_removes_all_and_can_be_repeated(trial: Trial) -> None:
    managed = await _Managed.make(trial)
    sandbox = await managed.create()
    for _ in range(2):
        await managed.provider.destroy_workspace(managed.intent)
        assert await managed.state() is CreationState.ABSENT
    assert sandbox.lost
    with pytest.raises(WorkspaceUnusable):
        await managed.connect()


@case(needs=MANAGED)
async def operations_are_apart_though_the_thread_is_the_same(trial: Trial) -> None:
    first = await _Managed.make(trial)
    second = await _Managed.make(trial, bare=True, thread=first.intent.thread_id)
    await (await first.create()).files.write("mine", b"x")
    assert set(await _tree(await second.create())) == {"README.md", "bin", "bin/run.sh"}
    await first.provider.destroy_workspace(first.intent)
    assert set(await _tree(await second.connect())) == {"README.md", "bin", "bin/run.sh"}


class _Off(BundleContent):
    """Says to be one source and gives the bytes of another."""

    def __init__(self, told: SourceBundle, given: SourceBundle, manifest: tuple[SourceEntry, ...]) -> None:
        super().__init__(given)
        self.manifest = manifest
        self._told = told.digest

    @property
    def digest(self) -> str:
        return self._told

    async def pieces(self) -> AsyncIterator[bytes]:
        async for piece in super().pieces():
            yield piece


@case(needs=MANAGED)
async def bytes_that_are_not_the_sources_are_refused(trial: Trial) -> None:
    managed = await _Managed.make(trial)
    changed = create_source_bundle([SourceFile("README.md", b"# ho\n"), SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True)])
    shorter = create_source_bundle([SourceFile("README.md", b"# h"), SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True)])
    for given, manifest in ((changed, TWO_FILES.manifest), (shorter, TWO_FILES.manifest), (TWO_FILES, TWO_FILES.manifest[:1])):
        with pytest.raises(WorkspaceInvalid):
            await managed.provider.create_workspace(managed.intent, _Off(TWO_FILES, given, manifest), POLICY)
    assert "README.md" in await _tree(await managed.create())


@case(needs=(*MANAGED, Capability.READER))
async def readers_find_it_by_its_intent_and_by_its_thread(trial: Trial) -> None:
    managed = await _Managed.make(trial)
    assert isinstance(trial.provider, ReaderProvider)
    with pytest.raises(WorkspaceMissing):
        await managed.provider.open_managed_reader(managed.intent)
    await managed.create()
    await managed.provider.release_workspace(managed.intent)
    for opening in (managed.provider.open_managed_reader(managed.intent), trial.provider.open_workspace_reader(managed.intent.thread_id)):
        reader = await opening
        try:
            assert (await reader.read("README.md")).data == b"# hi\n"
        finally:
            await reader.aclose()
