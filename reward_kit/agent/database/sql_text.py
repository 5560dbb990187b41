"""The text of SQL: the statements of a script, and the kind of a statement before SQLite sees it."""

from __future__ import annotations

import functools
import re
import sqlite3
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?(?:\*/|\Z)  # blanks and comments are the alternatives without a group
      | (?P<word>[A-Za-z_]\w*)
      | (?P<other>'(?:[^']|'')*'? | "(?:[^"]|"")*"? | `[^`]*`? | \[[^\]]*\]? | .)""",
    re.VERBOSE | re.DOTALL,
)
_MAIN_VERBS = frozenset({"SELECT", "VALUES", "INSERT", "REPLACE", "UPDATE", "DELETE"})
_ROW_CHANGES = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE"})
_QUERIES = frozenset({"SELECT", "VALUES"})
_READS = _QUERIES | {"EXPLAIN", "PRAGMA"}
_QUERY = re.compile(r"\bSELECT\b", re.IGNORECASE)
_UPDATE_QUERY = re.compile(r"\b(?:SELECT|FROM)\b", re.IGNORECASE)
_CACHED_LENGTH = 4096
_BLANK = re.compile(r"(?:\s+|;|--[^\n]*|/\*.*?(?:\*/|\Z))*", re.DOTALL)
# an unclosed quote or comment runs to the end of the script: SQLite then says what is wrong with it
_STOP = re.compile(
    r"""'[^']*'?|"[^"]*"?|`[^`]*`?|\[[^\]]*\]?|--[^\n]*|/\*.*?(?:\*/|\Z)|(?P<semicolon>;)""", re.DOTALL
)
_WORD = re.compile(r"\w*")


@dataclass(frozen=True, slots=True)
class StatementText:
    """``verb`` is the first keyword (after a WITH clause: the statement's own; also ``ROLLBACK TO``, and
    ``PRAGMA =`` for a setting).

    ``compound`` says whether the statement contains another query, so that its running time has no bound that
    the size of the tables would set.
    """

    verb: str
    compound: bool

    @property
    def changes_rows(self) -> bool:
        """True for INSERT, REPLACE, UPDATE and DELETE."""
        return self.verb in _ROW_CHANGES

    @property
    def is_query(self) -> bool:
        """True if it reads and changes no setting either."""
        return self.verb in _QUERIES

    @property
    def reads(self) -> bool:
        """True if it is of a kind that cannot write."""
        return self.verb in _READS


def describe_statement(sql: str) -> StatementText:
    """Classify ``sql`` (a single statement)."""
    if len(sql) > _CACHED_LENGTH:
        return _describe(sql)
    return _describe_cached(sql)


def is_blank(sql: str) -> bool:
    """True if ``sql`` holds nothing but blanks, comments and semicolons."""
    return not without_tail(sql)


def without_tail(sql: str) -> str:
    """``sql`` without the blanks, comments and semicolons at its end."""
    ends = [
        match.end() for match in _TOKEN.finditer(sql) if match.lastgroup is not None and match.group() != ";"
    ]
    return sql[: ends[-1]] if ends else ""


def _describe(sql: str) -> StatementText:
    verb = _verb(sql)
    if verb == "PRAGMA" and "=" in sql:
        return StatementText("PRAGMA =", compound=False)
    if verb in _READS:
        return StatementText(verb, compound=True)
    # a word inside a string may be mistaken for a query here: that costs a change of thread and nothing else
    inner = _UPDATE_QUERY if verb == "UPDATE" else _QUERY
    return StatementText(verb, compound=inner.search(sql) is not None)


def _verb(sql: str) -> str:
    verb = ""
    depth = 0
    for match in _TOKEN.finditer(sql):
        if match.lastgroup == "other":
            depth += {"(": 1, ")": -1}.get(match.group(), 0)
        elif match.lastgroup == "word":
            word = match.group().upper()
            if verb == "ROLLBACK" and word == "TO":
                return "ROLLBACK TO"
            if not verb and word in ("WITH", "ROLLBACK"):
                verb = word
            elif not verb or (verb == "WITH" and depth == 0 and word in _MAIN_VERBS):
                return word
    return verb


_describe_cached = functools.lru_cache(maxsize=4096)(_describe)


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
