"""Folders make routes."""

from __future__ import annotations

from pathlib import Path

import pytest

from b4run.app.layout import Layout, find_layout


def layout_of(root: Path, *files: str) -> Layout:
    for file in files:
        path = root / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    return find_layout(root, "app")


@pytest.mark.parametrize(
    ("file", "route"),
    [
        ("app/agent.py", "/"),
        ("app/fix/agent.py", "/fix"),
        ("app/a/b/c/agent.py", "/a/b/c"),
        ("app/(internal)/fix/agent.py", "/fix"),
        ("app/(internal)/agent.py", "/"),
        ("app/hello/[tenant]/agent.py", "/hello/[tenant]"),
        ("app/[...rest]/agent.py", "/[...rest]"),
        ("app/[[...rest]]/agent.py", "/[[...rest]]"),
        ("app/v1.2/agent.py", "/v1.2"),
    ],
)
def test_a_folder_with_an_agent_is_a_route(tmp_path: Path, file: str, route: str) -> None:
    layout = layout_of(tmp_path, file)
    assert {name: str(entry.path.relative_to(tmp_path)) for name, entry in layout.routes.items()} == {route: file}
    assert layout.defects == []


def test_hidden_folders_and_what_lies_beneath_are_skipped(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "app/fix/agent.py", "app/_drafts/new/agent.py", "app/.git/agent.py", "app/__pycache__/agent.py")
    assert list(layout.routes) == ["/fix"]


def test_routes_come_sorted_and_may_lie_within_each_other(tmp_path: Path) -> None:
    assert list(layout_of(tmp_path, "app/z/agent.py", "app/agent.py", "app/a/b/agent.py", "app/a/agent.py").routes) == [
        "/",
        "/a",
        "/a/b",
        "/z",
    ]


def test_tools_and_subagents_belong_to_the_folder_they_stand_in(tmp_path: Path) -> None:
    layout = layout_of(
        tmp_path,
        "app/fix/agent.py",
        "app/fix/tools/export.py",
        "app/fix/tools/_helpers.py",
        "app/fix/tools/notes.txt",
        "app/fix/subagents/review/agent.py",
        "app/fix/subagents/review/tools/lint.py",
        "app/fix/subagents/review/subagents/deep/agent.py",
        "tools/shared.py",
    )
    assert list(layout.routes) == ["/fix"]
    fix = layout.routes["/fix"]
    assert [path.name for path in fix.tools] == ["export.py"]
    assert [path.name for path in layout.shared_tools] == ["shared.py"]
    (review,) = fix.subagents
    assert (review.name, [path.name for path in review.tools]) == ("review", ["lint.py"])
    assert [child.name for child in review.subagents] == ["deep"]


def test_two_folders_with_one_path_are_both_named(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "app/(a)/fix/agent.py", "app/(b)/fix/agent.py")
    assert [defect.message for defect in layout.defects] == ["route /fix is there twice: app/(a)/fix/agent.py and app/(b)/fix/agent.py"]


def test_all_defects_come_together(tmp_path: Path) -> None:
    layout = layout_of(
        tmp_path,
        "app/fix/agent.py",
        "app/with space/agent.py",
        "app/[broken/agent.py",
        "app/tools/agent.py",
        "app/fix/subagents/empty/readme.txt",
        "app/fix/subagents/-odd/agent.py",
    )
    assert list(layout.routes) == ["/fix"]
    assert sorted(defect.message for defect in layout.defects) == [
        "app/fix/subagents/-odd: a subagent's name is letters, digits, `_` and `-`",
        "app/tools cannot be a route: tools/ belongs to the route above it",
        "folder app/[broken cannot be part of a route's path",
        "folder app/with space cannot be part of a route's path",
        "subagent folder app/fix/subagents/empty has no agent.py",
    ]
    assert {defect.code for defect in layout.defects} == {"B4_E1006"}


def test_an_app_without_its_folder_or_without_routes(tmp_path: Path) -> None:
    assert [defect.message for defect in find_layout(tmp_path, "app").defects] == [f"{tmp_path} has no folder app/ for its routes"]
    (tmp_path / "app" / "empty").mkdir(parents=True)
    assert [defect.message for defect in find_layout(tmp_path, "app").defects] == ["app/ holds no agent.py, so the app has no route"]
