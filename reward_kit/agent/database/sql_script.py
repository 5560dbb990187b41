"""A script of SQL as its single statements."""

from __future__ import annotations

import re
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_BLANK = re.compile(r"(?:\s+|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
# an unclosed quote or comment runs to the end of the script: SQLite then says what is wrong with it
_STOP = re.compile(
    r"""'[^']*'?|"[^"]*"?|`[^`]*`?|\[[^\]]*\]?|--[^\n]*|/\*.*?(?:\*/|\Z)|(?P<semicolon>;)""", re.DOTALL
)
_WORD = re.compile(r"\w*")


@dataclass(frozen=True, slots=True)
class ScriptStatement:
    """``line`` (from 1) is where ``sql`` begins in the script; blanks and comments before it are left out."""

    line: int
    sql: str

    def line_at(self, byte_offset: int) -> int:
        """The line of the script that holds the byte at ``byte_offset`` of the statement in UTF-8."""
        return self.line + self.sql.encode("utf-8", "surrogatepass")[: max(0, byte_offset)].count(b"\n")


def split_statements(script: str) -> Iterator[ScriptStatement]:
    """The statements of ``script`` in order, each with its semicolon.

    Semicolons in strings, quoted names, comments and the bodies of triggers do not end a statement.  What
    follows the last semicolon is a statement too, whether it is a complete one or not.
    """
    position = 1 if script.startswith("\ufeff") else 0
    line = 1
    while True:
        start = _skip_blank(script, position)
        if start == len(script):
            return
        line += script.count("\n", position, start)
        end = _end_of_statement(script, start)
        yield ScriptStatement(line, script[start:end])
        line += script.count("\n", start, end)
        position = end


def first_word(sql: str) -> str:
    """The first word of ``sql`` in capitals, after blanks and comments."""
    word = _WORD.match(sql, _skip_blank(sql, 0))
    return word[0].upper() if word else ""


def _skip_blank(script: str, position: int) -> int:
    blank = _BLANK.match(script, position)
    return blank.end() if blank else position


def _end_of_statement(script: str, start: int) -> int:
    for stop in _STOP.finditer(script, start):
        # SQLite's own judgement knows that the semicolons in the body of a trigger end nothing
        if stop["semicolon"] and sqlite3.complete_statement(script[start : stop.end()]):
            return stop.end()
    return len(script)
