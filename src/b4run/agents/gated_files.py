"""The thread's files as tools get them: every path is resolved in the sandbox, then the permissions are asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager

from b4run.agents.gating import CallGate
from b4run.errors import FileRefused
from b4run.permissions import PathRequest
from b4run.permissions.requests import Operation
from b4run.sandbox.contract import DirectoryPage, FileBackend, FileContent, FileEntry, FileLines, RealPath


@contextmanager
def told_as(path: str) -> Iterator[None]:
    """Let a refusal name the path that the caller gave, not what it was resolved to."""
    try:
        yield
    except FileRefused as error:
        raise FileRefused(**(error.fields | {"path": path})) from None


class GatedFiles:
    """`FileBackend` for one tool call: inside the workspace only denials count, what lies outside must be allowed.

    Methods of the contract without `beyond` work inside the workspace only.

    Raises of every method, beside the contract's: PermissionRefused.
    """

    def __init__(self, files: FileBackend, gate: CallGate) -> None:
        self._files = files
        self._gate = gate

    async def allowed(self, operation: Operation, path: str) -> RealPath:
        """Return where the path leads once the operation on it is allowed."""
        with told_as(path):
            real = await self._files.real_path(path)
        await self._gate.require(PathRequest(operation, real.path, inside=real.inside))
        return real

    async def real_path(self, path: str) -> RealPath:
        with told_as(path):
            return await self._files.real_path(path)

    async def stat(self, path: str, *, follow: bool = True, beyond: bool = False) -> FileEntry:
        real = await self.allowed("readFile", path)
        with told_as(path):
            if follow or not real.inside:
                return await self._files.stat(real.path, beyond=not real.inside)
            return await self._files.stat(path, follow=False)

    async def list(self, path: str = ".", *, after: str | None = None, limit: int = 10_000, beyond: bool = False) -> DirectoryPage:
        real = await self.allowed("listDir", path)
        with told_as(path):
            return await self._files.list(real.path, after=after, limit=limit, beyond=not real.inside)

    async def entries(self, path: str = ".", *, after: str | None = None, limit: int = 10_000) -> Sequence[FileEntry]:
        real = await self.allowed("listDir", path)
        with told_as(path):
            return await self._files.entries(real.path, after=after, limit=limit)

    async def walk(self, path: str = ".", *, limit: int = 100_000, exclude: Sequence[str] = ()) -> Sequence[FileEntry]:
        real = await self.allowed("listDir", path)
        with told_as(path):
            return await self._files.walk(real.path, limit=limit, exclude=exclude)

    async def read(
        self, path: str, *, offset: int = 0, limit: int | None = None, max_size: int | None = 67_108_864, beyond: bool = False
    ) -> FileContent:
        real = await self.allowed("readFile", path)
        with told_as(path):
            return await self._files.read(real.path, offset=offset, limit=limit, max_size=max_size, beyond=not real.inside)

    async def read_lines(
        self, path: str, *, first: int = 1, last: int | None = None, limit: int = 262_144, beyond: bool = False
    ) -> FileLines:
        real = await self.allowed("readFile", path)
        with told_as(path):
            return await self._files.read_lines(real.path, first=first, last=last, limit=limit, beyond=not real.inside)

    async def read_stream(self, path: str, *, offset: int = 0) -> AsyncIterator[bytes]:
        real = await self.allowed("readFile", path)
        with told_as(path):
            async for piece in self._files.read_stream(real.path, offset=offset):
                yield piece

    async def write(
        self,
        path: str,
        data: bytes | AsyncIterator[bytes],
        *,
        mode: int | None = None,
        parents: bool = True,
        expect: bytes | None = None,
        create: bool = False,
        beyond: bool = False,
    ) -> FileEntry:
        real = await self.allowed("writeFile", path)
        with told_as(path):
            return await self._files.write(
                real.path, data, mode=mode, parents=parents, expect=expect, create=create, beyond=not real.inside
            )

    async def mkdir(self, path: str, *, parents: bool = True, mode: int = 0o755) -> bool:
        real = await self.allowed("writeFile", path)
        with told_as(path):
            return await self._files.mkdir(real.path, parents=parents, mode=mode)

    async def remove(self, path: str, *, recursive: bool = False) -> int:
        await self.allowed("writeFile", path)
        with told_as(path):
            return await self._files.remove(path, recursive=recursive)

    async def rename(self, source: str, target: str, *, replace: bool = True) -> None:
        await self.allowed("writeFile", source)
        await self.allowed("writeFile", target)
        with told_as(source):
            await self._files.rename(source, target, replace=replace)
