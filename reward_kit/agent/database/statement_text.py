"""What can be told from the text of a SQL statement before SQLite sees it."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

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
        """Whether it is INSERT, REPLACE, UPDATE or DELETE."""
        return self.verb in _ROW_CHANGES

    @property
    def is_query(self) -> bool:
        """Whether it reads and changes no setting either."""
        return self.verb in _QUERIES

    @property
    def reads(self) -> bool:
        """Whether it is of a kind that cannot write."""
        return self.verb in _READS


def describe_statement(sql: str) -> StatementText:
    """Classify ``sql`` (a single statement)."""
    if len(sql) > _CACHED_LENGTH:
        return _describe(sql)
    return _describe_cached(sql)


def is_blank(sql: str) -> bool:
    """Whether ``sql`` holds nothing but blanks, comments and semicolons."""
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
