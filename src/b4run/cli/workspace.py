"""`b4 workspace capture|upload|read`: a folder as a source bundle, to a server, and back as what a thread made of it."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from b4run.cli.aio import run_async
from b4run.cli.failure import UsageError
from b4run.cli.output import note, print_json, printable, size_text
from b4run.cli.parser import Parser, add_command, add_commands, add_json
from b4run.errors import WorkspaceInvalid
from b4run.workspace import SourceBundle, WorkspaceSource, capture_workspace_source, verify_source_bundle
from b4run.workspace.bundle import MAX_FILES, MAX_JSON_BYTES


def configure(parser: argparse.ArgumentParser) -> None:
    commands = add_commands(parser)
    capture = add_command(commands, "capture", "write all files of a folder as one source bundle, in JSON", _capture)
    capture.add_argument("folder", metavar="FOLDER", type=Path)
    capture.add_argument("--exclude", metavar="PATH", action="append", default=[], help="a folder beneath it to leave out; may be repeated")
    capture.add_argument("--output", "-o", metavar="FILE", type=Path, help="default: standard output")
    upload = add_command(commands, "upload", "upload a bundle, so that threads can be created from it", _upload)
    upload.add_argument("bundle", metavar="FILE", help="as `capture` wrote it; `-` for standard input")
    read = add_command(commands, "read", "read the text of a thread's files beside its sandbox", _read)
    read.add_argument("thread", metavar="THREAD")
    read.add_argument("--root", metavar="PATH", help="only this folder of the workspace")
    read.add_argument("--exclude", metavar="NAME", action="append", default=[], help="a folder directly in the root; may be repeated")
    read.add_argument("--output", "-o", metavar="FOLDER", type=Path, help="write the files there; it must not exist")
    for command in (upload, read):
        _add_server(command)
        add_json(command)


def _add_server(parser: Parser) -> None:
    parser.add_argument("--url", metavar="URL", default=os.environ.get("B4_URL"), help="the server (default: $B4_URL)")
    parser.add_argument("--header", metavar="NAME:VALUE", action="append", type=_header, default=[], help="may be repeated")


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon or not name.strip():
        raise argparse.ArgumentTypeError("must be NAME:VALUE")
    return name.strip(), value.strip()


def _client(options: argparse.Namespace):  # type: ignore[no-untyped-def]
    from b4run.client import Client

    if not options.url:
        raise UsageError("b4 workspace: name the server with --url or $B4_URL")
    return Client(options.url, headers=dict(options.header))


def _capture(options: argparse.Namespace) -> int:
    folder: Path = options.folder
    if not folder.is_dir():
        raise UsageError(f"b4 workspace capture: {folder} is no folder")
    source = WorkspaceSource(directory=".", include=_inventory(folder, options.exclude), exclude_directories=tuple(options.exclude))
    bundle = run_async(capture_workspace_source(folder, source))
    data = bundle.to_json()
    if options.output is None:
        sys.stdout.buffer.write(data)
    else:
        options.output.write_bytes(data)
    note(f"{bundle.digest}: {len(bundle.files)} files, {size_text(bundle.total_bytes)}")
    return 0


def _inventory(folder: Path, excluded: list[str]) -> tuple[str, ...]:
    """Return every file beneath, for the capture to check: it refuses links, special files and what changes meanwhile."""
    found: list[str] = []
    for where, folders, files in os.walk(folder):
        here = os.path.relpath(where, folder)
        prefix = "" if here == "." else f"{here}/"
        folders[:] = [name for name in folders if f"{prefix}{name}" not in excluded]
        found += [f"{prefix}{name}" for name in files]
        if len(found) > MAX_FILES:
            raise WorkspaceInvalid(reason=f"there are more than {MAX_FILES:,} files; leave folders out with --exclude")
    return tuple(sorted(found))


def _upload(options: argparse.Namespace) -> int:
    bundle = _bundle(options.bundle)
    shown = -1

    def progress(sent: int, total: int) -> None:
        nonlocal shown
        percent = 100 * sent // max(total, 1)
        if percent > shown and sys.stderr.isatty():
            shown = percent
            print(f"\ruploading {percent:3d} %", end="\n" if sent == total else "", file=sys.stderr, flush=True)

    with _client(options) as client:
        status = client.upload_source(bundle, progress=progress)
    if options.json:
        print_json({"digest": bundle.digest, "status": status})
    else:
        print(bundle.digest)
        note(f"{status}; create a thread from it with `workspace: {{sourceDigest}}`")
    return 0


def _bundle(name: str) -> SourceBundle:
    try:
        data = sys.stdin.buffer.read(MAX_JSON_BYTES + 1) if name == "-" else Path(name).read_bytes()
    except OSError as error:
        raise UsageError(f"b4 workspace upload: {name} cannot be read: {error.strerror}") from error
    return verify_source_bundle(data)


def _read(options: argparse.Namespace) -> int:
    if options.output is not None and options.output.exists():
        raise UsageError(f"b4 workspace read: {options.output} is there already")
    request: dict[str, object] = {"excludeRootDirectories": options.exclude} if options.exclude else {}
    if options.root is not None:
        request["root"] = options.root
    with _client(options) as client:
        found = client.read_thread_workspace(options.thread, request)
    if options.output is not None:
        for path, text in found.files.items():
            target = options.output / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(text.encode())
        note(f"{len(found.files)} files, {size_text(found.total_bytes)}, in {options.output}")
    elif options.json:
        print_json({"threadId": found.thread_id, "sourceDigest": found.source_digest, "files": dict(found.files)})
    else:
        for path in found.files:
            print(printable(path))
    return 0
