from __future__ import annotations

import json

import pytest

from b4run.sandbox.providers.bubblewrap.uids import BLOCK, FIRST, RANGE, Uids, UidsUnavailable


def test_uids_are_unprivileged_unique_and_recorded(tmp_path):
    uids = Uids(tmp_path)
    drawn = [uids.take(()) for _ in range(5)]
    assert len(set(drawn)) == 5
    assert all(FIRST <= uid < 2**31 for uid in drawn)
    assert json.loads((tmp_path / "uids.json").read_text()) == {"base": drawn[0], "next": BLOCK}


def test_two_processes_never_draw_the_same(tmp_path):
    one, other = Uids(tmp_path), Uids(tmp_path)
    drawn = [uids.take(()) for _ in range(2 * BLOCK + 1) for uids in (one, other)]
    assert len(set(drawn)) == len(drawn)


def test_what_was_taken_after_it_was_drawn_is_passed_over(tmp_path):
    uids = Uids(tmp_path)
    first = uids.take(())
    assert uids.take({first + 1, first + 2}) == first + 3


def test_after_the_end_of_the_range_free_uids_are_used_again(tmp_path):
    (tmp_path / "uids.json").write_text(json.dumps({"base": FIRST, "next": RANGE - 1}))
    uids = Uids(tmp_path)
    assert uids.take(()) == FIRST + RANGE - 1
    assert uids.take({FIRST, FIRST + 1}) == FIRST + 2


def test_a_full_range_is_refused(tmp_path):
    (tmp_path / "uids.json").write_text(json.dumps({"base": FIRST, "next": 0}))
    with pytest.raises(UidsUnavailable, match="in use"):
        Uids(tmp_path).take(range(FIRST, FIRST + RANGE))
