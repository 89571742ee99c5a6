"""What the documentation says is so: links lead somewhere, and its code runs."""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import CodeType
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from b4run.app import check_app
from b4run.cli.main import COMMANDS
from b4run.cli.parser import Parser
from b4run.config import Allow, Config, Cors, Deny, Sandbox, ThreadContext, load_config
from b4run.config.models import Server, Staging
from b4run.permissions import CommandRequest, PermissionGate
from b4run.sandbox.contract import Severity

ROOT = Path(__file__).parents[2]
GUIDE = sorted((ROOT / "docs" / "guide").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = {ROOT / "docs" / "performance.md", ROOT / "docs" / "reference" / "errors.md"}

_BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_FILE = re.compile(r"# (\S+\.py)\n")


def named(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[str]:
    return _BLOCK.findall(page.read_text())


def compiled(page: Path, block: str) -> CodeType:
    return compile(block, named(page), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


async def run(page: Path, source: list[str], names: dict[str, Any]) -> None:
    """Run blocks of a page one after another, `await` at their top level included."""
    for block in source:
        code = compiled(page, block)
        waited = eval(code, names)
        if code.co_flags & 0x80:  # inspect.CO_COROUTINE
            await waited


def lay_out(page: Path, folder: Path) -> None:
    """Write the page's blocks that begin with a file's name as these files."""
    for block in blocks(page):
        found = _FILE.match(block)
        if found is not None:
            path = folder / found[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _FENCED.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_relative_links_lead_somewhere(page: Path) -> None:
    missing = []
    for link in _LINK.findall(_FENCED.sub("", page.read_text())):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if target in GENERATED:
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            missing.append(link)
    assert missing == []


@pytest.mark.parametrize("page", [ROOT / "README.md", *GUIDE], ids=named)
def test_every_python_block_compiles(page: Path) -> None:
    for block in blocks(page):
        compiled(page, block)


def test_there_are_blocks_to_look_at() -> None:
    assert {named(page): bool(blocks(page)) for page in GUIDE if page.stem not in ("bubblewrap", "operations")} == {
        f"docs/guide/{name}.md": True
        for name in (
            "agents",
            "docker",
            "kubernetes",
            "permissions",
            "providers",
            "quickstart",
            "sandboxes",
            "server",
            "testing",
            "workspaces",
        )
    }


async def test_the_library_snippet_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "README.md"
    [block] = [block for block in blocks(page) if "asyncio.run(main())" in block]
    await run(page, [block.replace("asyncio.run(main())", "await main()")], {})
    assert capsys.readouterr().out == "0 exit hello from the sandbox\n\n"


async def test_the_first_block_of_the_quickstart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "guide" / "quickstart.md"
    await run(page, blocks(page)[:1], {})
    assert capsys.readouterr().out == "0 exit 45\n\n"


def test_the_commands_of_the_quickstart(tmp_path: Path) -> None:
    page = ROOT / "docs" / "guide" / "quickstart.md"
    lay_out(page, tmp_path)
    [block] = [fenced for fenced in _FENCED.findall(page.read_text()) if fenced.startswith("```\nb4 ")]
    told = []
    for line in block.splitlines()[1:-1]:
        command = [sys.executable, "-m", "b4run.cli", *shlex.split(line, comments=True)[1:]]
        done = subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, (line, done.stdout, done.stderr)
        told.append(done.stdout)
    assert json.loads(told[1])["output"] == "I wrote greeting.txt."
    assert told[2:4] == ["hello from the sandbox\n", "23 greeting.txt\n"]


async def test_the_tests_of_the_page_about_testing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names: dict[str, Any] = {}
    page = ROOT / "docs" / "guide" / "testing.md"
    await run(page, blocks(page), names)
    for name in ("test_a_note_is_written", "test_clean"):
        await names[name]()


async def test_the_provider_of_the_page_about_providers() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    page = ROOT / "docs" / "guide" / "providers.md"
    await run(page, blocks(page), names)
    for mark in names["TestProcess"].test.pytestmark:
        [chosen] = [parameter.values[0] for parameter in mark.args[1] if parameter.id.startswith("endings-deadline_at_any")]
    await asyncio.to_thread(names["TestProcess"]().test, chosen)


async def test_the_page_about_workspaces(tmp_path: Path) -> None:
    page = ROOT / "docs" / "guide" / "workspaces.md"
    names: dict[str, Any] = {}
    await run(page, blocks(page)[1:], names)
    lay_out(page, tmp_path)
    (tmp_path / "app" / "fix").mkdir(parents=True)
    (tmp_path / "app" / "fix" / "agent.py").write_text(
        "from b4run.agents import Agent\nagent = Agent(model='openai:none', prompt='Help.')\n"
    )
    for path in ("README.md", "src/main.py", "dist/out"):
        (tmp_path / "project" / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / path).touch()
    report = await check_app(tmp_path, preflight=False)
    assert report.ok
    assert report.workspace == "each thread starts from 3 files of 'project' in a bubblewrap sandbox"
    for name in ("workspace", "decide"):
        with pytest.raises(ValueError, match="thread t-1 names no known"):
            await names[name](ThreadContext("t-1"))
    assert (await names["workspace"](ThreadContext("t-1", {"task": "report"}))).source.directory == "tasks/report"
    assert (await names["decide"](ThreadContext("t-1", {"target": "small"}))).policy.resources.memory_mb == 1_024


def keys_of(model: type[BaseModel]) -> Iterator[str]:
    for name, field in model.model_fields.items():
        yield name
        for inner in (field.annotation, *get_args(field.annotation)):
            if isinstance(inner, type) and issubclass(inner, BaseModel):
                yield from keys_of(inner)


def test_the_reference_names_every_key_and_only_keys() -> None:
    text = (ROOT / "docs" / "reference" / "configuration.md").read_text()
    keys = {*keys_of(Config), *keys_of(Sandbox), *keys_of(Staging), *keys_of(Server), *keys_of(Cors), *keys_of(Allow), *keys_of(Deny)}
    assert sorted(key for key in keys if f"`{key}`" not in text) == []
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?(?: \(with \w+\),? ?)?)+) \|", text, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert sorted(named - keys) == []


def test_the_reference_names_every_command_and_option() -> None:
    text = (ROOT / "docs" / "reference" / "command.md").read_text()
    for name, summary in COMMANDS.items():
        section = text.partition(f"## b4 {name}\n")[2].partition("\n## ")[0]
        assert section, name
        parser = Parser(prog=f"b4 {name}", description=summary)
        import_module(f"b4run.cli.{name}").configure(parser)
        for path, option in options_of(parser):
            assert len(path.split()) == 2 or path in section, path
            assert option in section, (path, option)


def options_of(parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield each command below a parser with each of its options."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from options_of(inner)
        for option in [] if action.help is argparse.SUPPRESS else action.option_strings:
            if option not in ("-h", "--help", "--app", "--debug"):
                yield parser.prog, option


async def test_every_block_about_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "guide" / "sandboxes.md"
    await run(page, blocks(page), {})
    left = [path.name for path in (tmp_path / ".b4" / "sandboxes").iterdir() if len(path.name) == 40]
    assert left == []


@pytest.mark.parametrize("name", ["README.md", "docs/guide/agents.md", "docs/guide/quickstart.md"])
async def test_apps_are_valid(name: str, tmp_path: Path) -> None:
    (tmp_path / "b4_config.py").write_text("config = {}\n")
    lay_out(ROOT / name, tmp_path)
    report = await check_app(tmp_path, preflight=False)
    assert [issue.text for issue in report.issues if issue.severity is Severity.ERROR] == []
    assert report.routes


def table(page: Path, header: str) -> Iterator[list[str]]:
    """Yield the rows of the table whose first column is called `header`; code marks are taken away."""
    lines = page.read_text().split("\n")
    start = next(index for index, line in enumerate(lines) if line.startswith(f"| {header} |"))
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return
        cells = re.split(r"(?<!\\)\|", line)[1:-1]
        yield [cell.strip().replace("\\|", "|") for cell in cells]


async def test_the_table_of_permissions_is_true(tmp_path: Path) -> None:
    page = ROOT / "docs" / "guide" / "permissions.md"
    lay_out(page, tmp_path)
    permissions = load_config(tmp_path).config.permissions
    gate = PermissionGate(allow=permissions.allow.lists, deny=permissions.deny.lists)
    said = {row[0].strip("`"): row[1] for row in table(page, "command")}
    found = {command: (await gate.decide(CommandRequest(command), thread_id="t-1")).outcome.value for command in said}
    assert found == said
    assert len(said) > 20


async def test_the_other_blocks_about_permissions_run() -> None:
    page = ROOT / "docs" / "guide" / "permissions.md"
    await run(page, blocks(page), {})
