"""Resource names agree with the original's, to the byte."""

from __future__ import annotations

import hashlib

import pytest

from b4run.errors import ConfigurationError
from b4run.sandbox import resource_id


@pytest.mark.parametrize(
    ("scope", "thread", "expected"),
    [
        ("my-app", "t-1", "cbe18513e2d35fd65a21aeb9eb24dce6148a6115"),
        ("My-App", "t-1", "d3a6839d795cb2a80fe3c6998c46492f975f159e"),
        ("my-app", 'поток "1"\n\x7f\u2028\U0001f600', "1ef5bd3bee43afdd18c385ebc93528268340d882"),
    ],
)
def test_published_vectors(scope: str, thread: str, expected: str) -> None:
    assert resource_id(scope, thread) == expected


@pytest.mark.parametrize(
    ("thread", "spelled"),
    [
        ("\ud800", r"\ud800"),
        ("a\udfffb", r"a\udfffb"),
        ("\ud83d\ude00", "\U0001f600"),
        ("\ude00\ud83d", r"\ude00\ud83d"),
        ("\b\t\n\f\r\x00\x0b\x1f", r"\b\t\n\f\r\u0000\u000b\u001f"),
        ("\x7f\x85\u2028\u2029/'", "\x7f\x85\u2028\u2029/'"),
        ('\\"', r"\\\""),
    ],
)
def test_text_is_spelled_as_javascript_does(thread: str, spelled: str) -> None:
    text = f'["b4-sandbox-scope-v1","my-app","{spelled}"]'
    assert resource_id("my-app", thread) == hashlib.sha256(text.encode()).hexdigest()[:40]


@pytest.mark.parametrize("scope", ["", " ", "\t\r\n\v\f", "\xa0\ufeff\u2003\u3000", None, 7, b"my-app"])
def test_blank_or_foreign_scope_is_refused(scope: object) -> None:
    with pytest.raises(ConfigurationError, match="scope"):
        resource_id(scope, "t-1")  # type: ignore[arg-type]
