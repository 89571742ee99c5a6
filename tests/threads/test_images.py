"""Threads and the images of a real engine: what is recorded decides, wherever a tag moves and whatever is admitted later."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from b4run.config import Deny, ThreadContext, ThreadSandbox, WorkspaceDefinition, WorkspaceSource
from b4run.errors import ImageRefused, WorkspaceUnusable
from b4run.sandbox import SandboxPolicy, docker_sandbox
from b4run.storage import Storage, open_storage
from b4run.threads import ManagedWorkspaces, WorkspaceResolver

from ..databases import database
from ..sandbox.docker_engine import IMAGE, docker, needs_docker

pytestmark = needs_docker

POLICY = SandboxPolicy(network=Deny())
SOURCE = WorkspaceSource(directory="task", include=("README.md",))


@pytest.fixture
def images(tmp_path: Path) -> Iterator[tuple[str, str, str]]:
    """A tag, and two images that differ by `/mark`."""
    name = f"b4-test-{uuid.uuid4().hex[:12]}"
    made = []
    for mark in ("one", "two"):
        (tmp_path / "mark").write_text(mark)
        container = docker("create", IMAGE, "true")
        docker("cp", str(tmp_path / "mark"), f"{container}:/mark")
        made.append(docker("commit", container, f"{name}:{mark}"))
        docker("rm", container)
    yield f"{name}:moving", *made  # type: ignore[misc]
    derived = docker("images", "-q", "--filter", "label=b4.sandbox.owned-image").split()
    ours = [image for image in derived if docker("inspect", "--format", '{{index .Config.Labels "b4.sandbox.owned-image"}}', image) in made]
    if ours:
        docker("rmi", "-f", *ours)
    docker("rmi", "-f", *docker("images", "-q", name).split())


@pytest.fixture
async def storage(tmp_path: Path) -> AsyncIterator[Storage]:
    with database("sqlite", tmp_path) as url:
        async with open_storage(url) as opened:
            yield opened


Make = Callable[..., ManagedWorkspaces]


@pytest.fixture
async def make(storage: Storage, tmp_path: Path, images: object) -> AsyncIterator[Make]:
    (tmp_path / "app" / "task").mkdir(parents=True)
    (tmp_path / "app" / "task" / "README.md").write_text("# hi\n")
    scope = f"test-{uuid.uuid4().hex[:12]}"
    made: list[ManagedWorkspaces] = []

    def managed(image: str, admits: Callable[[str], bool]) -> ManagedWorkspaces:
        async def decide(_: ThreadContext) -> ThreadSandbox:
            return ThreadSandbox(workspace=WorkspaceDefinition(source=SOURCE, baseline="git"), image=image)

        resolver = WorkspaceResolver(tmp_path / "app", decide=decide, everything=True)
        made.append(ManagedWorkspaces(docker_sandbox(scope=scope, images=admits), storage, resolver, policy=POLICY))
        return made[-1]

    yield managed
    for one in made:
        await one.aclose()
    for kind, every in (("container", ["-a"]), ("volume", [])):
        if found := docker(kind, "ls", "-q", *every, "--filter", f"label=b4.sandbox.scope={scope}").split():
            docker(kind, "rm", "-f", *found)


async def mark(managed: ManagedWorkspaces, thread: str) -> str:
    sandbox = await managed.acquire(thread, POLICY)
    return (await sandbox.exec.run("cat /mark; cat README.md >/dev/null")).stdout


async def test_a_moved_tag_or_a_narrower_predicate_changes_no_thread_until_it_is_deleted(make: Make, images: tuple[str, str, str]) -> None:
    tag, one, two = images
    docker("tag", one, tag)
    first = make(tag, lambda reference: reference == tag)
    assert await mark(first, "t-1") == "one"
    docker("tag", two, tag)
    assert await mark(first, "t-2") == "two"
    await first.release("t-1")
    assert await mark(first, "t-1") == "one"
    await first.release("t-1")
    narrowed = make(tag, lambda _: False)
    assert await mark(narrowed, "t-1") == "one"
    with pytest.raises(ImageRefused, match="does not admit"):
        await narrowed.acquire("t-3", POLICY)
    await narrowed.destroy("t-1")
    with pytest.raises(ImageRefused):
        await narrowed.acquire("t-1", POLICY)
    assert await mark(make(tag, lambda _: True), "t-1") == "two"


async def test_an_image_that_is_gone_is_told_and_the_thread_can_be_deleted(make: Make, images: tuple[str, str, str]) -> None:
    tag, one, _ = images
    docker("tag", one, tag)
    managed = make(tag, lambda _: True)
    assert await mark(managed, "t-1") == "one"
    await managed.release("t-1")
    for image in docker("images", "-q", "--filter", "label=b4.sandbox.owned-image").split():
        if docker("inspect", "--format", '{{index .Config.Labels "b4.sandbox.owned-image"}}', image) == one:
            docker("rmi", "-f", image)
    docker("rmi", "-f", one)
    with pytest.raises(WorkspaceUnusable, match="not on the engine any more") as refusal:
        await managed.acquire("t-1", POLICY)
    assert refusal.value.lifecycle == "lost"
    await managed.destroy("t-1")
