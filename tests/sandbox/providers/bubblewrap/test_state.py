from __future__ import annotations

import json
import os
import stat
import subprocess
import sys

import pytest

from b4run.errors import SandboxHeld, SandboxUnavailable
from b4run.sandbox.providers.bubblewrap.state import State, StateUnusable

NAME = "a" * 40


@pytest.fixture
def state(tmp_path):
    state = State(tmp_path / "sandboxes", "test")
    state.prepare()
    return state


def test_the_directory_and_a_thread_are_their_owners_alone(state):
    folder = state.open(NAME, "t-1")
    assert stat.S_IMODE(state.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    assert folder.workspace.stat().st_uid == folder.meta.uid
    assert (folder.meta.uid == 0, folder.meta.scope, folder.meta.thread_id) == (False, "test", "t-1")


def test_opening_again_finds_the_same_folder_and_user(state):
    first = state.open(NAME, "t-1")
    (first.workspace / "kept").write_text("x")
    second = State(state.path, "test").open(NAME, "t-1")
    assert second.meta == first.meta
    assert (second.workspace / "kept").read_text() == "x"


def test_thread_names_of_any_text_are_recorded(state):
    thread = 'поток "1"\n\x7f\u2028\U0001f600\ud800'
    state.open(NAME, thread)
    found = state.find(NAME)
    assert found is not None
    assert found.meta.thread_id == thread


def test_a_held_thread_names_who_holds_it(state):
    hold = state.hold(NAME, "t-1")
    hold.record([])
    with pytest.raises(SandboxHeld, match="another provider of this process"):
        state.hold(NAME, "t-1")
    assert state.is_held(NAME)
    hold.close()
    hold.close()
    assert not state.is_held(NAME)
    state.hold(NAME, "t-1").close()


def test_another_process_is_named_by_its_pid(state):
    code = (
        "import sys; from pathlib import Path; from b4run.sandbox.providers.bubblewrap.state import State\n"
        "hold = State(Path(sys.argv[1]), 'test').hold(sys.argv[2], 't-1'); hold.record([]); print('held', flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(state.path), NAME],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(SandboxHeld, match=f"process {other.pid} holds it"):
            state.hold(NAME, "t-1")
        other.kill()
        other.wait(10)
    state.hold(NAME, "t-1").close()


def test_control_groups_of_a_dead_holder_are_found_again(state, tmp_path):
    hold = state.hold(NAME, "t-1")
    hold.record([tmp_path / "b4-group"])
    os.close(hold.descriptor)  # as the kernel does for a killed process: the record stays
    again = state.hold(NAME, "t-1")
    assert again.leftovers == [tmp_path / "b4-group"]
    again.close()
    assert state.hold(NAME, "t-1").leftovers == []


def test_a_buried_thread_is_gone_at_once_and_its_files_at_the_sweep(state):
    state.open(NAME, "t-1")
    state.bury(NAME)
    assert state.find(NAME) is None
    assert state.resource_ids() == []
    assert len(list(state.path.glob(".gone-*"))) == 1
    state.sweep(NAME)
    assert list(state.path.glob(".gone-*")) == []
    state.bury(NAME)
    state.sweep(NAME)


def test_a_new_thread_after_an_interrupted_removal_sees_none_of_the_old_files(state):
    (state.open(NAME, "t-1").workspace / "old").write_text("x")
    state.bury(NAME)
    assert list(state.open(NAME, "t-1").workspace.iterdir()) == []
    state.sweep(NAME)
    assert state.find(NAME) is not None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"scope": "x"}'])
def test_a_damaged_record_is_refused_and_its_files_are_kept(state, text):
    folder = state.open(NAME, "t-1")
    (folder.path / "meta.json").write_text(text)
    with pytest.raises(StateUnusable, match="damaged"):
        state.open(NAME, "t-1")
    assert folder.workspace.is_dir()


def test_a_record_of_a_newer_version_is_refused(state):
    folder = state.open(NAME, "t-1")
    meta = folder.path / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"version": 2}))
    with pytest.raises(StateUnusable, match="newer version"):
        state.open(NAME, "t-1")


def test_files_of_another_supervisors_user_are_refused(state):
    folder = state.open(NAME, "t-1")
    meta = folder.path / "meta.json"
    meta.write_text(json.dumps(json.loads(meta.read_text()) | {"uid": 1234}))
    with pytest.raises(SandboxUnavailable, match="another user"):
        state.open(NAME, "t-1")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_state_directory_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "sandboxes").mkdir()
    os.chown(tmp_path / "sandboxes", 65534, 65534)
    with pytest.raises(StateUnusable, match="uid 65534"):
        State(tmp_path / "sandboxes", "test").prepare()


def test_removals_that_others_left_are_finished_but_not_those_in_use(state):
    for name in (NAME, "b" * 40):
        state.open(name, "t").workspace.joinpath("old").write_text("x")
        state.bury(name)
    busy = state.hold("b" * 40, "t")
    state.tidy()
    assert [path.name[:46] for path in state.path.glob(".gone-*")] == [f".gone-{'b' * 40}"]
    assert not (state.path / "locks" / NAME).exists()
    busy.close()
    state.tidy()
    assert list(state.path.glob(".gone-*")) == []


def test_a_draft_of_a_dead_process_is_dropped_and_one_in_the_making_is_not(state):
    other = "b" * 40
    for name in (NAME, other):
        (state.path / f".new-{name}-0badf00d" / "workspace").mkdir(parents=True)
    busy = state.hold(other, "t")
    state.tidy()
    assert [path.name for path in state.path.glob(".new-*")] == [f".new-{other}-0badf00d"]
    busy.close()


@pytest.mark.parametrize("using", ["open", "sweep"])
def test_the_next_use_of_a_thread_drops_its_draft_and_leaves_others(state, using):
    other = "b" * 40
    for name in (NAME, other):
        (state.path / f".new-{name}-0badf00d" / "workspace").mkdir(parents=True)
    getattr(state, using)(*((NAME, "t-1") if using == "open" else (NAME,)))
    assert [path.name for path in state.path.glob(".new-*")] == [f".new-{other}-0badf00d"]
