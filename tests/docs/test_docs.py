"""What the documentation says is so: links lead somewhere, and its code runs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from types import CodeType
from typing import Any

import pytest

from b4run.app import check_app
from b4run.config import load_config
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
    assert {named(page): bool(blocks(page)) for page in GUIDE if page.stem != "bubblewrap"} == {
        f"docs/guide/{name}.md": True for name in ("agents", "permissions", "providers", "quickstart", "sandboxes", "testing")
    }


async def test_the_library_snippet_of_the_readme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "README.md"
    [block] = [block for block in blocks(page) if "asyncio.run(main())" in block]
    await run(page, [block.replace("asyncio.run(main())", "await main()")], {})
    assert capsys.readouterr().out == "0 exit hello from the sandbox\n\n"


async def test_every_block_about_sandboxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "guide" / "sandboxes.md"
    await run(page, blocks(page), {})
    left = [path.name for path in (tmp_path / ".b4" / "sandboxes").iterdir() if len(path.name) == 40]
    assert left == []


@pytest.mark.parametrize("name", ["README.md", "docs/guide/agents.md", "docs/guide/quickstart.md"])
async def test_apps_are_valid(name: str, tmp_path: Path) -> None:
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
