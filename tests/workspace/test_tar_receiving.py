"""Tars as they arrive: the same digest as the bundle of their files, and nothing but files."""

from __future__ import annotations

import gzip
import io
import random
import tarfile

import pytest

from b4run.errors import WorkspaceInvalid
from b4run.workspace import SourceFile, create_source_bundle
from b4run.workspace.receiving import BundleMalformed
from b4run.workspace.tar_receiving import TarReceiver

FILES = [
    SourceFile("z/last", b"z"),
    SourceFile("a/run.sh", b"#!/bin/sh\n", True),
    SourceFile("empty", b""),
    SourceFile("big", bytes(3_000_001)),
]
BUNDLE = create_source_bundle(FILES)


def tar_of(files, change=lambda info: info, form=tarfile.PAX_FORMAT):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as tar:
        for file in files:
            info = tarfile.TarInfo(file.path)
            info.size, info.mode = len(file.data), 0o755 if file.executable else 0o644
            tar.addfile(change(info), io.BytesIO(file.data))
    return buffer.getvalue()


def receive(data, piece=65_536):
    receiver = TarReceiver()
    try:
        for at in range(0, len(data), piece):
            receiver.feed(data[at : at + piece])
        received = receiver.finish()
        return received.digest, received.manifest, b"".join(received.pieces())
    finally:
        receiver.close()


@pytest.mark.parametrize("form", [tarfile.PAX_FORMAT, tarfile.GNU_FORMAT, tarfile.USTAR_FORMAT])
@pytest.mark.parametrize("piece", [511, 65_536, 10_000_000])
def test_a_tar_comes_to_the_digest_of_its_files(form, piece):
    digest, manifest, content = receive(tar_of(FILES, form=form), piece)
    assert digest == BUNDLE.digest
    assert manifest == BUNDLE.manifest
    assert content == b"".join(file.data for file in BUNDLE.files)


def test_gzip_folders_and_a_leading_dot_are_taken():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        folder = tarfile.TarInfo("./a")
        folder.type = tarfile.DIRTYPE
        tar.addfile(folder)
        info = tarfile.TarInfo("./a/b")
        info.size = 2
        tar.addfile(info, io.BytesIO(b"hi"))
    assert receive(gzip.compress(buffer.getvalue()))[0] == create_source_bundle([SourceFile("a/b", b"hi")]).digest


def of_type(kind):
    def change(info):
        info.type, info.linkname = kind, "target"
        return info

    return change


def named(name):
    def change(info):
        info.name = name
        return info

    return change


CHANGES = [
    *(of_type(kind) for kind in (tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE)),
    *(named(name) for name in ("../a", "/etc/passwd", "a//b", "con", "a:b", "é", "a/../../b")),
]


@pytest.mark.parametrize("change", CHANGES)
def test_anything_but_portable_files_is_refused(change):
    with pytest.raises(WorkspaceInvalid):
        receive(tar_of([SourceFile("a", b"")], change))


def test_conflicts_and_bounds_are_refused():
    for files in ([("a", b""), ("A", b"")], [("a", b""), ("a/b", b"")], [("a", b""), ("a", b"")]):
        with pytest.raises(WorkspaceInvalid):
            receive(tar_of([SourceFile(path, data) for path, data in files]))
    with pytest.raises(WorkspaceInvalid, match="more than"):
        receive(tar_of([SourceFile("large", bytes(16_777_217))]))


def test_headers_and_entries_are_bounded():
    header = tarfile.TarInfo("x")
    header.type, header.size = tarfile.XHDTYPE, 10**9
    endless = tarfile.TarInfo("d")
    endless.type = tarfile.DIRTYPE
    for data, reason in (
        (gzip.compress(header.tobuf() + bytes(1_000_000)), "header"),
        (gzip.compress(endless.tobuf() * 20_001), "entries"),
    ):
        with pytest.raises(WorkspaceInvalid, match=reason):
            receive(data)


def test_what_is_no_tar_is_refused_and_leaves_no_thread():
    import threading

    before = threading.active_count()
    whole = tar_of(FILES)
    for data in (b"", b"no tar", random.Random(1).randbytes(5_000), whole[:700], whole[: len(whole) // 2]):
        with pytest.raises((BundleMalformed, WorkspaceInvalid)):
            receive(data)
    receiver = TarReceiver()
    receiver.feed(whole[:600])
    receiver.close()
    assert threading.active_count() == before
