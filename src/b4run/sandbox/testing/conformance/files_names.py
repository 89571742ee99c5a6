"""Names are bytes: whatever the kernel takes as a name is listed, read and written."""

from __future__ import annotations

from b4run.sandbox.contract import Capability
from b4run.sandbox.testing.trial import Trial, case, contents, refused, sh

ODD_NAMES = [
    "-rf",
    " lead",
    "trail ",
    "a\nb",
    "\n",
    "tab\t",
    "quote'\"",
    "$(id)",
    "*",
    "back\\slash",
    "é",
    "e\u0301",
    "\U0001f600",
    "a" * 255,
    "\x01\x7f",
    "caf\udce9",
    "\udcff\udcfe",
    "...",
    ".hidden",
]


@case("T54")
async def odd_names_go_round(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for name in ODD_NAMES:
        await sandbox.files.write(f"d/{name}", name.encode(errors="surrogateescape"))
    names = await contents(sandbox, "d")
    assert names == sorted(ODD_NAMES, key=lambda name: name.encode(errors="surrogateescape"))
    for name in names:
        assert (await sandbox.files.read(f"d/{name}")).data == name.encode(errors="surrogateescape")
        await sandbox.files.rename(f"d/{name}", "moved")
        await sandbox.files.rename("moved", f"d/{name}")
    assert [entry.path for entry in await sandbox.files.walk("d")] == names
    for name in names:
        await sandbox.files.remove(f"d/{name}")
    assert await contents(sandbox, "d") == []


@case("T48", needs=(Capability.EXEC,))
async def names_made_by_commands_are_read(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sh(sandbox, r"""printf x > "$(printf 'new\nline')"; printf y > "$(printf 'caf\351')"; printf z > ./-n""")
    assert await contents(sandbox) == ["-n", "caf\udce9", "new\nline"]
    assert [(await sandbox.files.read(name)).data for name in await contents(sandbox)] == [b"z", b"y", b"x"]


@case(needs=(Capability.EXEC,))
async def names_made_here_are_seen_by_commands(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("caf\udce9\n", b"content")
    result = await sandbox.exec.run(["cat", "caf\udce9\n".encode(errors="surrogateescape")])
    assert result.out.data == b"content"
    assert (await sandbox.exec.run("printf %s *")).out.data == b"caf\xe9\n"


@case()
async def impossible_names_are_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for path in ("", "a\0b", "x/" * 2_100 + "y", "\ud800"):
        async with refused("invalid"):
            await sandbox.files.write(path, b"")
        async with refused("invalid"):
            await sandbox.files.stat(path)
    async with refused("invalid"):
        await sandbox.files.write("a" * 256, b"")
    assert await contents(sandbox) == []
