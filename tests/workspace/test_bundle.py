"""Source bundles: the specification's vectors, and everything that is refused."""

from __future__ import annotations

import base64
import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from b4run.errors import WorkspaceInvalid
from b4run.workspace import SourceBundle, SourceFile, create_source_bundle, read_source_file, verify_source_bundle
from b4run.workspace.bundle import MAX_FILE_BYTES, MAX_FILES, json_size

EMPTY = "3d9d0af9e730ee18680a9e2bf15ccdf8f17a192782f6829efa157e95d9da7b06"
TWO_FILES = "deedbddc57d3f71a4ba6b2eba2d742007de1b9deb26caf56409e3b54bc1d4b8a"


def two_files() -> list[SourceFile]:
    return [SourceFile("bin/run.sh", b"#!/bin/sh\necho ok\n", True), SourceFile("README.md", b"# hi\n")]


@pytest.mark.parametrize(
    ("files", "digest"),
    [
        ([], EMPTY),
        (two_files(), TWO_FILES),
        ([SourceFile("main.txt", b"hello\n")], "4c8ecb21d959416a6842fe52b7525359c6cc8e508979afc525a46598ebc807f5"),
        (
            [SourceFile("bin/run", bytes.fromhex("efbbbf00ff80"), True), SourceFile(".gitignore", b"")],
            "fc71232efd115691439b2f231d1d40e3d7a7724b3762137b2dc0129403e74306",
        ),
    ],
)
def test_digests_of_the_specification(files: list[SourceFile], digest: str) -> None:
    for order in (files, files[::-1]):
        assert create_source_bundle(order).digest == digest


def test_canonical_json() -> None:
    bundle = create_source_bundle([SourceFile("b", b"hello\n"), SourceFile("a", b"", True)])
    text = (
        f'{{"version":1,"digest":"{bundle.digest}","files":[{{"path":"a","base64":"","executable":true}},'
        '{"path":"b","base64":"aGVsbG8K","executable":false}]}'
    )
    assert bundle.to_json() == text.encode()
    assert verify_source_bundle(text) == verify_source_bundle(text.encode()) == verify_source_bundle(json.loads(text)) == bundle
    assert json_size(bundle.manifest) == len(text)


@pytest.mark.parametrize("files", [[], two_files()])
def test_json_may_be_spelled_in_other_ways_and_means_the_same(files: list[SourceFile]) -> None:
    bundle = create_source_bundle(files)
    body = json.loads(bundle.to_json())
    turned = dict(reversed(body.items())) | {"files": [dict(reversed(file.items())) for file in body["files"]]}
    for spelled in (json.dumps(body, indent=2), json.dumps(body, ensure_ascii=True), json.dumps(turned), bundle.to_json().decode()):
        assert verify_source_bundle(spelled) == verify_source_bundle(spelled.encode()) == bundle


@pytest.mark.parametrize("off", [b",", b" ", b"]}", b"x"])
def test_nothing_stands_between_or_behind_the_files(off: bytes) -> None:
    text = create_source_bundle(two_files()).to_json()
    for broken in (text[:-2] + off + text[-2:], text.replace(b"},{", b"}" + off + b",{"), text.replace(b"},{", b"}{"), text + off):
        if off == b" ":
            continue
        with pytest.raises(WorkspaceInvalid):
            verify_source_bundle(broken)


paths = st.from_regex(r"[a-z]{1,3}(/[a-z]{1,3}){0,2}", fullmatch=True)


@given(st.dictionaries(paths, st.tuples(st.binary(max_size=40), st.booleans()), max_size=6), st.randoms())
def test_what_is_created_is_verified_whatever_the_order(files: dict[str, tuple[bytes, bool]], shuffle: random.Random) -> None:
    given = [SourceFile(path, data, executable) for path, (data, executable) in files.items()]
    try:
        bundle = create_source_bundle(given)
    except WorkspaceInvalid:
        assert any(f"{a}/".startswith(f"{b}/") and a != b for a in files for b in files)
        return
    shuffle.shuffle(given)
    assert create_source_bundle(given).digest == bundle.digest
    text = bundle.to_json()
    again = verify_source_bundle(text)
    assert (again.files, again.to_json(), json_size(again.manifest)) == (bundle.files, text, len(text))


def test_a_large_file_is_digested_in_pieces_to_the_same_value() -> None:
    data = random.Random(1).randbytes(2_000_003)
    whole = create_source_bundle([SourceFile("a", data)])
    assert json.loads(whole.to_json())["files"][0]["base64"] == base64.b64encode(data).decode()
    assert verify_source_bundle(whole.to_json()).files == whole.files


def test_the_executable_bit_changes_the_digest() -> None:
    assert create_source_bundle([SourceFile("a", b"x")]).digest != create_source_bundle([SourceFile("a", b"x", True)]).digest


def test_a_bundle_is_immutable_and_made_nowhere_else() -> None:
    bundle = create_source_bundle(two_files())
    with pytest.raises(AttributeError):
        bundle.digest = EMPTY  # type: ignore[misc]
    with pytest.raises(TypeError):
        SourceBundle()
    assert read_source_file(bundle, "README.md").data == b"# hi\n"
    with pytest.raises(WorkspaceInvalid, match="no file 'nope'"):
        read_source_file(bundle, "nope")


ACCEPTED = [".gitignore", ".config/settings.json", "node_modules", ".git", "a b", "COM10", "x..y", "a" * 255, "/".join(["a" * 255] * 4)]
REFUSED = ["", "/a", "../a", "./a", "a//b", "a/", "a\\b", "C:/a", "a\tb", "é", "a:b", "a*b", " a", "a ", "a.", "a  b", "con.txt"]
REFUSED += ["dir/NUL.bin", "LPT9", "a" * 256, "/".join(["a" * 100] * 11), "a\n", "..", ".", "x/. /y"]


@pytest.mark.parametrize("path", ACCEPTED)
def test_portable_paths(path: str) -> None:
    assert create_source_bundle([SourceFile(path, b"")]).files[0].path == path


@pytest.mark.parametrize("path", REFUSED)
def test_paths_that_are_not_portable(path: str) -> None:
    with pytest.raises(WorkspaceInvalid, match="path"):
        create_source_bundle([SourceFile(path, b"")])


@pytest.mark.parametrize(
    ("one", "other"), [("a", "a"), ("a", "A"), ("dir/a", "Dir/b"), ("a", "a/b"), ("A", "a/b"), ("x/y/z", "X/q"), ("a/b", "a/b/c/d")]
)
def test_paths_that_conflict(one: str, other: str) -> None:
    for order in ((one, other), (other, one)):
        with pytest.raises(WorkspaceInvalid, match="conflicts"):
            create_source_bundle(SourceFile(path, b"") for path in order)


@pytest.mark.parametrize(
    "text", ["AA", "AA=", "AA===", "A A==", "AA==\n", "AB==", "AAB=", "____", "!!!!", "====", "A===", "=AAA", "AA=A", "ÄA=="]
)
def test_base64_that_is_not_canonical(text: str) -> None:
    body = {"version": 1, "digest": EMPTY, "files": [{"path": "a", "base64": text, "executable": False}]}
    with pytest.raises(WorkspaceInvalid, match="base64"):
        verify_source_bundle(body)


def _changed(**changes: object) -> dict[str, object]:
    return json.loads(create_source_bundle(two_files()).to_json()) | changes  # type: ignore[no-any-return]


FILES = json.loads(create_source_bundle(two_files()).to_json())["files"]


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (_changed(version=2), "version"),
        (_changed(version=True), "version"),
        (_changed(version="1"), "version"),
        (_changed(digest=TWO_FILES.upper()), "digest"),
        (_changed(digest=EMPTY), "have the digest"),
        (_changed(extra=1), "other keys"),
        (_changed(files=FILES[::-1]), "ascending"),
        (_changed(files=[*FILES, FILES[-1]]), "ascending"),
        (_changed(files={}), "list"),
        (_changed(files=[{"path": "a", "base64": ""}]), "other keys"),
        (_changed(files=[FILES[0] | {"mode": 1}]), "other keys"),
        (_changed(files=[FILES[0] | {"executable": 0}]), "executable"),
        (_changed(files=[FILES[0] | {"executable": True}, FILES[1]]), "have the digest"),
        (_changed(files=[FILES[0] | {"base64": None}]), "base64"),
        ([], "other keys"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (b"\xff", "not JSON"),
        ('{"version":1,"version":1,"digest":"","files":[]}', "twice"),
    ],
)
def test_bundles_that_are_off(body: object, reason: str) -> None:
    with pytest.raises(WorkspaceInvalid, match=reason):
        verify_source_bundle(body)  # type: ignore[arg-type]


def test_bounds() -> None:
    files = [SourceFile(f"f{number}", b"") for number in range(MAX_FILES + 1)]
    assert len(create_source_bundle(files[:-1]).files) == MAX_FILES
    with pytest.raises(WorkspaceInvalid, match="10,000 files"):
        create_source_bundle(files)
    largest = bytes(MAX_FILE_BYTES)
    create_source_bundle(SourceFile(name, largest) for name in "abcd")
    with pytest.raises(WorkspaceInvalid, match="16,777,216"):
        create_source_bundle([SourceFile("a", largest + b"x")])
    with pytest.raises(WorkspaceInvalid, match="67,108,864"):
        create_source_bundle([*(SourceFile(name, largest) for name in "abcd"), SourceFile("e", b"x")])


def test_sizes_are_refused_before_anything_is_decoded() -> None:
    """The text is no base64 at all: only its length was looked at."""
    over = "!" * ((MAX_FILE_BYTES // 3 + 2) * 4)
    with pytest.raises(WorkspaceInvalid, match="more than"):
        verify_source_bundle({"version": 1, "digest": EMPTY, "files": [{"path": "a", "base64": over, "executable": False}]})
