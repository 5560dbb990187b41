"""SQLAlchemy's ``Result`` over rows that are fetched already."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import Row, TextClause
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import ResourceClosedError, SQLAlchemyError

from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from reward_kit.agent.database.statement import ExecuteResult, Parameters

_dialect = sqlite.dialect(paramstyle="named")


class StatementResult(IteratorResult[Any]):
    """The result of a query, with the attributes that those of SQLAlchemy's engines have.

    ``rowcount`` is the number of rows changed, -1 for anything but INSERT, REPLACE, UPDATE and DELETE.
    """

    returns_rows = True

    def __init__(self, answer: ExecuteResult) -> None:
        self.rowcount = answer.rowcount
        self.lastrowid = answer.lastrowid
        super().__init__(SimpleResultMetaData(answer.columns or ()), iter(answer.values))

    def fetchmany(self, size: int | None = None) -> Sequence[Row[Any]]:
        """The next ``size`` rows, one if it is not given."""
        return super().fetchmany(1 if size is None else size)


class WriteResult:
    """The result of a statement that returns no rows: asking for any raises ``ResourceClosedError``."""

    returns_rows = False

    def __init__(self, answer: ExecuteResult) -> None:
        self.rowcount = answer.rowcount
        self.lastrowid = answer.lastrowid

    def close(self) -> None:
        """Do nothing: it is closed."""

    def __iter__(self) -> NoReturn:
        self._refuse()

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or not hasattr(StatementResult, name):
            raise AttributeError(name)
        self._refuse()

    def _refuse(self) -> NoReturn:
        fault = "This result object does not return rows. It has been closed automatically."
        raise ResourceClosedError(fault)


def result_of(answer: ExecuteResult) -> Any:
    """The result of a statement."""
    return WriteResult(answer) if answer.columns is None else StatementResult(answer)


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
