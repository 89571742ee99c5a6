"""An app's own functions as tools."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import pytest
from langchain_core.utils.function_calling import convert_to_openai_tool
from pydantic import Field

from b4run.agents import Agent, Tool, ToolContext, ToolResult
from b4run.agents.toolkit import bind_function
from b4run.errors import FileRefused, SandboxLost, ToolFileInvalid
from b4run.sandbox.testing import fake_sandbox
from b4run.testing import agent_harness, script

AGENT = Agent(model="none:none", prompt="Work.")


async def result_of(tool: Tool, **arguments: object) -> ToolResult:
    model = script().user("go").calls(tool.__name__, **arguments).replies("done")
    async with agent_harness(AGENT, model=model, tools=[tool]) as harness:
        run = await harness.run("go")
        assert run.final_message == "done"
    return run.tool_results[0]


async def test_the_schema_comes_from_the_signature_without_the_context():
    async def export(ctx: ToolContext, path: Annotated[str, Field(description="Where.")], kind: Literal["zip", "tar"] = "zip") -> str:
        """Export the workspace.

        Only what git knows.
        """
        return path

    schema = convert_to_openai_tool(bind_function(export))["function"]
    assert (schema["name"], schema["description"]) == ("export", "Export the workspace.\n\nOnly what git knows.")
    assert schema["parameters"]["properties"] == {
        "path": {"type": "string", "description": "Where."},
        "kind": {"enum": ["zip", "tar"], "default": "zip", "type": "string"},
    }
    assert schema["parameters"]["required"] == ["path"]


async def test_the_context_reaches_the_thread_and_its_files():
    async def note(text: str, ctx: ToolContext) -> str:
        """Keep a note."""
        await ctx.files.write("note", text.encode())
        return f"{ctx.thread_id} {(await ctx.sandbox.files.read('note')).data.decode()}"

    model = script().user("go").calls("note", text="hi").replies("done")
    async with agent_harness(AGENT, model=model, tools=[note]) as harness:
        run = await harness.run("go")
        assert run.tool_results[0].output == f"{harness.thread_id} hi"


async def test_a_plain_function_runs_beside_the_loop():
    def where(number: int) -> bool:
        """Tell."""
        return threading.current_thread() is threading.main_thread()

    assert (await result_of(where, number=1)).output == "false"


async def test_other_values_are_json_and_the_value_is_kept():
    @dataclass
    class Found:
        names: list[str]

    def find() -> Found:
        """Find."""
        return Found(["é"])

    result = await result_of(find)
    assert (result.output, result.artifact) == ('{"names":["é"]}', Found(["é"]))


async def test_arguments_are_checked_before_the_function_runs():
    def add(number: int) -> int:
        """Add."""
        raise AssertionError

    result = await result_of(add, number="three")
    assert result.output.startswith("[B4_E5006] The arguments of add are not valid: number: ")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ValueError("the amount must be positive"), "[B4_E5007] broken failed: ValueError: the amount must be positive."),
        (FileNotFoundError(2, "No such file or directory", str(Path.home() / "secret" / "x.txt")), "No such file or directory (x.txt)"),
        (RuntimeError(f"cannot load {Path.home()}/app/keys/a.pem now"), "RuntimeError: cannot load a.pem now"),
        (FileRefused(kind="not_found", path="a", reason="There is no such file or folder"), "[B4_E2004]"),
        (SandboxLost(thread_id="t", reason="it was killed"), "Its files are kept; its processes are gone."),
        (TimeoutError(), "it took too long"),
    ],
)
async def test_what_a_function_raises_is_an_answer_without_the_host(error: Exception, told: str):
    async def broken() -> str:
        """Break."""
        raise error

    result = await result_of(broken)
    assert result.is_error
    assert told in result.output
    assert str(Path.home()) not in result.output
    assert "Traceback" not in result.output
    assert "Errno" not in result.output


async def test_a_function_may_shadow_a_workspace_tool():
    def readFile(path: str) -> str:
        """Read from elsewhere."""
        return f"from elsewhere: {path}"

    assert (await result_of(readFile, path="a")).output == "from elsewhere: a"


async def test_a_parameter_without_a_type_is_refused():
    def loose(anything) -> str:  # type: ignore[no-untyped-def]
        """Take."""
        return str(anything)

    with pytest.raises(ToolFileInvalid, match="'anything' of loose"):
        bind_function(loose)


async def test_a_type_that_the_file_does_not_know_is_refused_by_name():
    class Local:
        pass

    def lost(thing: Local) -> str:
        """Take."""
        return str(thing)

    with pytest.raises(ToolFileInvalid, match="a type of lost is not known at the top of its file: 'Local'"):
        bind_function(lost)


async def test_a_long_answer_goes_to_a_file_that_the_model_can_read():
    text = "".join(f"line {number}\n" for number in range(10_000))

    def report() -> str:
        """Report."""
        return text

    model = script().user("go").calls("report").replies("done")
    async with agent_harness(AGENT, model=model, tools=[report]) as harness:
        (result,) = (await harness.run("go")).tool_results
        path = f"tool-outputs/report-{result.id}.txt"
        assert path in result.output
        assert f"{len(text)} characters" in result.output
        assert result.output.endswith("line 8\nline 9\n")
        assert result.artifact == text
        harness.go_on(script().user("on").calls("readFile", path=path, startLine=9_999).replies("done"))
        (read,) = (await harness.run("on")).tool_results
    assert read.output == f"[{path}: lines 9999-10000 of 10000]\nline 9998\nline 9999"


async def test_cancelling_a_turn_ends_its_tool_and_the_thread_goes_on():
    begun, ended = asyncio.Event(), asyncio.Event()

    async def hang() -> str:
        """Hang."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return ""

    model = script().user("go").calls("hang").user("on").replies("still here")
    async with agent_harness(AGENT, model=model, tools=[hang], sandbox=fake_sandbox()) as harness:
        turn = asyncio.create_task(harness.run("go"))
        await asyncio.wait_for(begun.wait(), 10)
        turn.cancel()
        with pytest.raises(asyncio.CancelledError):
            await turn
        assert ended.is_set()
        assert (await harness.run("on")).final_message == "still here"
