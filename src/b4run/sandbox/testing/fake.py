"""`fake_sandbox`: a provider in memory for tests of what uses sandboxes. Files behave like real ones; commands are answered by the test."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from b4run.errors import PolicyConflict, SandboxLost, WorkspaceMissing, WorkspaceUnusable
from b4run.sandbox.contract import WORKSPACE_ROOT, Capability
from b4run.sandbox.policy import SandboxPolicy, User
from b4run.sandbox.testing.commands import AnswerCommand, FakeExec, answer_nothing
from b4run.sandbox.testing.files import MemoryFiles, MemoryReader
from b4run.sandbox.testing.memory import MemoryTree
from b4run.sandbox.testing.seeding import seed_tree
from b4run.workspace import (
    Binding,
    Creation,
    CreationState,
    Environment,
    ReadyWorkspace,
    WorkspaceIntent,
    workspace_id,
)
from b4run.workspace.content import SourceContent

Hook = Callable[[str], Awaitable[None]]
"""Gets the thread's id; may wait or raise."""

_numbers = itertools.count(1)


async def _nothing(_: str) -> None:
    return None


class FakeHandle:
    """One thread's fake compute."""

    def __init__(self, thread_id: str, tree: MemoryTree, policy: SandboxPolicy, answer: AnswerCommand) -> None:
        self.thread_id = thread_id
        self.workspace_root = WORKSPACE_ROOT
        self.instance = f"fake-{next(_numbers)}"
        self.policy = policy
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.exec = FakeExec(self, tree, policy.env, answer)
        self.files = MemoryFiles(tree, self.check)

    @property
    def lost(self) -> bool:
        return self.gone.done()

    def check(self) -> None:
        if self.lost:
            raise self.loss()

    def loss(self) -> SandboxLost:
        return SandboxLost(thread_id=self.thread_id, reason="the fake compute ended")

    async def idle(self) -> bool:
        return self.lost or not self.exec.busy

    def end(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)
        self.exec.end()


class FakeProvider:
    """What `fake_sandbox` returns; the hooks run inside acquire, release and destroy before anything is changed.

    `log` lists what was completed, such as `("acquire", "t-1")`.
    """

    name = "fake"
    capabilities: frozenset[Capability] = frozenset({Capability.READER, Capability.MANAGED_WORKSPACES, Capability.IMAGE_RESOLUTION})

    def __init__(self, answer: AnswerCommand, outside: Mapping[str, bytes]) -> None:
        self.on_acquire: Hook = _nothing
        self.on_release: Hook = _nothing
        self.on_destroy: Hook = _nothing
        self.log: list[tuple[str, str]] = []
        self._answer = answer
        self._outside = outside
        self._managed: dict[str, str] = {}
        self._trees: dict[str, MemoryTree] = {}
        self._handles: dict[str, FakeHandle] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> FakeHandle:
        return await self._acquire(thread_id, thread_id, policy)

    async def release(self, thread_id: str) -> None:
        await self._release(thread_id, thread_id)

    async def destroy(self, thread_id: str) -> None:
        await self._destroy(thread_id, thread_id)

    async def open_workspace_reader(self, thread_id: str, *, run_as_non_root: bool | User = True) -> MemoryReader:
        """Return a view of the thread's files; who reads makes no difference in memory."""
        return self._reader(self._managed.get(thread_id, thread_id), thread_id)

    async def resolve_environment(self) -> Environment:
        return Environment(Binding(self.name, "fake"), "memory")

    async def resolve_image_environment(self, reference: str) -> Environment:
        """Every image is there, and its own name is its identity."""
        return Environment(Binding(self.name, "fake"), f"image:{reference}")

    async def inspect_creation(self, intent: WorkspaceIntent) -> Creation:
        return Creation(CreationState.PENDING if workspace_id(intent) in self._trees else CreationState.ABSENT)

    async def create_workspace(self, intent: WorkspaceIntent, content: SourceContent, policy: SandboxPolicy) -> ReadyWorkspace:
        key = workspace_id(intent)
        await self._release(key, intent.thread_id)
        tree = MemoryTree(self._outside)
        commit = await seed_tree(tree, content, intent.environment_links, baseline=intent.baseline == "git")
        self._trees[key], self._managed[intent.thread_id] = tree, key
        await self._acquire(key, intent.thread_id, policy)
        return ReadyWorkspace.made(intent, {"tree": key}, content.digest, commit)

    async def connect_workspace(self, intent: WorkspaceIntent, policy: SandboxPolicy) -> FakeHandle:
        key = workspace_id(intent)
        if key not in self._trees:
            raise WorkspaceUnusable(thread_id=intent.thread_id, lifecycle="lost", reason="it is not in memory", remedy="Delete the thread.")
        return await self._acquire(key, intent.thread_id, policy)

    async def release_workspace(self, intent: WorkspaceIntent) -> None:
        await self._release(workspace_id(intent), intent.thread_id)

    async def destroy_workspace(self, intent: WorkspaceIntent) -> None:
        await self._destroy(workspace_id(intent), intent.thread_id)
        self._managed.pop(intent.thread_id, None)

    async def open_managed_reader(self, intent: WorkspaceIntent, *, run_as_non_root: bool | User = True) -> MemoryReader:
        return self._reader(workspace_id(intent), intent.thread_id)

    async def aclose(self) -> None:
        for key, handle in list(self._handles.items()):
            await self._release(key, handle.thread_id)

    def tree(self, thread_id: str) -> MemoryTree:
        """Return the thread's file system, to prepare it or to look at it from outside."""
        return self._tree(self._managed.get(thread_id, thread_id))

    def handle(self, thread_id: str) -> FakeHandle:
        """Return the thread's present compute. Raises KeyError when there is none."""
        return self._handles[self._managed.get(thread_id, thread_id)]

    def lose(self, thread_id: str) -> None:
        """End the thread's compute as a crash would: calls under way and later ones on it raise `SandboxLost`; files stay."""
        key = self._managed.get(thread_id, thread_id)
        if key in self._handles:
            self._handles[key].end()

    async def _acquire(self, key: str, thread_id: str, policy: SandboxPolicy) -> FakeHandle:
        async with self._locks[key]:
            await self.on_acquire(thread_id)
            handle = self._handles.get(key)
            if handle is None or handle.lost:
                handle = FakeHandle(thread_id, self._tree(key), policy, self._answer)
                self._handles[key] = handle
            elif handle.policy != policy:
                raise PolicyConflict(thread_id=thread_id, reason="another policy")
            self.log.append(("acquire", thread_id))
            return handle

    async def _release(self, key: str, thread_id: str) -> None:
        async with self._locks[key]:
            await self.on_release(thread_id)
            self._end(key)
            self.log.append(("release", thread_id))

    async def _destroy(self, key: str, thread_id: str) -> None:
        async with self._locks[key]:
            await self.on_destroy(thread_id)
            self._end(key)
            self._trees.pop(key, None)
            self.log.append(("destroy", thread_id))

    def _reader(self, key: str, thread_id: str) -> MemoryReader:
        if key not in self._trees:
            raise WorkspaceMissing(thread_id=thread_id)
        return MemoryReader(thread_id, self._trees[key])

    def _tree(self, key: str) -> MemoryTree:
        if key not in self._trees:
            self._trees[key] = MemoryTree(self._outside)
        return self._trees[key]

    def _end(self, key: str) -> None:
        handle = self._handles.pop(key, None)
        if handle is not None:
            handle.end()


def fake_sandbox(exec: AnswerCommand | None = None, *, outside: Mapping[str, bytes] = MappingProxyType({})) -> FakeProvider:
    """Return a provider that needs no scope, no host and no guest.

    `exec` answers every command with an `Answer`, or a string for its standard output; without it each ends with 0 and prints
    nothing. `outside` are files that exist beyond the workspace, by absolute path.
    """
    return FakeProvider(exec or answer_nothing, outside)
