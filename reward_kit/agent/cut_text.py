"""How a text of any length and with any characters is made fit for messages."""

from __future__ import annotations

import re

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""What no terminal is to get besides line ends and tabs: also what reverses the order of letters, and halves
of characters.
"""


def cut(text: str, length: int) -> str:
    """At most ``length`` characters of ``text``; the last of them is ``…`` where some are left out."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def excerpt(text: str, length: int) -> str:
    """At most ``length`` characters of ``text``, in one line."""
    return cut(" ".join(text.split()), length)


def tamed(text: str) -> str:
    """Text of any number of lines for a terminal: control characters are shown as JSON writes them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
