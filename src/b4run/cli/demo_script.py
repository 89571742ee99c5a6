"""The demo's scripted repair: what a model would call, one step after another. Each call really runs in the sandbox."""

from __future__ import annotations

from typing import Any

PROMPT = """\
You repair a small Python project. Its tests run with `{tests}`; nothing needs to be installed, and there is no network.
Look around first, run the tests, find the causes in the code, and correct them with small edits. Leave the tests as they are:
they are the measure, and the originals are put back before the last run. Run the tests again when you are done, then say in a
sentence or two what was wrong."""

TASK = "The tests of this project fail. Find out why and repair the code."

REPLY = (
    "Two faults: merging spans forgot the end of a longer span when a shorter one lay inside it, and durations were accepted "
    "with other text around them. Both are corrected and all tests pass."
)


def steps(tests: str) -> list[tuple[str, dict[str, Any]]]:
    """Return the tool calls in order; `tests` is the command that runs the test suite."""
    return [
        ("listDir", {}),
        ("readFile", {"path": "README.md"}),
        ("runBash", {"command": tests}),
        ("readFile", {"path": "worklog/spans.py", "startLine": 26, "endLine": 40}),
        (
            "editFile",
            {
                "path": "worklog/spans.py",
                "oldText": "Span(merged[-1].start, span.end)",
                "newText": "Span(merged[-1].start, max(merged[-1].end, span.end))",
            },
        ),
        ("runBash", {"command": tests}),
        ("readFile", {"path": "worklog/durations.py"}),
        (
            "editFile",
            {
                "path": "worklog/durations.py",
                "oldText": "    if not parts:\n",
                "newText": '    if not parts or "".join(amount + unit for amount, unit in parts) != text:\n',
            },
        ),
        ("runBash", {"command": tests}),
    ]
