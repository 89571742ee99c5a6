from __future__ import annotations

import os

import pytest

from b4run.errors import GuestMissing, SandboxUnavailable
from b4run.sandbox.guest.binary import guest_binary, guest_version


def test_a_missing_guest_says_how_to_build_it() -> None:
    with pytest.raises(GuestMissing, match="pdp11 cannot be used: it has not been built") as caught:
        guest_binary("pdp11")
    assert isinstance(caught.value, SandboxUnavailable)
    assert (caught.value.code, "make guest" in caught.value.remedy) == ("B4_E2001", True)


def test_the_guest_of_this_host() -> None:
    assert os.access(guest_binary(), os.X_OK)
    assert guest_version().startswith("b4-guest ")
    assert guest_version().endswith(" protocol 1")
