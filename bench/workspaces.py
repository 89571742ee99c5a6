"""Managed workspaces of 1,000 files, with a git baseline, beside `git clone` of the same files on the host."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import uuid
from functools import partial
from pathlib import Path

from b4run.sandbox.contract import ManagedWorkspaceProvider
from b4run.workspace import SourceFile, WorkspaceIntent, create_source_bundle, create_workspace_intent
from b4run.workspace.content import BundleContent
from bench import bubblewrap, docker
from bench.figures import Figure, median_ms
from bench.sandboxes import POLICY, Open

FILES = [SourceFile(f"src/d{number % 40}/f{number}.py", (f"# file {number}\n" + "value = 1\n" * 80).encode()) for number in range(1_000)]
BUNDLE = create_source_bundle(FILES)
CONTENT = BundleContent(BUNDLE)


async def git_clone_ms() -> float:
    """`git clone` of a repository with these files in one commit, by the file system, checkout included."""
    with tempfile.TemporaryDirectory() as folder:
        origin, copy = Path(folder, "origin"), Path(folder, "copy")
        for file in FILES:
            (origin / file.path).parent.mkdir(parents=True, exist_ok=True)
            (origin / file.path).write_bytes(file.data)
        who = ["-c", "user.name=bench", "-c", "user.email=bench@localhost"]
        for words in (["init", "-q"], ["add", "-A"], [*who, "commit", "-qm", "baseline"]):
            subprocess.run(["git", "-C", str(origin), *words], check=True, capture_output=True)

        async def once() -> None:
            subprocess.run(["git", "clone", "-q", str(origin), str(copy)], check=True, capture_output=True)

        async def after() -> None:
            shutil.rmtree(copy)

        return await median_ms(once, rounds=7, warmup=1, after=after)


async def prepare_ms(opened: Open) -> float:
    """Filling and verifying a workspace whose compute is up: what a managed thread's first command takes longer than another's."""
    async with opened() as provider:
        assert isinstance(provider, ManagedWorkspaceProvider)
        try:
            sandbox = await provider.acquire("bench", POLICY)

            async def once() -> None:
                await sandbox.seed(CONTENT, baseline=True)  # type: ignore[attr-defined]

            return await median_ms(once, rounds=7, warmup=1)
        finally:
            await provider.destroy("bench")


async def create_ms(opened: Open, rounds: int) -> float:
    """From nothing to a workspace that is ready, its compute included, for a new thread each time."""
    intents: list[WorkspaceIntent] = []
    async with opened() as provider:
        assert isinstance(provider, ManagedWorkspaceProvider)
        environment = await provider.resolve_environment()
        managed = provider

        async def once() -> None:
            intents.append(
                create_workspace_intent(
                    operation_id=str(uuid.uuid4()),
                    installation_id="22222222-2222-4222-8222-222222222222",
                    thread_id=f"t-{len(intents)}",
                    source_digest=BUNDLE.digest,
                    environment=environment,
                    baseline="git",
                )
            )
            await managed.create_workspace(intents[-1], CONTENT, POLICY)

        async def after() -> None:
            await managed.destroy_workspace(intents[-1])

        return await median_ms(once, rounds=rounds, warmup=1, after=after)


FIGURES = (
    Figure("floor.git_clone_1k_files_ms", git_clone_ms),
    Figure(
        "workspace.bubblewrap.prepare_1k_files_ms",
        partial(prepare_ms, bubblewrap.opened),
        floor="floor.git_clone_1k_files_ms",
        floor_goal=1.5,
    ),
    Figure("workspace.bubblewrap.create_1k_files_ms", partial(create_ms, bubblewrap.opened, 7)),
    Figure(
        "workspace.docker.prepare_1k_files_ms",
        partial(prepare_ms, docker.opened),
        floor="floor.git_clone_1k_files_ms",
        floor_goal=1.5,
        absence=docker.absence,
    ),
    Figure("workspace.docker.create_1k_files_ms", partial(create_ms, docker.opened, 5), absence=docker.absence),
)
