"""The bounds of a statement of a tool or a reward: what it may do, in which thread, and for how long."""

from __future__ import annotations

import functools
import re
import sqlite3
import time
from typing import TYPE_CHECKING, Literal, NamedTuple

from reward_kit.errors import DatabaseError, QueryTimeoutError, ReadOnlyError

if TYPE_CHECKING:
    from reward_kit.agent.database.statement import Limits, Statement

PROGRESS_STEPS = 2000
"""Instructions of SQLite's virtual machine between two looks at the clock: some 0.05 ms."""
_LARGE_BASE = 16 << 20
"""Size of a base (bytes) from which on even a simple write may take long."""

# codes of sqlite3_set_authorizer: the same for apsw and sqlite3
_OK, _DENY = 0, 1
_PRAGMA, _ATTACH, _DETACH, _CREATE_VTABLE, _FUNCTION = 19, 24, 25, 29, 31
_WATCHED = frozenset({_PRAGMA, _ATTACH, _DETACH, _CREATE_VTABLE, _FUNCTION})
_SCHEMA = frozenset({1, 2, 7, 8, 10, 11, 16, 17, *range(26, 31)})
"""CREATE and DROP of tables, virtual ones too, indexes, triggers and views; ALTER, REINDEX, ANALYZE."""
_TEMPORARY = frozenset({*range(3, 7), *range(12, 16)})
"""CREATE and DROP of what is temporary."""

_PRAGMAS_WITH_ARGUMENT = frozenset(
    {
        "defer_foreign_keys", "foreign_key_check", "foreign_key_list", "index_info", "index_list",
        "index_xinfo", "integrity_check", "quick_check", "table_info", "table_list", "table_xinfo",
    }
)  # fmt: skip
PRAGMAS = _PRAGMAS_WITH_ARGUMENT | frozenset(
    {
        "application_id", "collation_list", "compile_options", "data_version", "encoding",
        "foreign_keys", "freelist_count", "function_list", "journal_mode", "module_list",
        "page_count", "page_size", "pragma_list", "schema_version", "user_version",
    }
)  # fmt: skip
"""PRAGMAs that may be read."""
UNSAFE_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer"})
_MODULES = frozenset({"fts3", "fts4", "fts5", "fts5vocab", "fts4aux", "rtree", "rtree_i32", "geopoly"})

_TOKEN = re.compile(
    r"""\s+ | --[^\n]* | /\*.*?(?:\*/|\Z)  # blanks and comments are the alternatives without a group
      | (?P<word>[A-Za-z_]\w*)
      | (?P<other>'(?:[^']|'')*'? | "(?:[^"]|"")*"? | `[^`]*`? | \[[^\]]*\]? | .)""",
    re.VERBOSE | re.DOTALL,
)
_ROW_CHANGES = frozenset({"INSERT", "REPLACE", "UPDATE", "DELETE"})
_QUERIES = frozenset({"SELECT", "VALUES"})
_READS = _QUERIES | {"EXPLAIN", "PRAGMA"}
_TRANSACTION = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK"})
_SAVEPOINT = frozenset({"SAVEPOINT", "RELEASE", "ROLLBACK TO"})
_QUERY = re.compile(r"\bSELECT\b", re.IGNORECASE)
_UPDATE_QUERY = re.compile(r"\b(?:SELECT|FROM)\b", re.IGNORECASE)


class NotNowError(Exception):
    """A statement is too slow for the event loop's thread."""


class StatementText(NamedTuple):
    """The kind of a statement, by its text.

    ``verb`` is the first keyword (after a WITH clause: the statement's own; also ``ROLLBACK TO``, and
    ``PRAGMA =`` for a setting); empty if there is none.  ``compound``: it contains a query, so that the
    running time of a write has no bound that the size of its table would set.
    """

    verb: str
    compound: bool
    is_query: bool
    reads: bool
    changes_rows: bool


@functools.lru_cache(maxsize=512)
def describe_statement(sql: str) -> StatementText:
    """Classify ``sql`` (a single statement)."""
    verb = _verb(sql)
    if verb == "PRAGMA" and "=" in sql:
        verb = "PRAGMA ="
    # a word inside a string may be mistaken for a query here: that costs a change of thread and nothing else
    inner = _UPDATE_QUERY if verb == "UPDATE" else _QUERY
    compound = inner.search(sql) is not None
    return StatementText(verb, compound, verb in _QUERIES, verb in _READS, verb in _ROW_CHANGES)


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
            elif not verb or (verb == "WITH" and depth == 0 and word in _QUERIES | _ROW_CHANGES):
                return word
    return verb


def without_tail(sql: str) -> str:
    """``sql`` without the blanks, comments and semicolons at its end."""
    ends = [match.end() for match in _TOKEN.finditer(sql) if match.lastgroup and match.group() != ";"]
    return sql[: ends[-1]] if ends else ""


def numeric_limits(limits: Limits) -> tuple[tuple[int, int], ...]:
    """The run-time limits of SQLite: their identifiers and values."""
    return (
        (sqlite3.SQLITE_LIMIT_LENGTH, limits.max_value_bytes),
        (sqlite3.SQLITE_LIMIT_SQL_LENGTH, limits.max_sql_bytes),
        (sqlite3.SQLITE_LIMIT_ATTACHED, 0),
        # matching takes time exponential in the number of wildcards, within one instruction
        (sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH, 1000),
    )


class Guard:
    """Decides for one SQLite connection which statements may run, in which thread, and for how long.

    ``schema_changed`` becomes true with the first statement that would change the schema, ``can_cache`` false
    also with one that makes something temporary: a statement that was prepared before reports the columns
    that there were.  ``statement`` is the one that runs; None for this package's own, which have no limit.
    """

    def __init__(self, limits: Limits, base_size: int) -> None:
        self.limits = limits
        self.schema_changed = False
        self.can_cache = True
        self.stopped: Literal["budget", "timeout", "over"] | None = None
        self._large = base_size > _LARGE_BASE
        self._refused: str | None = None
        self.statement: Statement | None = None

    def admit(self, statement: Statement) -> None:
        """Called between preparing a statement that may write and its first step.

        Raises if it may not run, ``NotNowError`` if not in this thread.
        """
        text = describe_statement(statement.sql)
        if not text.verb and not without_tail(statement.sql):
            raise DatabaseError("the SQL holds no statement")
        if text.verb == "VACUUM":
            remedy = "A seed may end with it."
            raise DatabaseError("VACUUM is not allowed here", remedy=remedy)
        if text.verb in _TRANSACTION:
            raise DatabaseError(
                f"{text.verb} is not allowed here: a tool call is one transaction, which ends with it",
                remedy="Use `async with db.transaction():` to group statements, or SAVEPOINT.",
            )
        if text.verb in _SAVEPOINT and not statement.in_transaction:
            raise DatabaseError(
                f"{text.verb} needs a transaction around it", remedy="Use `async with db.transaction():`."
            )
        if statement.refusal is not None:
            raise ReadOnlyError(statement.refusal)
        # a write that is stopped takes its transaction with it, so it starts where it can go on to its end
        if not statement.in_thread and not self.is_quick(text):
            raise NotNowError
        statement.writes = True

    def is_quick(self, text: StatementText) -> bool:
        """True if a write takes no longer than the event loop's thread can wait."""
        return not (text.compound or self._large)

    def authorize(
        self, action: int, name: str | None, argument: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        """SQLite's authorizer.

        Refuses what reaches out of the database (ATTACH, extensions, virtual tables over files) or switches
        its safety off (most PRAGMAs); allows reading and changing data and schema.
        """
        if action in _SCHEMA:
            self.schema_changed = True
            self.can_cache = False
        elif action in _TEMPORARY:
            self.can_cache = False
        if action not in _WATCHED or self.statement is None:
            return _OK
        refusal = _refusal(action, name or "", argument)
        self._refused = refusal or self._refused
        return _DENY if refusal else _OK

    def progress(self) -> bool:
        """SQLite's progress callback: true stops the running statement; ``stopped`` is the reason."""
        statement = self.statement
        if statement is None:
            return False
        now = time.perf_counter()
        if statement.started is None:
            statement.started = now
        seconds = now - statement.started
        if statement.over:
            self.stopped = "over"
        elif seconds > self.limits.timeout:
            self.stopped = "timeout"
        elif seconds > self.limits.inline_seconds and not (statement.writes or statement.in_thread):
            self.stopped = "budget"
        return self.stopped is not None

    def error(self, message: str) -> Exception:
        """The error for a statement that SQLite stopped or refused with ``message``."""
        if self.stopped == "budget":
            return NotNowError()
        if self.stopped == "timeout":
            return QueryTimeoutError(
                f"the statement was stopped after {self.limits.timeout:g} s",
                remedy="Ask for less, or give the seed an index for it.",
            )
        if self.stopped == "over":
            return DatabaseError("the statement was stopped: its result is no longer wanted")
        refused, self._refused = self._refused, None
        if refused:
            return DatabaseError(f"{refused} is not allowed here")
        # apsw adds a position that means nothing to the author of the statement
        return DatabaseError(" ".join(message.partition("Current offset is")[0].split()))


def _refusal(action: int, name: str, argument: str | None) -> str | None:
    if action == _PRAGMA:
        allowed = PRAGMAS if argument is None else _PRAGMAS_WITH_ARGUMENT
        setting = "" if argument is None else f" = {argument}"
        return None if name.lower() in allowed else f"PRAGMA {name}{setting}"
    if action == _FUNCTION:
        function = (argument or "").lower()  # SQLite passes the name of a function as the second argument
        return f"the function {function}()" if function in UNSAFE_FUNCTIONS else None
    if action == _CREATE_VTABLE:
        module = (argument or "").lower()
        return None if module in _MODULES else f"a virtual table of the kind {module}"
    return "ATTACH" if action == _ATTACH else "DETACH"


def several_statements() -> DatabaseError:
    """The error for SQL that holds more than one statement."""
    return DatabaseError("only one statement can be run at a time", remedy="Split the SQL.")
