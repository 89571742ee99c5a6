"""Bundles as they arrive: the same verdict as for a bundle that is whole, whatever the pieces."""

from __future__ import annotations

import base64
import itertools
import json
import random
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from b4run.errors import WorkspaceInvalid
from b4run.workspace import SourceFile, create_source_bundle, verify_source_bundle
from b4run.workspace.receiving import BundleMalformed, BundleReceiver

BUNDLE = create_source_bundle(
    [SourceFile("README.md", b"# hi\n"), SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True), SourceFile("empty", b"")]
)
TEXT = BUNDLE.to_json()


def receive(text: bytes, cuts: list[int]):  # type: ignore[no-untyped-def]
    receiver = BundleReceiver()
    try:
        edges = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
        for start, end in itertools.pairwise(edges):
            receiver.feed(text[start:end])
        received = receiver.finish()
        return received.digest, received.manifest, b"".join(received.pieces())
    finally:
        receiver.close()


def verdict(text: bytes, cuts: list[int]) -> str:
    try:
        return str(receive(text, cuts)[0])
    except BundleMalformed:
        return "malformed"
    except WorkspaceInvalid:
        return "invalid"


def expected(text: bytes) -> str:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return "malformed"
    try:
        return verify_source_bundle(text).digest
    except WorkspaceInvalid:
        return "invalid"


@given(st.lists(st.integers(0, 10_000), max_size=12))
def test_every_way_of_cutting_gives_the_same_bundle(cuts: list[int]) -> None:
    digest, manifest, content = receive(TEXT, cuts)
    assert digest == BUNDLE.digest
    assert manifest == BUNDLE.manifest
    assert content == b"".join(file.data for file in BUNDLE.files)


def test_one_byte_at_a_time() -> None:
    assert receive(TEXT, list(range(len(TEXT))))[0] == BUNDLE.digest


FILE = {"path": "a", "base64": "aGk/", "executable": False}
DIGEST = create_source_bundle([SourceFile("a", b"hi?")]).digest
SPELLINGS = [
    json.dumps({"version": 1, "digest": DIGEST, "files": [FILE]}, indent=3),
    json.dumps({"files": [FILE], "digest": DIGEST, "version": 1}),
    json.dumps({"files": [{"executable": False, "base64": "aGk/", "path": "a"}], "version": 1, "digest": DIGEST}),
    json.dumps({"version": 1, "digest": DIGEST, "files": [FILE]}).replace("aGk/", "aGk\\/").replace('"path"', '"p\\u0061th"'),
    json.dumps({"version": 1, "digest": DIGEST, "files": [FILE]}).replace("aGk/", "\\u0061Gk/") + " \n",
]


@pytest.mark.parametrize("text", SPELLINGS)
@given(cuts=st.lists(st.integers(0, 1_000), max_size=5))
def test_any_spelling_of_json_is_taken(text: str, cuts: list[int]) -> None:
    assert verdict(text.encode(), cuts) == DIGEST


def bundle(**changes: object) -> str:
    return json.dumps({"version": 1, "digest": DIGEST, "files": [FILE]} | changes)


def one(**changes: object) -> str:
    return bundle(files=[FILE | changes])


REFUSED = {
    "": "malformed",
    "{": "malformed",
    TEXT.decode()[:-1]: "malformed",
    TEXT.decode() + "x": "malformed",
    bundle().replace('"version"', "version"): "malformed",
    bundle(version=2): "invalid",
    bundle(version=1.0): "invalid",
    bundle(version=True): "invalid",
    bundle(version="1"): "invalid",
    bundle(digest="a" * 64): "invalid",
    bundle(digest=DIGEST.upper()): "invalid",
    bundle(files=[]): "invalid",
    bundle(files={}): "invalid",
    bundle(more=1): "invalid",
    bundle()[:-1] + ', "version": 1}': "invalid",
    one(path="../a"): "invalid",
    one(path="a" * 1_025): "invalid",
    one(path="é"): "invalid",
    one(base64="aGk"): "invalid",
    one(base64="aGl="): "invalid",
    one(base64="aG k"): "invalid",
    one(base64="aGk/aGk=aGk/"): "invalid",
    one(base64="===="): "invalid",
    one(base64=None): "invalid",
    one(executable=1): "invalid",
    one(executable="false"): "invalid",
    bundle(files=[FILE, FILE]): "invalid",
    bundle(files=[FILE | {"path": "b"}, FILE]): "invalid",
    bundle(files=[FILE | {"path": "A"}, FILE]): "invalid",
    bundle(files=[FILE, FILE | {"path": "a/b"}]): "invalid",
    bundle(files=[{"path": "a", "base64": ""}]): "invalid",
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_off_by_anything_is_refused(text: str) -> None:
    assert verdict(text.encode(), [7]) == expected(text.encode()) == REFUSED[text]


@given(st.integers(0, len(TEXT) - 1), st.binary(min_size=0, max_size=3), st.lists(st.integers(0, 1_000), max_size=3))
def test_a_damaged_bundle_gets_no_other_digest(at: int, change: bytes, cuts: list[int]) -> None:
    damaged = TEXT[:at] + change + TEXT[at + 1 :]
    got, whole = verdict(damaged, cuts), expected(damaged)
    # What is wrong in two ways may be told as either.
    assert got == whole or {got, whole} == {"malformed", "invalid"}


def test_memory_stays_below_twice_the_largest_file() -> None:
    data = random.Random(1).randbytes(8_000_000)
    parts = [b'{"version":1,"digest":"', b'","files":[']
    files = [SourceFile(f"f{number}", data) for number in range(3)]
    whole = create_source_bundle(files)
    encoded = base64.b64encode(data)
    tracemalloc.start()
    try:
        receiver = BundleReceiver()
        receiver.feed(parts[0] + whole.digest.encode() + parts[1])
        for number in range(3):
            receiver.feed(f'{"," if number else ""}{{"path":"f{number}","base64":"'.encode())
            for at in range(0, len(encoded), 65_536):
                receiver.feed(encoded[at : at + 65_536])
            receiver.feed(b'","executable":false}')
        receiver.feed(b"]}")
        assert receiver.finish().digest == whole.digest
        assert tracemalloc.get_traced_memory()[1] < 2 * len(data)
    finally:
        tracemalloc.stop()
        receiver.close()
