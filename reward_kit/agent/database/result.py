"""SQLAlchemy's ``Result`` over rows that are fetched already."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from sqlalchemy import Row, TextClause
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import ResourceClosedError, SQLAlchemyError

from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.database.statement import ExecuteResult, Parameters

_dialect = sqlite.dialect(paramstyle="named")


class StatementResult(IteratorResult[Any]):
    """The result of a statement, with the attributes that those of SQLAlchemy's engines have.

    ``rowcount`` is the number of rows changed, -1 for anything but INSERT, REPLACE, UPDATE and DELETE.
    ``returns_rows`` is false for most of these: asking for a row then raises ``ResourceClosedError``.
    """

    def __init__(self, answer: ExecuteResult) -> None:
        self.rowcount, self.lastrowid = answer.rowcount, answer.lastrowid
        self.returns_rows = answer.columns is not None
        rows = iter(answer.values) if self.returns_rows else _no_rows()
        super().__init__(SimpleResultMetaData(answer.columns or ("",)), rows)

    def fetchmany(self, size: int | None = None) -> Sequence[Row[Any]]:
        """The next ``size`` rows, one if it is not given."""
        return super().fetchmany(1 if size is None else size)


def _no_rows() -> Iterator[tuple[Any, ...]]:
    fault = "This result object does not return rows. It has been closed automatically."
    raise ResourceClosedError(fault)
    yield ()


def plain_sql(sql: object, parameters: Parameters) -> tuple[str, Parameters]:
    """SQL and parameters of ``text()``, its own included; ``DatabaseError`` for anything else."""
    if not isinstance(sql, TextClause):
        raise DatabaseError(
            f"SQL must be a str or sqlalchemy.text(), not {type(sql).__name__}",
            remedy='Other expressions run on `db.engine`, which tools have with database="file".',
        )
    compiled = sql.compile(dialect=_dialect)
    if parameters is not None and not isinstance(parameters, Mapping):
        return str(compiled), parameters
    try:
        state = compiled.construct_expanded_state(dict(parameters or {}))
    except SQLAlchemyError as error:
        raise DatabaseError(str(error)) from error
    processors = state.processors
    return state.statement, {
        name: processors[name](value) if name in processors else value
        for name, value in state.parameters.items()
    }
