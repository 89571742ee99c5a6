"""The largest sources: how much memory they take, and how often each byte is hashed, from their upload to the first command."""

from __future__ import annotations

import hashlib
import random
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from b4run.sandbox import Deny, SandboxPolicy
from b4run.sandbox.providers.bubblewrap import bubblewrap_sandbox
from b4run.storage import open_storage
from b4run.threads import ManagedWorkspaces, WorkspaceResolver
from b4run.workspace import CapturedWorkspace, SourceFile, create_source_bundle, verify_source_bundle

from ..databases import BOTH, database

POLICY = SandboxPolicy(network=Deny())
MIB = 2**20
SHA256 = hashlib.sha256


def ten_thousand() -> list[SourceFile]:
    return [SourceFile(f"d{number % 100}/f{number}.txt", b"some text of file %d\n" % number) for number in range(10_000)]


def sixty_four_mebibytes() -> list[SourceFile]:
    return [SourceFile(f"blob{number}", random.Random(number).randbytes(16 * MIB)) for number in range(4)]


class Counting:
    """SHA-256 that counts what goes through it; 4 bytes of base64 are 3 of a file."""

    total = 0

    def __init__(self, data: bytes = b"") -> None:
        self._hash = SHA256()
        self.update(data)

    def update(self, data: bytes) -> None:
        type(self).total += len(data)
        self._hash.update(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()

    def digest(self) -> bytes:
        return self._hash.digest()


@pytest.mark.parametrize("kind", BOTH)
@pytest.mark.parametrize("make", [ten_thousand, sixty_four_mebibytes])
async def test_memory_and_hashing_stay_bounded(
    kind: str, make: Callable[[], list[SourceFile]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    text = create_source_bundle(make()).to_json()
    size, entries = sum(len(file.data) for file in make()), len(make())
    monkeypatch.setattr(hashlib, "sha256", Counting)
    with database(kind, closed) as url:
        async with open_storage(url) as storage:
            provider = bubblewrap_sandbox(scope="large", state_dir=closed / "state")

            async def uploaded(_: Any) -> CapturedWorkspace:
                return CapturedWorkspace(verify_source_bundle(text))

            managed = ManagedWorkspaces(provider, storage, WorkspaceResolver(closed, decide=uploaded), policy=POLICY)
            await storage.workspaces.installation_id()
            # What the provider looks at once, such as its binary, is not of interest.
            await provider.acquire("other", POLICY)
            await provider.destroy("other")
            Counting.total = 0
            tracemalloc.start()
            sandbox = await managed.acquire("t-1", POLICY)
            result = await sandbox.exec.run("find . -type f | wc -l; cat $(find . -name 'blob*' -o -name 'f1*.txt') | wc -c")
            _, peak = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            await managed.destroy("t-1")
            await managed.aclose()
    assert int(result.stdout.split()[0]) == entries
    # The upload itself, as its caller holds it, counts.
    if size >= 64 * MIB:
        assert peak + len(text) < 3 * size
    else:
        assert peak < 64 * MIB
    # The host hashes once, at the upload; the guest once more, while it writes. What is counted here is the host's part: the digest's text,
    # and names of all kinds, but not the files a second time.
    hashed = len('["b4-workspace-source-v1",[]]') + sum(
        len(f'["{file.path}","",false],') + (len(file.data) + 2) // 3 * 4 for file in make()
    )
    assert hashed <= Counting.total < hashed + 100_000
