"""What ``def`` tools and rewards hold: ``db.execute(sql, params)`` that answers as SQLAlchemy does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.scopes import BlockingTransaction
from reward_kit.agent.database.statement import Answer, Parameters, Statement

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import TextClause

    from reward_kit.agent.database.connection import Connection
    from reward_kit.agent.database.row import Row
    from reward_kit.agent.database.sqlalchemy_result import StatementResult
    from reward_kit.agent.database.turns import Scope


class SyncFace:
    """Statements on one database, from any thread; parameters and errors are those of ``AsyncFace``."""

    def __init__(self, connection: Connection, refusal: str | None, call: Scope | None = None) -> None:
        self._connection = connection
        self._refusal = refusal
        self._call = call

    def execute(self, sql: str | TextClause, params: Parameters = None) -> StatementResult:
        """Run a statement; the answer is a ``Result`` of SQLAlchemy 2 (``scalar_one()``, ``all()`` ...)."""
        from reward_kit.agent.database.sqlalchemy_result import StatementResult

        return StatementResult(self._run(sql, params))

    def fetch_all(self, sql: str | TextClause, params: Parameters = None) -> list[Row]:
        """All rows."""
        return self._run(sql, params).rows()

    def fetch_one(self, sql: str | TextClause, params: Parameters = None) -> Row | None:
        """The first row, or ``None``."""
        rows = self._run(sql, params, first=True).rows()
        return rows[0] if rows else None

    def fetch_val(self, sql: str | TextClause, params: Parameters = None) -> Any:
        """The first column of the first row, or ``None``."""
        values = self._run(sql, params, first=True).values
        return values[0][0] if values else None

    def executemany(self, sql: str, params: Iterable[Parameters]) -> int:
        """Run a statement once for each set of parameters, all or none; returns how many rows changed."""
        with self.transaction():
            answer = self._connection.run_blocking(
                Statement(sql, None, self._refusal, many=list(params), call=self._call)
            )
        return max(answer.rowcount, 0)

    def transaction(self) -> BlockingTransaction:
        """``with db.transaction():`` keeps the statements in it together, or none of them."""
        return BlockingTransaction(self._connection, self._call)

    def _run(self, sql: str | TextClause, params: Parameters, *, first: bool = False) -> Answer:
        if not isinstance(sql, str):
            from reward_kit.agent.database.sqlalchemy_result import plain_sql

            sql, params = plain_sql(sql, params)
        statement = Statement(sql, params, self._refusal, first=first, call=self._call)
        return self._connection.run_blocking(statement)
