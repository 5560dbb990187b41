"""One statement on its way to SQLite, what comes back, and the judgement whether and where it may run."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.guards import Authorizer, Limits, Watch
from reward_kit.agent.database.row import Row, row_type
from reward_kit.agent.database.statement_text import describe_statement, is_blank
from reward_kit.errors import DatabaseError, QueryTimeoutError, ReadOnlyError

if TYPE_CHECKING:
    from reward_kit.agent.database.turns import Scope

Parameters = Mapping[str, Any] | Sequence[Any] | None
"""Values of named parameters (``:name``) by name, or of positional ones (``?``) in order."""

_TRANSACTION = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK"})
_SAVEPOINT = frozenset({"SAVEPOINT", "RELEASE", "ROLLBACK TO"})
_LARGE_BASE = 64 << 20


class Ticket:
    """Stands for a statement that runs on a thread; whoever no longer wants its answer sets ``over``."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class Statement:
    """``first``: of a query, only the first row is wanted.

    ``many``, if given, are the parameters of several runs; they take the place of ``parameters``.
    ``refusal`` is the text of the error if it writes, ``None`` where writing is allowed.  ``call`` is the
    tool call, if any, that was given the database on which it is run.  The connection sets ``scope``, the
    block that it belongs to, and ``ticket``, ``None`` while it holds up the event loop; the judge sets
    ``writes``.
    """

    __slots__ = ("call", "first", "many", "parameters", "refusal", "scope", "sql", "ticket", "writes")

    def __init__(
        self,
        sql: str,
        parameters: Parameters,
        refusal: str | None,
        *,
        first: bool = False,
        many: Sequence[Parameters] | None = None,
        call: Scope | None = None,
    ) -> None:
        self.sql = sql
        self.parameters = parameters
        self.first = first
        self.many = many
        self.refusal = refusal
        self.call = call
        self.scope: Scope | None = None
        self.ticket: Ticket | None = None
        self.writes = False


class Answer:
    """What a statement gave: ``columns`` is ``None`` for one that returns no rows.

    ``rowcount`` is the number of rows changed, -1 for anything but INSERT, REPLACE, UPDATE and DELETE.
    """

    __slots__ = ("columns", "lastrowid", "rowcount", "values")

    def __init__(
        self, columns: tuple[str, ...] | None, values: list[tuple[Any, ...]], rowcount: int, lastrowid: int
    ) -> None:
        self.columns = columns
        self.values = values
        self.rowcount = rowcount
        self.lastrowid = lastrowid

    def rows(self) -> list[Row]:
        """The rows with their column names."""
        return list(map(row_type(self.columns or ()), self.values))


class NotNowError(Exception):
    """A statement cannot be run at once on the event loop: it is not its turn, or it is ``slow``."""

    def __init__(self, *, slow: bool) -> None:
        super().__init__()
        self.slow = slow


class Judge:
    """Decides for one connection which statements may run, where, and when they have to stop.

    ``writes`` counts the statements that were let through and may have written.  ``changed_rows`` says
    whether an INSERT, REPLACE, UPDATE or DELETE has ended since whoever uses the connection began to.
    """

    def __init__(self, limits: Limits, base_size: int) -> None:
        self.limits = limits
        self.watch = Watch(limits.timeout)
        self.authorizer = Authorizer()
        self.writes = 0
        self.changed_rows = False
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
        scope = statement.scope
        if text.verb in _TRANSACTION or text.verb == "VACUUM":
            raise _not_for_statements(text.verb)
        if text.verb in _SAVEPOINT and scope is None:
            raise DatabaseError(
                f"{text.verb} needs a transaction around it", remedy="Use `async with db.transaction():`."
            )
        if statement.refusal is not None:
            raise ReadOnlyError(statement.refusal)
        statement.writes = True
        self.writes += 1
        first_write = scope is None or not scope.root.wrote
        if scope is not None and not scope.wrote:
            for each in scope.chain():
                each.wrote = True
        if statement.ticket is not None:
            return
        # stopping a write takes its whole transaction back: harmless as long as nothing else was written
        # in it
        if first_write and text.verb not in _SAVEPOINT:
            self.watch.allow(self.limits.inline_seconds)
        elif text.compound or self._large:
            raise NotNowError(slow=True)

    def interrupted(self) -> Exception:
        """The error for a statement that was stopped, by the reason for which it was."""
        if self.watch.reason == "budget":
            return NotNowError(slow=True)
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

    def several_statements(self) -> DatabaseError:
        """The error for SQL that holds more than one statement."""
        return DatabaseError("only one statement can be run at a time", remedy="Split the SQL.")


def storable_parameters(parameters: Parameters) -> Parameters:
    """``parameters`` with dates and times as ISO text.

    ``DatabaseError`` for a value that SQLite cannot hold, and for anything but a mapping or a sequence of
    values.
    """
    if parameters is None:
        return None
    if isinstance(parameters, Mapping):
        return {name: _storable(value, f":{name}") for name, value in parameters.items()}
    if not isinstance(parameters, Sequence) or isinstance(parameters, (str, bytes, bytearray)):
        raise DatabaseError(
            f"parameters must be a dict or a list, not {type(parameters).__name__}",
            remedy="Write `{'id': 7}` for `:id`, or `[7]` for `?`.",
        )
    return [_storable(value, f"number {position}") for position, value in enumerate(parameters, 1)]


def _storable(value: object, name: str) -> object:
    if value is None or isinstance(value, (float, bytes, bytearray, memoryview)):
        return value
    if isinstance(value, str):
        return _encodable(value, name)
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return value
        raise DatabaseError(f"parameter {name} does not fit into 64 bits: {value}")
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, (dt.date, dt.time)):
        return value.isoformat()
    raise DatabaseError(
        f"parameter {name} is a {type(value).__name__}, which SQLite cannot store",
        remedy="Pass text, a number, bytes, a date or None.",
    )


def _encodable(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DatabaseError(f"parameter {name} is not valid text: {error}") from error
    return text


def _not_for_statements(verb: str) -> DatabaseError:
    if verb == "VACUUM":
        return DatabaseError("VACUUM is not allowed here", remedy="A database is vacuumed when it is seeded.")
    return DatabaseError(
        f"{verb} is not allowed here: a tool call is one transaction, which ends with it",
        remedy="Use `async with db.transaction():` to group statements, or SAVEPOINT.",
    )
