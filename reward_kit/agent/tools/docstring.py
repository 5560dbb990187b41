"""The description of a tool and its parameters in a docstring.

Reads Google (``Args:``), NumPy (``Parameters``, underlined) and reST (``:param x:``) sections.
"""

from __future__ import annotations

import inspect
import re
from itertools import zip_longest

_GOOGLE_SECTION = re.compile(
    r"((keyword |other )?(args|arguments|parameters|params)|returns|raises|yields|examples?|notes?):\s*",
    re.IGNORECASE,
)
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?")
_REST_FIELD = re.compile(r":\w[^:]*:")
_REST_ENTRY = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)"
)


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The first paragraph on one line, and the description of each parameter."""
    lines = inspect.cleandoc(text or "").splitlines()
    summary: list[str] = []
    for line in lines:
        if not line.strip() or _GOOGLE_SECTION.fullmatch(line) or _REST_FIELD.match(line):
            break
        summary.append(line.strip())
    found: dict[str, list[str]] = {}
    style, margin = "", 0
    current: list[str] = []  # the entry that the next lines may continue
    for line, below in zip_longest(lines, lines[1:], fillvalue=""):
        words, indent = line.strip(), len(line) - len(line.lstrip())
        if entry := _REST_ENTRY.match(words):
            style, current = "rest", found.setdefault(entry[1], [])
            current.append(entry[2])
        elif not words or set(words) == {"-"} or _REST_FIELD.match(words):
            current = current if style != "rest" else []
        elif indent == 0 and set(below.strip()) == {"-"}:
            style = "numpy" if words.lower() in ("parameters", "other parameters") else ""
        elif indent == 0 and (section := _GOOGLE_SECTION.fullmatch(words)):
            style, margin = "google" if section[3] else "", 0
        elif style == "numpy" and indent == 0 and (entry := _NUMPY_ENTRY.fullmatch(words)):
            current = []
            found.update(dict.fromkeys(map(str.strip, entry[1].split(",")), current))
        elif style == "google" and 0 < indent <= (margin or indent) and (entry := _GOOGLE_ENTRY.match(words)):
            margin, current = indent, found.setdefault(entry[1], [])
            current.append(entry[2])
        elif style and (indent or style == "rest"):
            current.append(words)
        else:
            style, current = "", []
    joined = {name: " ".join(parts).strip() for name, parts in found.items()}
    return " ".join(summary), {name: said for name, said in joined.items() if said}
