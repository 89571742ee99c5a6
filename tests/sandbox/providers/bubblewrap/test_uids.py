from __future__ import annotations

import json

import pytest

from b4run.sandbox.providers.bubblewrap.uids import FIRST, RANGE, UidsUnavailable, allocate_uid


def test_uids_are_unprivileged_unique_and_recorded(tmp_path):
    drawn = [allocate_uid(tmp_path, ()) for _ in range(5)]
    assert len(set(drawn)) == 5
    assert all(FIRST <= uid < 2**31 for uid in drawn)
    record = json.loads((tmp_path / "uids.json").read_text())
    assert record == {"base": drawn[0], "next": 5}


def test_after_the_end_of_the_range_free_uids_are_used_again(tmp_path):
    (tmp_path / "uids.json").write_text(json.dumps({"base": FIRST, "next": RANGE - 1}))
    assert allocate_uid(tmp_path, ()) == FIRST + RANGE - 1
    assert allocate_uid(tmp_path, {FIRST, FIRST + 1}) == FIRST + 2


def test_a_full_range_is_refused(tmp_path):
    (tmp_path / "uids.json").write_text(json.dumps({"base": FIRST, "next": 0}))
    with pytest.raises(UidsUnavailable, match="in use"):
        allocate_uid(tmp_path, range(FIRST, FIRST + RANGE))
