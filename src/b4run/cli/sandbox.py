"""`b4 sandbox ls|exec|read|rm|prune`: a thread's sandbox by hand, in an app or with `--scope` on its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import asdict

from b4run.cli.aio import piped_stdin, run_async, write_all
from b4run.cli.failure import UsageError
from b4run.cli.output import confirm, note, print_json, printable, size_text, table
from b4run.cli.parser import Parser, add_command, add_commands, add_json, add_metadata, seconds
from b4run.cli.sandboxes import Target, add_target, open_target
from b4run.errors import AppInvalid, SandboxMissing
from b4run.sandbox import open_sandbox
from b4run.sandbox.contract import (
    Cause,
    ExecResult,
    FileEntry,
    FileKind,
    FileReader,
    Leftover,
    ListingProvider,
    PruningProvider,
    ReaderProvider,
    SandboxRecord,
    Stream,
)

DEFAULT_THREAD = "default"
_PAGE = 10_000


def configure(parser: argparse.ArgumentParser) -> None:
    commands = add_commands(parser)
    ls = add_command(commands, "ls", "list the sandboxes of the app's scope", _ls)
    add_json(ls)
    execute = add_command(commands, "exec", "run a command; its output, input and exit code are passed through", _exec)
    _add_thread(execute)
    execute.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, help="end the command's whole tree after that time, with exit code 124"
    )
    add_metadata(execute)
    execute.add_argument("--no-stdin", action="store_true", help="give it no input; otherwise it gets what is piped into b4")
    execute.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="a program and its arguments, or one text for /bin/sh -c"
    )
    read = add_command(commands, "read", "print a file of the workspace, or list a folder", _read)
    _add_thread(read)
    add_json(read)
    read.add_argument("path", metavar="PATH", nargs="?", default=".", help="relative to the workspace (default: the workspace itself)")
    rm = add_command(commands, "rm", "remove a thread's sandbox with all its files", _rm)
    rm.add_argument("thread", metavar="THREAD")
    rm.add_argument("--yes", action="store_true", help="do not ask")
    prune = add_command(commands, "prune", "remove what crashes and upgrades left behind; threads' files stay", _prune)
    add_json(prune)
    for command in (ls, execute, read, rm, prune):
        add_target(command)


def _add_thread(parser: Parser) -> None:
    parser.add_argument("--thread", metavar="ID", default=DEFAULT_THREAD, help=f"the conversation thread (default: {DEFAULT_THREAD})")


def _ls(options: argparse.Namespace) -> int:
    records = run_async(_records(options))
    if options.json:
        print_json([asdict(record) for record in records])
    elif records:
        rows = [(r.thread_id or "-", "running" if r.running else "stored", size_text(r.workspace_bytes), r.resource_id) for r in records]
        print(table(("THREAD", "STATE", "FILES", "ID"), rows))
    else:
        note("There are no sandboxes.")
    return 0


async def _records(options: argparse.Namespace) -> list[SandboxRecord]:
    async with open_target(options) as target:
        return await _list(target)


async def _list(target: Target) -> list[SandboxRecord]:
    if not isinstance(target.provider, ListingProvider):
        raise AppInvalid(reason=f"provider {target.provider.name!r} cannot list its sandboxes")
    return list(await target.provider.list_sandboxes())


def _exec(options: argparse.Namespace) -> int:
    words = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not words:
        raise UsageError("b4 sandbox exec: name a command, such as `b4 sandbox exec -- ls -la`")
    result = run_async(_run(options, words))
    if result.cause is Cause.TIMEOUT:
        note(f"b4: ended after {options.timeout:g} s")
    elif result.cause is Cause.OOM:
        note("b4: ended by the memory limit")
    return result.exit_code


async def _run(options: argparse.Namespace, words: list[str]) -> ExecResult:
    deadline_ms = None if options.timeout is None else round(options.timeout * 1_000)
    stdin = None if options.no_stdin else piped_stdin()
    async with open_target(options) as target, open_sandbox(target.threads, thread_id=options.thread, policy=target.policy) as sandbox:
        stream = sandbox.exec.stream(words[0] if len(words) == 1 else words, stdin=stdin, deadline_ms=deadline_ms)
        try:
            async for chunk in stream:
                await write_all(1 if chunk.stream is Stream.STDOUT else 2, chunk.data)
            return await stream.result()
        except BrokenPipeError:
            await stream.cancel()
            raise


def _read(options: argparse.Namespace) -> int:
    return run_async(_show(options))


async def _show(options: argparse.Namespace) -> int:
    async with _existing(options) as files:
        entry = await files.stat(options.path)
        if entry.kind is not FileKind.DIRECTORY:
            if options.json:
                raise UsageError("b4 sandbox read: --json lists folders; a file is printed as it is")
            async for data in files.read_stream(options.path):
                await write_all(1, data)
            return 0
        entries = [entry async for entry in _entries(files, options.path)]
    if options.json:
        print_json([{"name": e.path, "kind": e.kind.value, "size": e.size, "mode": e.mode, "mtime_ns": e.mtime_ns} for e in entries])
    else:
        for entry in entries:
            name = printable(entry.path) if sys.stdout.isatty() else entry.path
            print(f"{name}/" if entry.kind is FileKind.DIRECTORY else name)
    return 0


async def _entries(files: FileReader, path: str) -> AsyncIterator[FileEntry]:
    after: str | None = None
    while page := await files.entries(path, after=after, limit=_PAGE):
        for entry in page:
            yield entry
        after = page[-1].path


@asynccontextmanager
async def _existing(options: argparse.Namespace) -> AsyncIterator[FileReader]:
    """Look at the thread's files if it has any, beside its sandbox where the provider can: looking must not make what is not there."""
    async with open_target(options) as target:
        await _require(target, options.thread)
        if isinstance(target.threads, ReaderProvider):
            reader = await target.threads.open_workspace_reader(options.thread, run_as_non_root=target.policy.security.run_as_non_root)
            async with aclosing(reader):
                yield reader
        else:
            async with open_sandbox(target.threads, thread_id=options.thread, policy=target.policy) as sandbox:
                yield sandbox.files


async def _require(target: Target, thread_id: str) -> None:
    if target.managed is not None and await target.managed.knows(thread_id):
        return
    if isinstance(target.provider, ListingProvider) and all(record.thread_id != thread_id for record in await _list(target)):
        raise SandboxMissing(thread_id=thread_id)


def _rm(options: argparse.Namespace) -> int:
    if not options.yes and not confirm(f"Remove the sandbox of thread {printable(options.thread)!r} with all its files?"):
        note("Nothing was removed.")
        return 1
    run_async(_destroy(options))
    note(f"Removed the sandbox of thread {printable(options.thread)!r}.")
    return 0


async def _destroy(options: argparse.Namespace) -> None:
    async with open_target(options) as target:
        await _require(target, options.thread)
        await target.threads.destroy(options.thread)


def _prune(options: argparse.Namespace) -> int:
    removed = run_async(_removed(options))
    if options.json:
        print_json([asdict(leftover) for leftover in removed])
    elif removed:
        print(table(("REMOVED", "NAME"), [(leftover.kind, leftover.name) for leftover in removed]))
    else:
        note("Nothing was left behind.")
    return 0


async def _removed(options: argparse.Namespace) -> list[Leftover]:
    async with open_target(options) as target:
        if not isinstance(target.provider, PruningProvider):
            raise AppInvalid(reason=f"provider {target.provider.name!r} leaves nothing that `b4` could remove")
        return list(await target.provider.prune())
