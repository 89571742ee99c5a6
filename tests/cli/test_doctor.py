"""`b4 doctor` on this very host."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import pytest

from .conftest import B4


def test_json_and_table_tell_the_same(b4: B4) -> None:
    outcome = b4("doctor", "--json")
    report = outcome.json
    assert outcome.code == (0 if report["status"] == "passed" else 1)
    assert report["host"]["kernel"] == platform.release()
    assert report["host"]["uid"] == os.geteuid()
    controls = [finding["control"] for finding in report["findings"]]
    assert len(controls) == len(set(controls)) > 1
    seen = {finding["control"]: finding["severity"] for finding in report["findings"]}
    assert report["status"] == "failed" or all(seen[name] == "ok" for name in ("namespaces", "user", "capabilities", "seccomp"))
    assert seen["disk limit"] == "warning"
    table = b4("doctor")
    assert table.code == outcome.code
    for finding in report["findings"]:
        assert finding["detail"] in table.out
        assert finding["severity"] == "ok" or finding["remedy"] in table.out


def test_without_bubblewrap_it_fails_and_says_how_to_get_it(b4: B4, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("b4run.sandbox.providers.bubblewrap.bwrap._from_wheel", lambda: None)
    outcome = b4("doctor")
    assert outcome.code == 1
    assert "fail" in outcome.out and "apt install bubblewrap" in outcome.out


def test_it_leaves_nothing_behind(b4: B4, tmp_path: Path) -> None:
    b4("doctor")
    assert list(tmp_path.iterdir()) == []
