"""Texts for messages and reports: cut, cleaned, in one line."""

from __future__ import annotations

import json
import re
import reprlib
from difflib import get_close_matches
from html import escape
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

FILE = "file:"
"""Begins a text that is the name of a file beside the dataset."""
LONGEST_TEXT = 300
LONGEST_ERROR = 65_536
"""Characters of foreign error texts and details that are kept."""
LONGEST_NAME = 200
"""Characters of foreign names that are kept."""
LONGEST_COMPARED = 100
"""Characters; longer names are not compared, since the time of a comparison grows with their product."""
_ESCAPE_SEQUENCE = re.compile(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)?)")
"""Terminal colours, cursor movements, titles and links."""

_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Control characters except line ends and tabs, marks of writing direction, halves of surrogate pairs."""


def cut(text: str, length: int) -> str:
    """At most ``length`` characters of ``text``; the last is ``…`` if some are left out."""
    return text if len(text) <= length else f"{text[: length - 1]}…"


def did_you_mean(name: str, known: Collection[str]) -> str:
    """`` (did you mean 'x'?)`` if a known name is close, else an empty text."""
    close = closest(name, known)
    return f" (did you mean {close!r}?)" if close else ""


def side_hint(name: str, by: str, others: Collection[str]) -> str:
    """`` (the user has one: …)`` if the side that is not ``by`` has the name, else an empty text."""
    if name not in others:
        return ""
    return ' (the user has one: add "by": "user")' if by == "agent" else ' (the agent has one: drop "by")'


def closest(name: str, known: Collection[str], cutoff: float = 0.6) -> str | None:
    """The known name that is most like ``name``, if their likeness is at least ``cutoff``."""
    if len(name) > LONGEST_COMPARED:
        return None
    short = [one for one in known if len(one) <= LONGEST_COMPARED]
    return next(iter(get_close_matches(name, short, 1, cutoff)), None)


def filled(text: str, **parts: str) -> str:
    """``text`` with each ``{name}`` replaced by its value; braces inside the values stay."""
    return re.sub(r"\{(\w+)\}", lambda found: parts.get(found[1], found[0]), text)


def excerpt(text: str, length: int) -> str:
    """At most ``length`` characters of ``text``, in one line."""
    return cut(" ".join(text.split()), length)


def tamed(text: str) -> str:
    """Text of any number of lines for a terminal: control characters are shown as JSON writes them."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str, limit: int = LONGEST_TEXT) -> str:
    """Foreign text for a terminal: one line, no control characters, at most ``limit`` characters."""
    words = " ".join(_ESCAPE_SEQUENCE.sub("", text).split())
    plain = "".join(character for character in words if character.isprintable())
    return plain if len(plain) <= limit else f"{plain[: limit - 3]}..."


def apart(before: str, now: str, limit: int = 80, lead: int = 20) -> tuple[str, str]:
    """Both texts from ``lead`` characters before the first difference, each in one line of ``limit``."""
    pairs = zip(before, now, strict=False)
    start = max(0, sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs)) - lead)
    dots = "..." if start else ""
    one, other = (dots + one_line(text[start : start + limit + lead], limit) for text in (before, now))
    return one, other


def encodable(text: str) -> str:
    """``text`` with ``?`` for halves of surrogate pairs, which JSON can hold and UTF-8 cannot."""
    if text.isascii():
        return text
    return text.encode("utf-8", "replace").decode("utf-8")


def foreign_text(text: object, most: int = LONGEST_ERROR) -> str:
    """Text of foreign code that can be encoded, cut before it is searched, compared or stored."""
    if not isinstance(text, str):
        text = str(text) if isinstance(text, BaseException) else reprlib.repr(text)
    return encodable(text if len(text) <= most else f"{text[:most]}… [{len(text):,} characters]")


def foreign_name(name: object) -> str:
    """As ``foreign_text``, of a name."""
    if name.__class__ is str and len(name) <= LONGEST_NAME and name.isascii():
        return name
    return foreign_text(name, LONGEST_NAME)


def text_of(content: Any) -> str:
    """The text of a message's content: a str, None, or a list of parts."""
    if isinstance(content, str):
        return encodable(content)
    if not isinstance(content, list):
        return ""
    texts = [part.get("text") for part in content if isinstance(part, dict)]
    return encodable("\n".join(text for text in texts if isinstance(text, str)))


def call_line(name: str, arguments: Any, length: int | None = 1000) -> str:
    """``cancel_order({"order_id": "#W1"})``, the arguments cut after ``length`` characters."""
    return f"{name}({json_text(arguments, length)})"


def json_text(value: Any, length: int | None = None) -> str:
    """A value as JSON in one line, for people and models; cut after ``length`` characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if length is None else cut(text, length)


def names_of_own_tools(own: Any, bundled: list[dict[str, Any]]) -> list[str] | None:
    """The names in an agent's ``own`` list of tools; None if it has none, or the same as the bundle.

    A provider's tool is named by its type, anything that is not a tool by ``?``.
    """
    if not isinstance(own, list | tuple) or own == bundled:
        return None
    return [_name(tool) for tool in own]


def _name(tool: Any) -> str:
    if not isinstance(tool, dict):
        return "?"
    function = tool.get("function")
    named = function.get("name") if isinstance(function, dict) else tool.get("type")
    return foreign_name(named or "?")


def count(number: int, noun: str) -> str:
    """``1 row``, ``3 rows``."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def from_here(path: Path) -> Path:
    """The path relative to the working directory, as a person would type it."""
    try:
        return path.relative_to(Path.cwd())
    except (ValueError, FileNotFoundError):
        return path


def html_table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table for notebooks; None is an empty cell, a float has three decimals."""

    def cell(value: object) -> str:
        return "" if value is None else f"{value:.3f}" if isinstance(value, float) else escape(str(value))

    def line(tag: str, values: Iterable[object]) -> str:
        return f"<tr>{''.join(f'<{tag}>{cell(value)}</{tag}>' for value in values)}</tr>"

    body = "".join(line("td", row) for row in rows)
    return f"<table><caption>{escape(caption)}</caption>{line('th', headings)}{body}</table>"
