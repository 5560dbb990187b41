"""What JSON cannot hold, how deep it may be nested, and copies of what it can."""

from __future__ import annotations

import math
from typing import Any

MAX_DEPTH = 100
"""Levels: far deeper than anything real, far from where Python's recursion ends."""


def finite(text: str) -> float:
    """A float that JSON can hold, for ``parse_constant`` and ``parse_float``; ``ValueError`` for others."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is not a JSON number")
    return number


def is_too_deep(value: Any, text: str | bytes | bytearray) -> bool:
    """Whether ``value`` is nested more than ``MAX_DEPTH`` levels deep; ``text`` is what it was read from."""
    brackets: tuple[Any, Any] = ("[", "{") if isinstance(text, str) else (b"[", b"{")
    if sum(map(text.count, brackets)) <= MAX_DEPTH:
        return False  # the usual case, without a look at the value
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [
            inner
            for outer in level
            if isinstance(outer, dict | list)
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


def copied(value: Any) -> Any:
    """A copy of plain JSON values, to hand to foreign code: what that does to it changes nothing else."""
    if isinstance(value, dict):
        return {
            name: inner if inner.__class__ is str else copied(inner)  # most of them, and a call costs most
            for name, inner in value.items()
        }
    if isinstance(value, list):
        return [copied(inner) for inner in value]
    return value
