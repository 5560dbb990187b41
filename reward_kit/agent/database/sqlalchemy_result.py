"""What the sync faces answer with: SQLAlchemy's own ``Result``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import TextClause
from sqlalchemy.dialects.sqlite.base import SQLiteDialect
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import NoSuchColumnError, ResourceClosedError, SQLAlchemyError

from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from reward_kit.agent.database.statement import Answer, Parameters

_dialect = SQLiteDialect(paramstyle="named")


class _Columns(SimpleResultMetaData):
    """The columns of a result; an unknown one is the same error as in the results of SQLAlchemy's engines."""

    def _key_fallback(  # type: ignore[override]  # the overloads of the original say no more than this
        self, key: Any, err: Exception | None, raiseerr: bool = True
    ) -> None:
        if raiseerr:
            raise NoSuchColumnError(f"Could not locate column in row for column '{key}'") from err


class _NoColumns(SimpleResultMetaData):
    """The columns of a statement that returns no rows: asking for any is an error."""

    def _reduce(self, _keys: Any) -> NoReturn:
        raise _no_rows()

    def _index_for_key(self, _key: Any, _raiseerr: bool = True) -> NoReturn:
        raise _no_rows()

    @property
    def keys(self) -> NoReturn:
        raise _no_rows()


class StatementResult(IteratorResult[Any]):
    """SQLAlchemy's ``Result`` over rows that are fetched already, with what its engines add for writes.

    ``rowcount`` is the number of rows changed, -1 for anything but INSERT, REPLACE, UPDATE and DELETE.
    """

    def __init__(self, answer: Answer) -> None:
        self.rowcount = answer.rowcount
        self.lastrowid = answer.lastrowid
        self.returns_rows = answer.columns is not None
        columns = _NoColumns(()) if answer.columns is None else _Columns(answer.columns)
        super().__init__(columns, iter(answer.values))

    def _fetchiter_impl(self) -> Any:
        self._check_returns_rows()
        return super()._fetchiter_impl()

    def _fetchone_impl(self, hard_close: bool = False) -> Any:
        self._check_returns_rows()
        return super()._fetchone_impl(hard_close)

    def _fetchall_impl(self) -> Any:
        self._check_returns_rows()
        return super()._fetchall_impl()

    def _fetchmany_impl(self, size: int | None = None) -> Any:
        self._check_returns_rows()
        return super()._fetchmany_impl(1 if size is None else size)

    def _check_returns_rows(self) -> None:
        if not self.returns_rows:
            raise _no_rows()


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
    values = {name: _processed(state.processors.get(name), value) for name, value in state.parameters.items()}
    return state.statement, values


def _processed(processor: Any, value: Any) -> Any:
    return value if processor is None else processor(value)


def _no_rows() -> ResourceClosedError:
    return ResourceClosedError("This result object does not return rows. It has been closed automatically.")
