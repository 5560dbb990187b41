"""The parts of SQLAlchemy that tools and rewards use: results, ``text()`` and engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import URL, Row, TextClause, event
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.result import IteratorResult, SimpleResultMetaData
from sqlalchemy.exc import OperationalError, ResourceClosedError, SQLAlchemyError
from sqlalchemy.pool import NullPool

from reward_kit.agent.database.file_access import LOCK_SECONDS, LOCKED
from reward_kit.errors import DatabaseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from reward_kit.agent.database.statement import ExecuteResult, Parameters

_dialect = sqlite.dialect(paramstyle="named")
_REASON = (
    f"{LOCKED}: another connection is in a transaction, that of `db` if this call has written through it. "
    "In one call, write either through `db` or through the engine, and end each session."
)


class StatementResult(IteratorResult[Any]):
    """The result of a query, with the attributes that those of SQLAlchemy's engines have.

    ``rowcount`` is the number of rows changed, -1 for anything but INSERT, REPLACE, UPDATE and DELETE.
    """

    returns_rows = True

    def __init__(self, answer: ExecuteResult) -> None:
        self.rowcount, self.lastrowid = answer.rowcount, answer.lastrowid
        super().__init__(SimpleResultMetaData(answer.columns or ()), iter(answer.values))

    def fetchmany(self, size: int | None = None) -> Sequence[Row[Any]]:
        """The next ``size`` rows, one if it is not given."""
        return super().fetchmany(1 if size is None else size)


class WriteResult:
    """The result of a statement that returns no rows: asking for any raises ``ResourceClosedError``."""

    returns_rows = False

    def __init__(self, answer: ExecuteResult) -> None:
        self.rowcount, self.lastrowid = answer.rowcount, answer.lastrowid

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


def make_engine(
    create: Callable[..., Any],
    driver: str,
    file: Path,
    prepare: Callable[[Any], None],
    note_fault: Callable[[BaseException], None],
) -> Any:
    """An engine for tools, made by SQLAlchemy's ``create``, for any thread.

    Each new connection is passed to ``prepare``, each error of a statement to ``note_fault``.  No connection
    stays open between two uses: an idle one would keep a thread, and maybe a lock.
    """
    # what a tool leaves open may be collected in another thread
    options = {"timeout": LOCK_SECONDS, "check_same_thread": False}
    engine = create(URL.create(driver, database=str(file)), poolclass=NullPool, connect_args=options)
    source = getattr(engine, "sync_engine", engine)

    @event.listens_for(source, "connect")
    def connected(connection: Any, _record: object) -> None:
        prepare(connection)

    @event.listens_for(source, "handle_error", retval=True)
    def note(context: Any) -> Exception | None:
        raised = context.original_exception
        note_fault(raised)
        if not isinstance(context.sqlalchemy_exception, OperationalError) or str(raised) != LOCKED:
            return None
        raised.args = (_REASON,)
        return OperationalError(context.statement, context.parameters, raised)

    return engine
