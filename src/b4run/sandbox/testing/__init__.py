"""For tests: a sandbox in memory, and the conformance suite that every provider is put through."""

from __future__ import annotations

from b4run.sandbox.testing.commands import Answer, FakeCommand
from b4run.sandbox.testing.fake import FakeProvider, fake_sandbox
from b4run.sandbox.testing.memory import MemoryTree
from b4run.sandbox.testing.suite import run_provider_conformance

__all__ = ["Answer", "FakeCommand", "FakeProvider", "MemoryTree", "fake_sandbox", "run_provider_conformance"]
