"""The description of a tool and its parameters in a docstring.

Reads Google (``Args:``), NumPy (``Parameters``, underlined) and reST (``:param x:``) sections.
"""

from __future__ import annotations

import inspect
import re

_PARAMETER_SECTIONS = frozenset(
    {"args", "arguments", "parameters", "params", "keyword args", "keyword arguments", "other parameters"}
)
_OTHER_SECTIONS = frozenset({"returns", "raises", "yields", "example", "examples", "note", "notes"})
_GOOGLE_HEADING = re.compile(r"([A-Za-z ]+):\s*$")
_GOOGLE_ENTRY = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)")
_NUMPY_ENTRY = re.compile(r"\*{0,2}(\w+(?:\s*,\s*\w+)*)\s*(?::.*)?$")
_REST_PARAMETER = re.compile(
    r":(?:param|parameter|arg|argument|key|keyword)\s+(?:[^:]*\s)?\*{0,2}(\w+)\s*:\s*(.*)"
)
_REST_FIELD = re.compile(r":\w[^:]*:")
_UNDERLINE = re.compile(r"\s*-{3,}\s*")


def parse_docstring(text: str | None) -> tuple[str, dict[str, str]]:
    """The first paragraph on one line, and the description of each parameter."""
    if not text:
        return "", {}
    lines = inspect.cleandoc(text).splitlines()
    summary: list[str] = []
    for line in lines:
        if not line.strip() or _section(line) or _REST_FIELD.match(line):
            break
        summary.append(line.strip())
    parameters = {name: " ".join(words).strip() for name, words in _parameters(lines).items()}
    return " ".join(summary), {name: words for name, words in parameters.items() if words}


def _section(line: str) -> str | None:
    """The name of the Google section that the line opens, in lower case."""
    heading = _GOOGLE_HEADING.match(line)
    name = heading[1].lower() if heading else None
    return name if name in _PARAMETER_SECTIONS | _OTHER_SECTIONS else None


def _parameters(lines: list[str]) -> dict[str, list[str]]:
    """The lines of text under each parameter's name."""
    found: dict[str, list[str]] = {}
    for index, line in enumerate(lines):
        below = lines[index + 1] if index + 1 < len(lines) else ""
        if _section(line) in _PARAMETER_SECTIONS:
            _read_google(lines[index + 1 :], found)
        elif line.strip().lower() in _PARAMETER_SECTIONS and _UNDERLINE.fullmatch(below):
            _read_numpy(lines[index + 2 :], found)
        elif entry := _REST_PARAMETER.match(line.strip()):
            found[entry[1]] = [entry[2], *_continuation(lines[index + 1 :])]
    return found


def _read_google(lines: list[str], found: dict[str, list[str]]) -> None:
    """Read entries of one indent with deeper continuation lines, up to a line without indent."""
    entry_indent: int | None = None
    current: list[str] | None = None
    for line in filter(str.strip, lines):
        indent = _indent(line)
        if indent == 0:
            return
        entry_indent = indent if entry_indent is None else entry_indent
        entry = _GOOGLE_ENTRY.match(line.strip())
        if indent <= entry_indent and entry:
            current = found.setdefault(entry[1], [])
            current.append(entry[2])
        elif current is not None:
            current.append(line.strip())


def _read_numpy(lines: list[str], found: dict[str, list[str]]) -> None:
    """Read names at the margin with indented descriptions, up to the next heading."""
    current: list[list[str]] = []
    for line, below in zip(lines, [*lines[1:], ""], strict=True):
        if not line.strip():
            continue
        if _indent(line):
            for words in current:
                words.append(line.strip())
        elif _UNDERLINE.fullmatch(below) or not (entry := _NUMPY_ENTRY.match(line)):
            return
        else:
            current = [found.setdefault(name.strip(), []) for name in entry[1].split(",")]


def _continuation(lines: list[str]) -> list[str]:
    """The lines of a reST field after its first: up to a blank line or the next field."""
    words: list[str] = []
    for line in lines:
        if not line.strip() or _REST_FIELD.match(line.strip()):
            break
        words.append(line.strip())
    return words


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())
