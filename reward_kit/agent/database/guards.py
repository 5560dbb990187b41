"""The bounds of a statement of a tool or a reward: what it may do, where it may run, and for how long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from reward_kit.agent.database.sql_text import describe_statement, is_blank
from reward_kit.agent.database.statement import NotNowError
from reward_kit.errors import DatabaseError, QueryTimeoutError, ReadOnlyError

if TYPE_CHECKING:
    from reward_kit.agent.database.statement import Statement, Ticket

_OK = 0
_DENY = 1

# action codes of sqlite3_set_authorizer: the same for apsw and sqlite3, so that neither has to be
# imported here
_CREATE_VTABLE = 29
_PRAGMA = 19
_ATTACH = 24
_DETACH = 25
_FUNCTION = 31
_WATCHED = frozenset({_CREATE_VTABLE, _PRAGMA, _ATTACH, _DETACH, _FUNCTION})
_SCHEMA = frozenset({*range(1, 9), *range(10, 18), *range(26, 31)})
"""CREATE and DROP of tables (virtual and temporary ones too), indexes, triggers and views; ALTER, REINDEX,
ANALYZE.
"""

_TEMPORARY = frozenset(range(3, 7))
_TRANSACTION = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK"})
_SAVEPOINT = frozenset({"SAVEPOINT", "RELEASE", "ROLLBACK TO"})
_LARGE_BASE = 64 << 20

# identifiers of sqlite3_limit
_LIMIT_LENGTH = 0
_LIMIT_SQL_LENGTH = 1
_LIMIT_ATTACHED = 7
_LIMIT_LIKE_PATTERN_LENGTH = 8

_PRAGMAS_WITH_ARGUMENT = frozenset(
    {
        "defer_foreign_keys", "foreign_key_check", "foreign_key_list", "index_info", "index_list",
        "index_xinfo", "integrity_check", "quick_check", "table_info", "table_list", "table_xinfo",
    }
)  # fmt: skip
_PRAGMAS = _PRAGMAS_WITH_ARGUMENT | frozenset(
    {
        "application_id", "collation_list", "compile_options", "data_version", "encoding",
        "foreign_keys", "freelist_count", "function_list", "journal_mode", "module_list",
        "page_count", "page_size", "pragma_list", "schema_version", "user_version",
    }
)  # fmt: skip
_FUNCTIONS = frozenset({"load_extension", "fts3_tokenizer"})
_MODULES = frozenset({"fts3", "fts4", "fts5", "fts5vocab", "fts4aux", "rtree", "rtree_i32", "geopoly"})

PROGRESS_STEPS = 2000
"""Instructions of SQLite's virtual machine between two looks at the clock: some 0.05 ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what a statement may take.

    A statement is stopped after ``timeout`` seconds.  One that holds up the event loop for more than
    ``inline_seconds`` is started again on a thread, if that cannot lose anything.  A query may return
    ``max_rows`` rows with some ``max_result_bytes`` in them.  A string or blob may have
    ``max_value_bytes``, a statement ``max_sql_bytes``; a database may grow by ``max_growth_bytes``.
    """

    timeout: float = 10.0
    inline_seconds: float = 0.003
    max_rows: int = 100_000
    max_result_bytes: int = 256 << 20
    max_value_bytes: int = 64 << 20
    max_sql_bytes: int = 1 << 20
    max_growth_bytes: int = 1 << 30


def numeric_limits(limits: Limits) -> tuple[tuple[int, int], ...]:
    """The run-time limits of SQLite: their identifiers and values."""
    return (
        (_LIMIT_LENGTH, limits.max_value_bytes),
        (_LIMIT_SQL_LENGTH, limits.max_sql_bytes),
        (_LIMIT_ATTACHED, 0),
        # matching takes time exponential in the number of wildcards, inside one instruction that nothing
        # stops
        (_LIMIT_LIKE_PATTERN_LENGTH, 1000),
    )


class Authorizer:
    """SQLite's authorizer callback.

    ``refused`` is the action refused last, ``schema_touched`` is true once a statement would change the
    schema, ``temporary`` once one would make something temporary.

    Reaching out of the database (ATTACH, extensions, virtual tables over files) and switching its safety off
    (most PRAGMAs) is refused; reading and changing data and schema is not.
    """

    __slots__ = ("refused", "schema_touched", "temporary")

    def __init__(self) -> None:
        self.refused: str | None = None
        self.schema_touched = False
        self.temporary = False

    def __call__(
        self, action: int, name: str | None, argument: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if action in _SCHEMA:
            self.schema_touched = True
            self.temporary = self.temporary or action in _TEMPORARY
        if action not in _WATCHED:
            return _OK
        refusal = _refusal(action, name or "", argument)
        if refusal is None:
            return _OK
        self.refused = refusal
        return _DENY


def _refusal(action: int, name: str, argument: str | None) -> str | None:
    folded = name.lower()
    if action == _PRAGMA:
        allowed = _PRAGMAS if argument is None else _PRAGMAS_WITH_ARGUMENT
        setting = "" if argument is None else f" = {argument}"
        return None if folded in allowed else f"PRAGMA {name}{setting}"
    if action == _FUNCTION:
        function = (argument or "").lower()  # SQLite passes the name of a function as the second argument
        return f"the function {function}()" if function in _FUNCTIONS else None
    if action == _CREATE_VTABLE:
        module = (argument or "").lower()
        return None if module in _MODULES else f"a virtual table of the kind {module}"
    return "ATTACH" if action == _ATTACH else "DETACH"


class Watch:
    """SQLite's progress callback: looks at the clock while a statement runs and stops it at its limit.

    ``reason`` is why it did: ``"budget"`` (held up the event loop), ``"timeout"``, ``"over"`` (its answer is
    no longer wanted).
    """

    __slots__ = ("_budget", "_running", "_started", "_ticket", "_timeout", "reason")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._running = False
        self._budget: float | None = None
        self._ticket: Ticket | None = None
        self._started: float | None = None
        self.reason: Literal["budget", "timeout", "over"] | None = None

    def start(self, ticket: Ticket | None) -> None:
        """A statement begins; its clock starts at the first look at it."""
        self._ticket = ticket
        self._budget = None
        self._started = None
        self.reason = None
        self._running = True

    def allow(self, seconds: float) -> None:
        """Stop the statement after ``seconds``: it may be started again elsewhere."""
        self._budget = seconds

    def stop(self) -> None:
        """The statement is over; this package's own statements have no limit."""
        self._running = False
        self._ticket = None

    def __call__(self) -> bool:
        if not self._running:
            return False
        if self._ticket is not None and self._ticket.over:
            self.reason = "over"
            return True
        now = time.perf_counter()
        if self._started is None:
            self._started = now
            return False
        seconds = now - self._started
        if seconds > self._timeout:
            self.reason = "timeout"
        elif self._budget is not None and seconds > self._budget:
            self.reason = "budget"
        return self.reason is not None


class Guard:
    """Decides for one SQLite connection which statements may run, in which thread, and for how long."""

    def __init__(self, limits: Limits, base_size: int) -> None:
        self.limits = limits
        self.watch = Watch(limits.timeout)
        self.authorizer = Authorizer()
        self._large = base_size > _LARGE_BASE

    def admit(self, statement: Statement, *, reads: bool, returns_rows: bool) -> None:
        """Called between preparing a statement and its first step; raises if it may not run (here)."""
        if reads and returns_rows:
            if statement.ticket is None:
                self.watch.allow(self.limits.inline_seconds)
            return
        text = describe_statement(statement.sql)
        if not text.verb and is_blank(statement.sql):
            raise DatabaseError("the SQL holds no statement")
        if text.verb in _TRANSACTION or text.verb == "VACUUM":
            raise _not_for_statements(text.verb)
        if text.verb in _SAVEPOINT and not statement.in_transaction:
            raise DatabaseError(
                f"{text.verb} needs a transaction around it", remedy="Use `async with db.transaction():`."
            )
        if statement.refusal is not None:
            raise ReadOnlyError(statement.refusal)
        statement.writes = True
        if statement.ticket is not None:
            return
        # stopping a write takes its whole transaction back: harmless as long as nothing else was written
        # in it
        if statement.first_write and text.verb not in _SAVEPOINT:
            self.watch.allow(self.limits.inline_seconds)
        elif text.compound or self._large:
            raise NotNowError

    def interrupted(self) -> Exception:
        """The error for a statement that was stopped, by the reason for which it was."""
        if self.watch.reason == "budget":
            return NotNowError()
        if self.watch.reason == "timeout":
            return QueryTimeoutError(
                f"the statement was stopped after {self.limits.timeout:g} s",
                remedy="Ask for less, or give the seed an index for it.",
            )
        self.watch.reason = "over"  # the interruption may have come before the watch looked
        return DatabaseError("the statement was stopped because nobody waits for it any more")

    def denied(self, message: str) -> DatabaseError:
        """The error for a statement that SQLite refused, for which it or the authorizer gives the reason."""
        refused, self.authorizer.refused = self.authorizer.refused, None
        if refused:
            return DatabaseError(f"{refused} is not allowed here")
        # apsw adds a position that means nothing to whoever wrote the statement
        return DatabaseError(" ".join(message.partition("Current offset is")[0].split()))


def several_statements() -> DatabaseError:
    """The error for SQL that holds more than one statement."""
    return DatabaseError("only one statement can be run at a time", remedy="Split the SQL.")


def _not_for_statements(verb: str) -> DatabaseError:
    if verb == "VACUUM":
        return DatabaseError("VACUUM is not allowed here", remedy="A database is vacuumed when it is seeded.")
    return DatabaseError(
        f"{verb} is not allowed here: a tool call is one transaction, which ends with it",
        remedy="Use `async with db.transaction():` to group statements, or SAVEPOINT.",
    )
