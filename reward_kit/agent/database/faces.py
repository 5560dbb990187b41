"""Statements on one database: ``await db.fetch_all(sql, params)`` and its twin for ``def`` functions."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.pending import PendingLog, pending
from reward_kit.agent.database.scopes import BlockingTransaction, Scope, Transaction
from reward_kit.agent.database.statement import Answer, Parameters, Statement

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from sqlalchemy import TextClause

    from reward_kit.agent.database.connection import Connection
    from reward_kit.agent.database.row import Row
    from reward_kit.agent.database.sqlalchemy_result import StatementResult

_CHUNK = 500
"""``executemany`` lets other tasks run after this many parameter sets."""


class ExecuteResult:
    """The result of ``await db.execute(...)``.

    ``rows`` are the rows, ``rowcount`` the number of rows changed (-1 for anything but INSERT, REPLACE,
    UPDATE and DELETE), ``lastrowid`` the rowid inserted last.  Everything else (``scalar_one()``,
    ``all()``, ``mappings()``, ``fetchone()`` ...) is that of SQLAlchemy's ``Result``.
    """

    __slots__ = ("_answer", "_result", "lastrowid", "rowcount")

    def __init__(self, answer: Answer) -> None:
        self.rowcount = answer.rowcount
        self.lastrowid = answer.lastrowid
        self._answer = answer
        self._result: Any = None

    @property
    def rows(self) -> list[Row]:
        """All rows, usable as tuples, by column name and by attribute."""
        return self._answer.rows()

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._result is None:
            from reward_kit.agent.database.sqlalchemy_result import result_of

            self._result = result_of(self._answer)
        return getattr(self._result, name)


class _Face:
    def __init__(self, connection: Connection, refusal: str | None, call: Scope | None = None) -> None:
        self._connection = connection
        self._refusal = refusal
        self._call = call

    def _statement(self, sql: str | TextClause, params: Parameters, *, first: bool = False) -> Statement:
        if not isinstance(sql, str):
            from reward_kit.agent.database.sqlalchemy_result import plain_sql

            sql, params = plain_sql(sql, params)
        return Statement(sql, params, self._refusal, first=first, call=self._call)


class AsyncFace(_Face):
    """Statements for ``async def`` functions.

    Named parameters (``:name``) come from a dict, which may hold more than the statement uses; positional
    ones (``?``) from a list.  ``sql`` is one statement, a ``str`` or ``text()``.  All methods raise
    ``DatabaseError`` with SQLite's message; ``QueryTimeoutError`` after 10 s, ``TooManyRowsError`` beyond
    100 000 rows, ``ReadOnlyError`` for a write where only reading is allowed.  ``pending_log`` notes the
    awaitables that were not awaited.
    """

    pending_log: PendingLog | None = None

    @pending("db")
    async def execute(self, sql: str | TextClause, params: Parameters = None) -> ExecuteResult:
        """Run a statement of any kind."""
        return ExecuteResult(await self._connection.run(self._statement(sql, params)))

    @pending("db")
    async def fetch_all(self, sql: str | TextClause, params: Parameters = None) -> list[Row]:
        """All rows."""
        return (await self._connection.run(self._statement(sql, params))).rows()

    @pending("db")
    async def fetch_one(self, sql: str | TextClause, params: Parameters = None) -> Row | None:
        """The first row, or None."""
        rows = (await self._connection.run(self._statement(sql, params, first=True))).rows()
        return rows[0] if rows else None

    @pending("db")
    async def fetch_val(self, sql: str | TextClause, params: Parameters = None) -> Any:
        """The first column of the first row, or None."""
        values = (await self._connection.run(self._statement(sql, params, first=True))).values
        return values[0][0] if values else None

    @pending("db")
    async def executemany(self, sql: str, params: Iterable[Parameters]) -> int:
        """Run a statement for each set of parameters, all or none; returns the number of changed rows."""
        changed = 0
        remaining = iter(params)
        async with self.transaction():
            while chunk := list(islice(remaining, _CHUNK)):
                statement = Statement(sql, None, self._refusal, many=chunk, call=self._call)
                changed += max((await self._connection.run(statement)).rowcount, 0)
        return changed

    def transaction(self) -> Transaction:
        """``async with db.transaction():`` keeps the statements in it together, or none of them."""
        return Transaction(self._connection, self._call)


class SyncFace(_Face):
    """Statements for ``def`` functions, from any thread; parameters and errors are those of ``AsyncFace``."""

    def execute(self, sql: str | TextClause, params: Parameters = None) -> StatementResult:
        """Run a statement; the answer is a ``Result`` of SQLAlchemy 2 (``scalar_one()``, ``all()`` ...)."""
        from reward_kit.agent.database.sqlalchemy_result import result_of

        result: StatementResult = result_of(self._connection.run_blocking(self._statement(sql, params)))
        return result

    def fetch_all(self, sql: str | TextClause, params: Parameters = None) -> list[Row]:
        """All rows."""
        return self._connection.run_blocking(self._statement(sql, params)).rows()

    def fetch_one(self, sql: str | TextClause, params: Parameters = None) -> Row | None:
        """The first row, or None."""
        rows = self._connection.run_blocking(self._statement(sql, params, first=True)).rows()
        return rows[0] if rows else None

    def fetch_val(self, sql: str | TextClause, params: Parameters = None) -> Any:
        """The first column of the first row, or None."""
        values = self._connection.run_blocking(self._statement(sql, params, first=True)).values
        return values[0][0] if values else None

    def executemany(self, sql: str, params: Iterable[Parameters]) -> int:
        """Run a statement for each set of parameters, all or none; returns the number of changed rows."""
        with self.transaction():
            statement = Statement(sql, None, self._refusal, many=list(params), call=self._call)
            return max(self._connection.run_blocking(statement).rowcount, 0)

    def transaction(self) -> BlockingTransaction:
        """``with db.transaction():`` keeps the statements in it together, or none of them."""
        return BlockingTransaction(self._connection, self._call)
