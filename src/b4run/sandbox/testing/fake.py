"""`fake_sandbox`: a provider in memory for tests of what uses sandboxes. Files behave like real ones; commands are answered by the test."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType

from b4run.errors import PolicyConflict, SandboxLost, WorkspaceMissing
from b4run.sandbox.contract import WORKSPACE_ROOT, Capability
from b4run.sandbox.policy import SandboxPolicy, User
from b4run.sandbox.testing.commands import AnswerCommand, FakeExec, answer_nothing
from b4run.sandbox.testing.files import MemoryFiles, MemoryReader
from b4run.sandbox.testing.memory import MemoryTree

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
    capabilities: frozenset[Capability] = frozenset({Capability.READER})

    def __init__(self, answer: AnswerCommand, outside: Mapping[str, bytes]) -> None:
        self.on_acquire: Hook = _nothing
        self.on_release: Hook = _nothing
        self.on_destroy: Hook = _nothing
        self.log: list[tuple[str, str]] = []
        self._answer = answer
        self._outside = outside
        self._trees: dict[str, MemoryTree] = {}
        self._handles: dict[str, FakeHandle] = {}
        self._locks: dict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def acquire(self, thread_id: str, policy: SandboxPolicy) -> FakeHandle:
        async with self._locks[thread_id]:
            await self.on_acquire(thread_id)
            handle = self._handles.get(thread_id)
            if handle is None or handle.lost:
                handle = FakeHandle(thread_id, self.tree(thread_id), policy, self._answer)
                self._handles[thread_id] = handle
            elif handle.policy != policy:
                raise PolicyConflict(thread_id=thread_id, reason="another policy")
            self.log.append(("acquire", thread_id))
            return handle

    async def release(self, thread_id: str) -> None:
        async with self._locks[thread_id]:
            await self.on_release(thread_id)
            self._end(thread_id)
            self.log.append(("release", thread_id))

    async def destroy(self, thread_id: str) -> None:
        async with self._locks[thread_id]:
            await self.on_destroy(thread_id)
            self._end(thread_id)
            self._trees.pop(thread_id, None)
            self.log.append(("destroy", thread_id))

    async def open_workspace_reader(self, thread_id: str, *, run_as_non_root: bool | User = True) -> MemoryReader:
        """Return a view of the thread's files; who reads makes no difference in memory."""
        if thread_id not in self._trees:
            raise WorkspaceMissing(thread_id=thread_id)
        return MemoryReader(thread_id, self._trees[thread_id])

    async def aclose(self) -> None:
        for thread_id in list(self._handles):
            await self.release(thread_id)

    def tree(self, thread_id: str) -> MemoryTree:
        """Return the thread's file system, to prepare it or to look at it from outside."""
        if thread_id not in self._trees:
            self._trees[thread_id] = MemoryTree(self._outside)
        return self._trees[thread_id]

    def handle(self, thread_id: str) -> FakeHandle:
        """Return the thread's present compute. Raises KeyError when there is none."""
        return self._handles[thread_id]

    def lose(self, thread_id: str) -> None:
        """End the thread's compute as a crash would: calls under way and later ones on it raise `SandboxLost`; files stay."""
        if thread_id in self._handles:
            self._handles[thread_id].end()

    def _end(self, thread_id: str) -> None:
        handle = self._handles.pop(thread_id, None)
        if handle is not None:
            handle.end()


def fake_sandbox(exec: AnswerCommand | None = None, *, outside: Mapping[str, bytes] = MappingProxyType({})) -> FakeProvider:
    """Return a provider that needs no scope, no host and no guest.

    `exec` answers every command with an `Answer`, or a string for its standard output; without it each ends with 0 and prints
    nothing. `outside` are files that exist beyond the workspace, by absolute path.
    """
    return FakeProvider(exec or answer_nothing, outside)
