"""Reader of the objects that models write: JSON, and text that is nearly JSON.

Beyond JSON it takes single quotes, Python's ``None``, ``True`` and ``False``, words without quotes, commas
before a closing bracket, line breaks and stray quotes inside of strings. It never completes what is cut off:
a call with half of its arguments must not be made.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import MAX_DEPTH, finite

if TYPE_CHECKING:
    from collections.abc import Iterator

_QUOTES = ('"', "'")
_WORD = re.compile(r"[^\s,:{}\[\]\"'`]+")
_SPACE = re.compile(r"\s*")
_AFTER_STRING = re.compile(r"\s*(?:[,:}\]]|$)")
_ENDS = {quote: re.compile(rf"\\.|{quote}", re.DOTALL) for quote in _QUOTES}
_ESCAPES = re.compile(r"\\(?:u[0-9a-fA-F]{4}|[\"\\/bfnrt])|\\(.)|\"", re.DOTALL)
_CONSTANTS = {"None": None, "True": True, "False": False}


def read_object(text: str, start: int) -> tuple[dict[str, Any], int]:
    """The object that begins with the brace at ``start``, and the position behind it.

    Raises ``ValueError`` that says what is wrong, in words for the model that wrote it.
    """
    try:
        found, end = _JSON.raw_decode(text, start)
    except (ValueError, RecursionError):
        reader = _LenientReader(text, start)
        return reader.object(1), reader.position
    return found, end


_JSON = json.JSONDecoder(strict=False, parse_constant=finite, parse_float=finite)


class _LenientReader:
    """Reads values one after the other; ``position`` is behind what was read."""

    def __init__(self, text: str, position: int) -> None:
        self.text = text
        self.position = position

    def object(self, depth: int) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for character in self._items("}"):
            key = self._string() if character in _QUOTES else self._word()
            if self._next() != ":":
                raise self._fault(f"a colon is missing after {key!r}"[:80])
            self.position += 1
            found[key] = self._value(depth)
        return found

    def _items(self, closing: str) -> Iterator[str]:
        """Pass over brackets and commas; yields the first character of each item, which is read meanwhile."""
        self.position += 1
        while (character := self._next()) != closing:
            yield character
            if self._next() == ",":
                self.position += 1
            elif self._next() != closing:
                raise self._fault("a comma is missing")
        self.position += 1

    def _value(self, depth: int) -> Any:
        character = self._next()
        if depth >= MAX_DEPTH:
            raise ValueError("the JSON object is nested too deeply")
        if character == "{":
            return self.object(depth + 1)
        if character == "[":
            return [self._value(depth + 1) for _ in self._items("]")]
        if character in _QUOTES:
            return self._string()
        word = self._word()
        if word in _CONSTANTS:
            return _CONSTANTS[word]
        try:
            return _JSON.decode(word)
        except ValueError:
            return word

    def _string(self) -> str:
        """A string; a quote that is followed by neither a comma, colon, bracket nor the end belongs to it."""
        begin = self.position + 1
        for found in _ENDS[self.text[self.position]].finditer(self.text, begin):
            if found[0][0] != "\\" and _AFTER_STRING.match(self.text, found.end()):
                self.position = found.end()
                body = _ESCAPES.sub(_escaped, self.text[begin : found.start()])
                return str(json.loads(f'"{body}"', strict=False))
        raise ValueError("a string in the JSON object is not closed")

    def _word(self) -> str:
        found = _WORD.match(self.text, self.position)
        if found is None:
            raise self._fault("a value or name is missing")
        self.position = found.end()
        return found[0]

    def _next(self) -> str:
        """The character after white space, which is passed over; ``ValueError`` at the end of the text."""
        found = _SPACE.match(self.text, self.position)
        assert found is not None  # it matches nothing at all as well
        self.position = found.end()
        if self.position == len(self.text):
            raise ValueError("the JSON object is not closed")
        return self.text[self.position]

    def _fault(self, fault: str) -> ValueError:
        before = self.text[max(0, self.position - 20) : self.position]
        return ValueError(f"the JSON object is malformed: {fault} (after {before!r})")


def _escaped(found: re.Match[str]) -> str:
    """The part of a JSON string that stands for a quote or an escape that JSON does not know."""
    if found[0] == '"':
        return '\\"'
    if found[1] is None:
        return found[0]
    return "'" if found[1] == "'" else f"\\\\{found[1]}"
