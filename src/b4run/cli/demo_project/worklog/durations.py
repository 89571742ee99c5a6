"""Durations as people write them: `45m`, `1h30m`, `2h`."""

import re

_UNITS = {"h": 60, "m": 1}
_PART = re.compile(r"(\d+)([hm])")


def parse_duration(text: str) -> int:
    """Return the minutes that a text such as `1h30m` stands for.

    Raises:
        ValueError: the text holds anything but hours and minutes.
    """
    parts = _PART.findall(text)
    if not parts:
        raise ValueError(f"no duration: {text!r}")
    return sum(int(amount) * _UNITS[unit] for amount, unit in parts)


def format_duration(minutes: int) -> str:
    """Return minutes the way `parse_duration` reads them; parts that are zero are left out."""
    hours, rest = divmod(minutes, 60)
    written = (f"{hours}h" if hours else "") + (f"{rest}m" if rest else "")
    return written or "0m"
