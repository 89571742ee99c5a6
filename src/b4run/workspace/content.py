"""The bytes of a source, wherever they are kept: what a provider fills a workspace with."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Protocol

from b4run.workspace.bundle import SourceBundle, SourceEntry

PIECE_BYTES = 1_048_576
"""The most that content gives out at a time."""


class SourceContent(Protocol):
    """A source that can be read more than once, piece by piece. Whoever uses it checks the bytes against the digest."""

    @property
    def digest(self) -> str: ...

    @property
    def manifest(self) -> Sequence[SourceEntry]:
        """The files, in ascending order of their paths."""

    def pieces(self) -> AsyncIterator[bytes]:
        """The bytes of all files in that order, one after the other, in pieces of at most `PIECE_BYTES` that need not end with files."""


class BundleContent:
    """`SourceContent` of a bundle that is in memory."""

    def __init__(self, bundle: SourceBundle) -> None:
        self._bundle = bundle
        self.manifest: Sequence[SourceEntry] = bundle.manifest

    @property
    def digest(self) -> str:
        return self._bundle.digest

    async def pieces(self) -> AsyncIterator[bytes]:
        for file in self._bundle.files:
            for at in range(0, len(file.data), PIECE_BYTES):
                yield file.data[at : at + PIECE_BYTES]


async def by_file(content: SourceContent) -> AsyncIterator[tuple[SourceEntry, bytes, bool]]:
    """Cut content at the ends of files: give out each part with its file, and whether that ends with it. An empty file has an empty part.

    Raises:
        ValueError: the content is shorter or longer than its manifest.
    """
    rest: memoryview = memoryview(b"")
    pieces = content.pieces()
    for entry in content.manifest:
        left = entry.size
        if not left:
            yield entry, b"", True
        while left:
            if not rest:
                piece = await anext(pieces, None)
                if not piece:
                    raise ValueError(f"source {content.digest} ends within {entry.path!r}")
                rest = memoryview(piece)
            part, rest = rest[:left], rest[left:]
            left -= len(part)
            yield entry, bytes(part), not left
    more = await anext(pieces, None)
    if rest or more:
        raise ValueError(f"source {content.digest} has more bytes than its manifest")
