"""Reads `tests/vectors/frames.json`, whose `about` says how it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

_FILE = json.loads((Path(__file__).parents[2] / "vectors" / "frames.json").read_text())


def section(name: str) -> list[dict[str, Any]]:
    return list(_FILE[name])


def raw(spec: str | list[Any]) -> bytes:
    """Return the bytes that a vector spells."""
    if isinstance(spec, str):
        return bytes.fromhex(spec)
    return b"".join(bytes.fromhex(part) if isinstance(part, str) else bytes.fromhex(part["repeat"][0]) * part["repeat"][1] for part in spec)


def value(spec: Any) -> Any:
    """Return the message that a vector spells."""
    if isinstance(spec, list):
        return [value(item) for item in spec]
    if not isinstance(spec, dict):
        return spec
    if spec.keys() == {"$bin"}:
        return bytes.fromhex(spec["$bin"])
    if spec.keys() == {"$map"}:
        return {value(key): value(item) for key, item in spec["$map"]}
    return {key: value(item) for key, item in spec.items()}
