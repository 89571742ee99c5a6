"""What a result shows of its output."""

from __future__ import annotations

import pytest

from b4run.sandbox import Output


def test_whole_output_is_shown_as_it_is() -> None:
    assert Output(head=b"a\xc3\xa9", total=3).text == "aé"
    assert Output(head="é".encode()[:1], tail="é".encode()[1:], total=2).text == "é"


@pytest.mark.parametrize("cut", range(7))
def test_character_cut_in_two_is_left_out(cut: int) -> None:
    data = "€😀".encode()
    shown = Output(head=b"h" + data[:cut], tail=data[cut:] + b"t", total=1_000).text
    assert "\ufffd" not in shown
    assert shown.startswith("h")
    assert shown.endswith("t")
    assert f"[... {1_000 - 9} bytes left out ...]" in shown


def test_invalid_bytes_stay_visible() -> None:
    assert Output(head=b"\xff", total=1).text == "\ufffd"
    assert Output(head=b"\xffa", tail=b"b\xff", total=10).text.startswith("\ufffda")
