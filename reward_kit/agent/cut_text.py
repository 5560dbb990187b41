"""How a text that may be of any length is shortened for messages."""

from __future__ import annotations


def cut(text: str, length: int) -> str:
    """At most ``length`` characters of ``text``; the last of them is ``…`` where some are left out."""
    return text if len(text) <= length else f"{text[: length - 1]}…"
