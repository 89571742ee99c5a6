"""The fake keeps the contract that real providers keep, as far as it goes without running anything."""

from __future__ import annotations

from b4run.errors import FileRefused
from b4run.sandbox.testing import Answer, FakeCommand, fake_sandbox, run_provider_conformance


def coreutils(command: FakeCommand) -> Answer:
    """Answer the three commands that cases prepare files with."""
    try:
        match command.argv:
            case ["ln", "-s", target, path]:
                command.files.symlink(target, path)
            case ["chmod", mode, path]:
                command.files.chmod(int(mode, 8), path)
            case ["mkfifo", path]:
                command.files.fifo(path)
    except FileRefused as error:
        return Answer(stderr=str(error), exit_code=1)
    return Answer()


TestFake = run_provider_conformance(name="fake", make_provider=lambda: fake_sandbox(coreutils, outside={"/etc/passwd": b"root:x:0:0\n"}))
