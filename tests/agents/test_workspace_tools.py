"""The five tools as a model sees them, on a fake sandbox."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest

from b4run.agents import Agent, ToolResult
from b4run.permissions import PermissionGate, PermissionMode
from b4run.sandbox.testing import Answer, FakeCommand, fake_sandbox
from b4run.testing import agent_harness, script

AGENT = Agent(model="none:none", prompt="Work.")
BYPASS = PermissionGate(mode=PermissionMode.BYPASS)


async def call(files: Mapping[str, bytes], tool: str, /, **arguments: Any) -> tuple[ToolResult, dict[str, bytes]]:
    """Return what the model reads, and the files afterwards."""
    model = script().user("go").calls(tool, **arguments).replies("done")
    async with agent_harness(AGENT, model=model, permissions=BYPASS) as harness:
        async with harness.sandbox() as sandbox:
            for path, data in files.items():
                await sandbox.files.write(path, data)
        run = await harness.run("go")
        async with harness.sandbox() as sandbox:
            after = {
                entry.path: (await sandbox.files.read(entry.path)).data for entry in await sandbox.files.walk() if entry.kind == "file"
            }
    (result,) = run.tool_results
    return result, after


async def answer(files: Mapping[str, bytes], tool: str, /, **arguments: Any) -> str:
    result, _ = await call(files, tool, **arguments)
    assert not result.is_error, result.output
    return result.output


async def refused(files: Mapping[str, bytes], tool: str, /, **arguments: Any) -> str:
    result, after = await call(files, tool, **arguments)
    assert result.is_error
    assert after == files
    return result.output


async def test_a_file_without_a_range_is_returned_as_it_is():
    assert await answer({"a.txt": b"one\r\ntwo\n\n"}, "readFile", path="a.txt") == "one\r\ntwo\n\n"


@pytest.mark.parametrize(
    ("range_", "expected"),
    [
        ({"startLine": 2}, "[f: lines 2-4 of 4]\ntwo\r\nthree\nfour"),
        ({"endLine": 1}, "[f: lines 1-1 of 4]\none"),
        ({"startLine": 2, "endLine": 3}, "[f: lines 2-3 of 4]\ntwo\r\nthree"),
        ({"startLine": 4, "endLine": 99}, "[f: lines 4-4 of 4]\nfour"),
        ({"startLine": None, "endLine": 1}, "[f: lines 1-1 of 4]\none"),
    ],
)
async def test_a_range_is_headed_by_its_lines_and_the_total(range_: dict[str, Any], expected: str):
    assert await answer({"f": b"one\ntwo\r\nthree\nfour"}, "readFile", path="f", **range_) == expected


@pytest.mark.parametrize(
    ("range_", "told"),
    [
        ({"startLine": 3, "endLine": 2}, ["startLine 3", "endLine 2"]),
        ({"startLine": 9}, ["B4_E2004", "3 lines"]),
        ({"startLine": 0}, ["B4_E5006", "startLine"]),
        ({"endLine": -1}, ["B4_E5006", "endLine"]),
    ],
)
async def test_a_range_that_cannot_be_is_refused_with_the_numbers(range_: dict[str, Any], told: list[str]):
    text = await refused({"f": b"1\n2\n3\n"}, "readFile", path="f", **range_)
    assert all(part in text for part in told), text


async def test_a_large_file_is_refused_as_a_whole_and_readable_by_lines():
    big = {"big": b"0123456789abcdef\n" * 20_000}
    text = await refused(big, "readFile", path="big")
    assert "340000 bytes" in text
    assert "startLine" in text
    assert "0123456789" not in text
    assert await answer(big, "readFile", path="big", startLine=19_999) == (
        "[big: lines 19999-20000 of 20000]\n0123456789abcdef\n0123456789abcdef"
    )


async def test_kept_outputs_are_read_whatever_their_size():
    data = b"x" * 300_000
    assert await answer({"tool-outputs/a.txt": data}, "readFile", path="tool-outputs/a.txt") == data.decode()


async def test_the_exemption_does_not_reach_out_of_the_folder():
    assert "300000 bytes" in await refused({"a.txt": b"x" * 300_000}, "readFile", path="tool-outputs/../a.txt")


@pytest.mark.parametrize("data", [b"caf\xe9", b"PNG\0\x01"])
async def test_binary_is_said_plainly(data: bytes):
    text = await refused({"b": data}, "readFile", path="b")
    assert "not UTF-8 text" in text
    assert f"{len(data)} bytes" in text


async def test_a_missing_file_names_the_path_as_given_and_what_to_do():
    assert await refused({}, "readFile", path="no/such.txt") == (
        "[B4_E2004] The file system refuses it (not found): 'no/such.txt'. listDir shows what is there."
    )


async def test_writing_makes_parents_and_counts_bytes():
    result, after = await call({}, "writeFile", path="a/b/c.txt", content="é\n")
    assert result.output == "Wrote 3 bytes to a/b/c.txt."
    assert after == {"a/b/c.txt": b"\xc3\xa9\n"}


async def test_half_a_surrogate_pair_is_no_text():
    assert "B4_E5006" in await refused({}, "writeFile", path="a", content="\ud800")


async def test_an_edit_changes_nothing_but_its_place():
    before = b"\xef\xbb\xbfone\r\ntwo $1\r\nthree"
    result, after = await call({"f": before}, "editFile", path="f", oldText="two $1", newText="2 $& \\1")
    assert result.output == "Replaced 1 occurrence in f (line 2)."
    assert after["f"] == b"\xef\xbb\xbfone\r\n2 $& \\1\r\nthree"


async def test_an_edit_of_several_places_needs_replace_all():
    assert "2 times" in await refused({"f": b"aaa"}, "editFile", path="f", oldText="aa", newText="b")
    result, after = await call({"f": b"aaa\n"}, "editFile", path="f", oldText="aa", newText="b", replaceAll=True)
    assert result.output == "Replaced 1 occurrence in f (line 1)."
    assert after["f"] == b"ba\n"


async def test_the_lines_of_many_replacements_are_listed_to_twenty():
    result, _ = await call({"f": b"x\n" * 25}, "editFile", path="f", oldText="x", newText="y", replaceAll=True)
    assert result.output == f"Replaced 25 occurrences in f (lines {', '.join(map(str, range(1, 21)))} and 5 more)."


async def test_equal_texts_change_nothing():
    result, after = await call({"f": b"x"}, "editFile", path="f", oldText="x", newText="x")
    assert result.output == "No change to f: oldText and newText are equal (1 occurrence, line 1)."
    assert after == {"f": b"x"}


async def test_an_absent_text_is_told_and_crlf_where_that_is_why():
    assert "oldText is not in it" in await refused({"f": b"a\nb"}, "editFile", path="f", oldText="c", newText="d")
    assert "CRLF" in await refused({"f": b"a\r\nb"}, "editFile", path="f", oldText="a\nb", newText="d")


async def test_invalid_utf8_is_not_edited():
    assert "not UTF-8" in await refused({"f": b"a\xff"}, "editFile", path="f", oldText="a", newText="b")


async def test_names_are_listed_in_byte_order():
    files = {"b": b"", "B": b"", "é": b"", "a/x": b""}
    assert await answer(files, "listDir") == '["B", "a", "b", "é"]'
    assert await answer(files, "listDir", path="a") == '["x"]'


async def test_a_name_that_is_not_utf8_comes_back_and_is_accepted():
    name = b"caf\xe9".decode(errors="surrogateescape")
    listed = await answer({name: b"1"}, "listDir")
    assert json.loads(listed) == [name]
    listed.encode()
    assert await answer({name: b"1"}, "readFile", path=name) == "1"


async def test_a_folder_beyond_the_bound_is_counted():
    model = script().user("go").calls("listDir").replies("done")
    async with agent_harness(AGENT, model=model, permissions=BYPASS) as harness:
        async with harness.sandbox() as sandbox:
            for number in range(10_002):
                await sandbox.files.write(f"f{number:05}", b"")
        run = await harness.run("go")
    names, note = run.tool_results[0].output.split("\n")
    assert len(json.loads(names)) == 10_000
    assert "10000 of 10002" in note


@asynccontextmanager
async def shell(reply: Answer, *, timeout_ms: int | None = None) -> AsyncIterator[tuple[ToolResult, FakeCommand]]:
    seen: list[FakeCommand] = []

    def run(command: FakeCommand) -> Answer:
        seen.append(command)
        return reply

    model = script().user("go").calls("runBash", command="make").replies("done")
    async with agent_harness(AGENT, model=model, permissions=BYPASS, sandbox=fake_sandbox(run), command_timeout_ms=timeout_ms) as harness:
        run_ = await harness.run("go")
    yield run_.tool_results[0], seen[0]


async def test_a_command_answers_one_object_and_a_code_is_data():
    async with shell(Answer(stdout="out\n", stderr="err\n", exit_code=3)) as (result, command):
        assert result.output == '{"stdout": "out\\n", "stderr": "err\\n", "exitCode": 3}'
        assert not result.is_error
        assert command.command == "make"


async def test_a_death_by_signal_is_said():
    async with shell(Answer(signal=9)) as (result, _):
        assert json.loads(result.output) == {"stdout": "", "stderr": "", "exitCode": 137, "signal": "SIGKILL"}


async def test_long_output_keeps_its_ends_and_is_counted():
    lines = "".join(f"line {number}\n" for number in range(20_000))
    async with shell(Answer(stdout=lines)) as (result, _):
        answer = json.loads(result.output)
    assert list(answer) == ["stdout", "stderr", "exitCode", "truncated", "totalBytes"]
    assert (answer["exitCode"], answer["truncated"], answer["totalBytes"]) == (0, True, len(lines))
    assert answer["stdout"].startswith("line 0\n")
    assert answer["stdout"].endswith("line 19999\n")
    assert len(result.output) < 40_000


async def test_unknown_arguments_are_refused_by_name():
    assert await refused({}, "listDir", depth=3) == (
        "[B4_E5006] The arguments of listDir are not valid: depth: Extra inputs are not permitted. Correct them and call the tool again."
    )


async def test_an_unknown_tool_names_those_there_are():
    text = await refused({}, "deploy")
    assert text.startswith("[B4_E5006]")
    assert "editFile, listDir, readFile, runBash, writeFile" in text
