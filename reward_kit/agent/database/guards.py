"""What a statement of a tool or a reward may do, and for how long."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal, Protocol

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

# identifiers of sqlite3_limit
_LIMIT_LENGTH = 0
_LIMIT_SQL_LENGTH = 1
_LIMIT_ATTACHED = 7
_LIMIT_LIKE_PATTERN_LENGTH = 8

_PRAGMAS_WITH_ARGUMENT = frozenset(
    {
        "defer_foreign_keys",
        "foreign_key_check",
        "foreign_key_list",
        "index_info",
        "index_list",
        "index_xinfo",
        "integrity_check",
        "quick_check",
        "table_info",
        "table_list",
        "table_xinfo",
    }
)
_PRAGMAS = _PRAGMAS_WITH_ARGUMENT | {
    "application_id",
    "collation_list",
    "compile_options",
    "data_version",
    "encoding",
    "foreign_keys",
    "freelist_count",
    "function_list",
    "journal_mode",
    "module_list",
    "page_count",
    "page_size",
    "pragma_list",
    "schema_version",
    "user_version",
}
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

    ``refused`` says what was refused last, ``schema_touched`` whether a statement would change the schema.

    Reaching out of the database (ATTACH, extensions, virtual tables over files) and switching its safety off
    (most PRAGMAs) is refused; reading and changing data and schema is not.
    """

    __slots__ = ("refused", "schema_touched")

    def __init__(self) -> None:
        self.refused: str | None = None
        self.schema_touched = False

    def __call__(
        self, action: int, name: str | None, argument: str | None, _database: str | None, _trigger: str | None
    ) -> int:
        if action in _SCHEMA:
            self.schema_touched = True
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


class Stoppable(Protocol):
    """A statement's owner, which may lose interest in it."""

    over: bool


class Watch:
    """SQLite's progress callback: looks at the clock while a statement runs and says when it has to stop.

    ``reason`` says why it did: ``"budget"`` (held up the event loop), ``"timeout"``, ``"over"`` (nobody
    waits for the statement any more).
    """

    __slots__ = ("_budget", "_owner", "_running", "_started", "_timeout", "reason")

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._running = False
        self._budget: float | None = None
        self._owner: Stoppable | None = None
        self._started: float | None = None
        self.reason: Literal["budget", "timeout", "over"] | None = None

    def start(self, owner: Stoppable | None) -> None:
        """A statement begins; its clock starts at the first look at it."""
        self._owner = owner
        self._budget = None
        self._started = None
        self.reason = None
        self._running = True

    def allow(self, seconds: float) -> None:
        """The statement may be started again elsewhere, so stop it after ``seconds``."""
        self._budget = seconds

    def stop(self) -> None:
        """The statement is over; what this package itself asks of SQLite is not limited."""
        self._running = False
        self._owner = None

    def __call__(self) -> bool:
        if not self._running:
            return False
        if self._owner is not None and self._owner.over:
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
