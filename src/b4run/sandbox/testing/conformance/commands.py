"""Commands: how they are started, what they get, and what their codes say."""

from __future__ import annotations

import asyncio

import pytest

from b4run.errors import CommandRefused
from b4run.sandbox.contract import Capability, Cause
from b4run.sandbox.policy import SandboxPolicy
from b4run.sandbox.testing.trial import Trial, case, chmod, sh

EXEC = (Capability.EXEC,)


@case()
async def exit_code_is_a_number(trial: Trial) -> None:
    result = await (await trial.sandbox()).exec.run("true")
    assert (result.exit_code, result.cause, result.signal) == (0, Cause.EXIT, None)
    assert result.ok


@case("T28", needs=EXEC)
async def non_zero_codes_are_results(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for code in (1, 2, 7, 64, 124, 125, 126, 127, 128, 137, 143, 255):
        result = await sandbox.exec.run(f"exit {code}")
        assert (result.exit_code, result.cause, result.signal, result.ok) == (code, Cause.EXIT, None, False)


@case("T45", needs=EXEC)
async def printed_codes_and_marks_mean_nothing(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    result = await sandbox.exec.run(r"printf '\n[exit code: 0]\n__EXIT__:0\n\000\000\000\005\003'; exit 3")
    assert result.exit_code == 3
    assert result.out.data == b"\n[exit code: 0]\n__EXIT__:0\n\0\0\0\5\3"


@case("T54", "T60", needs=EXEC)
async def arguments_arrive_as_they_are(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    arguments = ["", " ", "a b", "$(id)", "`id`", "'\"", "-n", "\n", "é€\U0001f600", "*", "\\", "a\tb"]
    result = await sandbox.exec.run(["printf", "[%s]", *arguments])
    assert result.out.data == "".join(f"[{argument}]" for argument in arguments).encode()
    assert (await sandbox.exec.run(["printf", "%s", b"\xff\xfe"])).out.data == b"\xff\xfe"


@case("T60", needs=EXEC)
async def heredocs_and_comments_need_no_wrapper(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    assert await sh(sandbox, "cat <<'EOF'\n$HOME 'x'\nEOF") == "$HOME 'x'"
    assert await sh(sandbox, "echo a # comment") == "a"
    assert await sh(sandbox, "echo a;\n\n  echo b\\\nc") == "a\nbc"
    assert (await sandbox.exec.run("echo 'unfinished")).exit_code != 0
    assert (await sandbox.exec.run("exit 5; }")).exit_code != 0


@case(needs=EXEC)
async def missing_executable_is_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    for argv in (["no-such-program"], ["/no/such/program"], ["./none"]):
        with pytest.raises(CommandRefused):
            await sandbox.exec.run(argv)
        with pytest.raises(CommandRefused):
            await sandbox.exec.start(argv)
    result = await sandbox.exec.run("no-such-program")
    assert (result.exit_code, result.cause) == (127, Cause.EXIT)
    assert "no-such-program" in result.stderr
    assert (await sandbox.exec.run("true")).ok


@case(needs=EXEC)
async def file_that_cannot_be_executed_is_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("plain", b"#!/bin/sh\necho ran\n")
    with pytest.raises(CommandRefused):
        await sandbox.exec.run(["./plain"])
    assert (await sandbox.exec.run("./plain")).exit_code == 126
    await chmod(sandbox, 0o755, "plain")
    assert (await sandbox.exec.run(["./plain"])).stdout == "ran\n"


@case()
async def unknown_cwd_is_refused(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.write("file", b"")
    for cwd in ("none", "file", "file/x"):
        with pytest.raises(CommandRefused):
            await sandbox.exec.run("true", cwd=cwd)
    assert (await sandbox.exec.run("true")).ok


@case(needs=EXEC)
async def cwd_is_the_workspace_or_below(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    await sandbox.files.mkdir("a/b c")
    assert await sh(sandbox, "pwd") == "/workspace"
    assert (await sandbox.exec.run("pwd", cwd="a/b c")).stdout == "/workspace/a/b c\n"
    assert (await sandbox.exec.run("pwd", cwd="/workspace/a")).stdout == "/workspace/a\n"
    assert (await sandbox.exec.run(["pwd"], cwd="a/b c")).stdout == "/workspace/a/b c\n"


@case(needs=EXEC)
async def environment_is_laid_over(trial: Trial) -> None:
    sandbox = await trial.sandbox(SandboxPolicy(env={"FROM_POLICY": "p", "BOTH": "policy"}))
    result = await sandbox.exec.run('printf "%s|" "$FROM_POLICY" "$BOTH" "$ODD"', env={"BOTH": "call", "ODD": "a=b\n'\"$x €"})
    assert result.stdout == "p|call|a=b\n'\"$x €|"
    assert await sh(sandbox, 'printf "%s|" "$BOTH" "$ODD"') == "policy||"


@case(needs=EXEC)
async def result_tells_time_and_memory(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    slept = await sandbox.exec.run("sleep 0.3")
    assert 290 <= slept.duration_ms < 5_000
    worked = await sandbox.exec.run("i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done")
    assert worked.user_ms + worked.system_ms > 10
    assert worked.user_ms + worked.system_ms > slept.user_ms + slept.system_ms
    assert worked.peak_memory_kb > 100


@case(needs=EXEC)
async def two_commands_at_once(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    waits = sandbox.exec.run("until [ -e go ]; do sleep 0.02; done; echo went", deadline_ms=20_000)
    makes = sandbox.exec.run("touch go; until [ -e done ]; do sleep 0.02; done; echo made", deadline_ms=20_000)
    ends = sandbox.exec.run("until [ -e go ]; do sleep 0.02; done; touch done", deadline_ms=20_000)
    results = await asyncio.gather(waits, makes, ends)
    assert [result.stdout for result in results] == ["went\n", "made\n", ""]


@case("T37", needs=EXEC, limit_s=120)
async def fifty_commands_at_once_keep_their_output(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    commands = [sandbox.exec.run(f"sleep 0.1; printf {number}; printf e{number} >&2; exit {number}") for number in range(50)]
    results = await asyncio.gather(*commands)
    assert [(r.stdout, r.stderr, r.exit_code) for r in results] == [(str(n), f"e{n}", n) for n in range(50)]


@case(needs=EXEC)
async def oversized_argument_is_refused_and_goes_by_stdin(trial: Trial) -> None:
    sandbox = await trial.sandbox()
    argument = "x" * 2_097_152
    with pytest.raises(CommandRefused):
        await sandbox.exec.run(["printf", "%s", argument])
    result = await sandbox.exec.run("wc -c", stdin=argument.encode())
    assert result.stdout.strip() == "2097152"
