"""One statement on its way to SQLite, and the rows that come back."""

from __future__ import annotations

import datetime as dt
import functools
import keyword
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from reward_kit.errors import DatabaseError, TooManyRowsError

if TYPE_CHECKING:
    from sqlalchemy import TextClause

    from reward_kit.agent.database.scope import Scope
    from reward_kit.agent.database.sqlalchemy_api import StatementResult

Parameters = Mapping[str, Any] | Sequence[Any] | None
"""Values of named parameters (``:name``) by name, or of positional ones (``?``) in order."""

_OWN_NAMES = frozenset({"keys", "get"})
_FIRST_ROWS = 8
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 16 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of what a statement may take.

    A statement is stopped after ``timeout`` seconds.  A query that holds up the event loop for more than
    ``inline_seconds`` is started again on a thread.  A query may return ``max_rows`` rows with some
    ``max_result_bytes`` in them.  A string or blob may have ``max_value_bytes``, a statement
    ``max_sql_bytes``; a database may grow by ``max_growth_bytes``.
    """

    timeout: float = 10.0
    inline_seconds: float = 0.003
    max_rows: int = 100_000
    max_result_bytes: int = 256 << 20
    max_value_bytes: int = 64 << 20
    max_sql_bytes: int = 1 << 20
    max_growth_bytes: int = 1 << 30


class Row(tuple[Any, ...]):
    """A tuple of column values that also answers ``row["name"]``, ``row.name`` and ``dict(row)``.

    Equal to any tuple of the same values.  If two columns share a name, the name means the first one.
    Instances come from :func:`row_type`, one subclass per list of columns.
    """

    __slots__ = ()
    _fields: tuple[str, ...] = ()
    _positions: ClassVar[dict[str, int]] = {}

    def __getitem__(self, key: Any) -> Any:
        """The value at a position, the values of a slice, or the value of the column called ``key``."""
        if isinstance(key, str):
            position = self._positions.get(key)
            if position is None:
                raise KeyError(f"no column {key!r}; there are: {', '.join(self._fields)}")
            return tuple.__getitem__(self, position)
        return tuple.__getitem__(self, key)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError as error:
            raise AttributeError(*error.args) from None

    def __repr__(self) -> str:
        values = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self, strict=True))
        return f"Row({values})"

    def __reduce__(self) -> tuple[Callable[..., Row], tuple[tuple[str, ...], tuple[Any, ...]]]:
        return _rebuild, (self._fields, tuple(self))

    def keys(self) -> tuple[str, ...]:
        """The column names, in order."""
        return self._fields

    def get(self, key: str, default: Any = None) -> Any:
        """The value of the column called ``key``, or ``default``."""
        return self[key] if key in self._positions else default

    def _asdict(self) -> dict[str, Any]:
        return {name: tuple.__getitem__(self, position) for name, position in self._positions.items()}

    @property
    def _mapping(self) -> dict[str, Any]:
        """The row as a dict, under the name that SQLAlchemy's rows have for it."""
        return self._asdict()


@functools.lru_cache(maxsize=4096)
def row_type(columns: tuple[str, ...]) -> Callable[[Iterable[Any]], Row]:
    """The class of rows with these column names, called with the values of one row."""
    positions: dict[str, int] = {}
    for position, name in enumerate(columns):
        positions.setdefault(name, position)
    attributes: dict[str, Any] = {"__slots__": (), "_fields": columns, "_positions": positions}
    for name, position in positions.items():
        # a column called `count` or `index` is meant before tuple's method of that name
        if name.isidentifier() and not keyword.iskeyword(name) and name[0] != "_" and name not in _OWN_NAMES:
            attributes[name] = _getters(len(columns))[f"at{position}"]
    return type("Row", (Row,), attributes)


@functools.cache
def _getters(number: int) -> Mapping[str, Any]:
    """The attributes ``at0``, ``at1`` and so on of tuples; unlike properties they call no function."""
    make: Any = namedtuple
    columns = make("Columns", [f"at{position}" for position in range(number)])  # collected, it is emptied
    return dict(vars(columns))


def _rebuild(columns: tuple[str, ...], values: tuple[Any, ...]) -> Row:
    return row_type(columns)(values)


@dataclass
class Statement:
    """A statement and what is known of it before it runs.

    ``sql`` may be SQLAlchemy's ``text()`` until it is run.
    ``refusal`` is the text of the error if it writes, None if writing is allowed.  ``first``: of a query,
    only the first row is wanted.  ``many``, if given, are the parameters of several runs; they take the place
    of ``parameters``.  ``call`` is the tool call, if any, that was given the database on which it is run.

    ``Turns`` sets ``in_thread`` (it does not hold up an event loop), ``in_transaction``, and ``over`` if its
    result is no longer wanted; the guard sets ``writes``, and ``started`` when it first looks at the clock.
    """

    sql: Any
    parameters: Parameters
    refusal: str | None
    call: Scope | None = None
    first: bool = False
    many: Sequence[Parameters] | None = None

    in_thread = False
    in_transaction = False
    over = False
    writes = False
    started: float | None = field(default=None, init=False)


@dataclass(repr=False, eq=False)
class ExecuteResult:
    """The result of a statement, ``await db.execute(...)``.

    ``rows`` are the rows, ``rowcount`` the number of rows changed (-1 for anything but INSERT, REPLACE,
    UPDATE and DELETE), ``lastrowid`` the rowid inserted last.  Everything else (``scalar_one()``,
    ``all()``, ``mappings()``, ``fetchone()`` ...) is that of SQLAlchemy's ``Result``.  ``columns`` is None
    for a statement that returns no rows, ``values`` are the rows as plain tuples.
    """

    columns: tuple[str, ...] | None
    values: list[tuple[Any, ...]]
    rowcount: int
    lastrowid: int
    _result: Any = None

    @property
    def rows(self) -> list[Row]:
        """All rows, usable as tuples, by column name and by attribute."""
        return list(map(row_type(self.columns or ()), self.values))

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        if self._result is None:
            from reward_kit.agent.database.sqlalchemy_api import result_of

            self._result = result_of(self)
        return getattr(self._result, name)


def rows_of(result: ExecuteResult) -> list[Row]:
    """All rows."""
    return result.rows


def first_row_of(result: ExecuteResult) -> Row | None:
    """The first row, or None."""
    values = result.values
    return row_type(result.columns or ())(values[0]) if values else None


def first_value_of(result: ExecuteResult) -> Any:
    """The first column of the first row, or None."""
    values = result.values
    return values[0][0] if values else None


def plain(sql: str | TextClause, parameters: Parameters) -> tuple[str, Parameters]:
    """SQL and parameters as SQLite takes them, also of SQLAlchemy's ``text()``."""
    if isinstance(sql, str):
        return sql, parameters
    from reward_kit.agent.database.sqlalchemy_api import plain_sql

    return plain_sql(sql, parameters)


class SyncStatements:
    """Statements for ``def`` functions, run by ``_run`` of a subclass."""

    def _run(self, sql: str | TextClause, params: Parameters, *, first: bool = False) -> ExecuteResult:
        raise NotImplementedError

    def execute(self, sql: str | TextClause, params: Parameters = None) -> StatementResult:
        """Run a statement; the answer is a ``Result`` of SQLAlchemy 2 (``scalar_one()``, ``all()`` ...)."""
        from reward_kit.agent.database.sqlalchemy_api import result_of

        result: StatementResult = result_of(self._run(sql, params))
        return result

    def fetch_all(self, sql: str | TextClause, params: Parameters = None) -> list[Row]:
        """All rows."""
        return rows_of(self._run(sql, params))

    def fetch_one(self, sql: str | TextClause, params: Parameters = None) -> Row | None:
        """The first row, or None."""
        return first_row_of(self._run(sql, params, first=True))

    def fetch_val(self, sql: str | TextClause, params: Parameters = None) -> Any:
        """The first column of the first row, or None."""
        return first_value_of(self._run(sql, params, first=True))


def fetch_result(cursor: Any, statement: Statement, limits: Limits, *, reads: bool) -> list[tuple[Any, ...]]:
    """The rows of a statement: the first one, or all within ``limits`` if it ``reads``.

    ``TooManyRowsError`` if there are more rows than ``limits`` allow, or more bytes in them, which are
    estimated from one row in a thousand, or in fewer if rows are large.
    """
    if not reads:
        # what a statement wrote stays written, so its RETURNING is answered in full
        rows: list[tuple[Any, ...]] = cursor.fetchall()
        return rows
    if statement.first:
        row = cursor.fetchone()
        return [] if row is None else [row]
    wanted = _FIRST_ROWS
    fetched = list(islice(cursor, wanted))
    amount = len(fetched)
    size = 0
    while len(fetched) <= limits.max_rows:
        if amount < wanted:
            return fetched
        width = sum([len(value) for value in fetched[-1] if isinstance(value, (str, bytes))])
        size += width * amount
        if size > limits.max_result_bytes:
            raise TooManyRowsError(
                f"the query returns more than {limits.max_result_bytes >> 20} MiB", remedy="Ask for less."
            )
        wanted = max(1, min(_CHUNK_ROWS, _CHUNK_BYTES // (width or 1)))
        chunk = list(islice(cursor, wanted))
        fetched += chunk
        amount = len(chunk)
    raise TooManyRowsError(
        f"the query returns more than {limits.max_rows} rows",
        remedy="Add a LIMIT, or let SQL count or sum them up.",
    )


def storable_parameters(parameters: Parameters) -> Mapping[str, Any] | Sequence[Any]:
    """``parameters`` with dates and times as ISO text; none if they are None.

    ``DatabaseError`` for a value that SQLite cannot hold, and for anything but a mapping or a sequence of
    values.
    """
    if parameters is None:
        return ()
    if isinstance(parameters, Mapping):
        return {name: _storable(value, f":{name}") for name, value in parameters.items()}
    if not isinstance(parameters, Sequence) or isinstance(parameters, str | bytes | bytearray):
        raise DatabaseError(
            f"parameters must be a dict or a list, not {type(parameters).__name__}",
            remedy="Write `{'id': 7}` for `:id`, or `[7]` for `?`.",
        )
    return [_storable(value, f"number {position}") for position, value in enumerate(parameters, 1)]


def _storable(value: object, name: str) -> object:
    if value is None or isinstance(value, str | float | bytes | bytearray | memoryview):
        return value
    if isinstance(value, int):
        if -(1 << 63) <= value < 1 << 63:
            return value
        raise DatabaseError(f"parameter {name} does not fit into 64 bits: {value}")
    if isinstance(value, dt.datetime):
        return value.isoformat(" ")
    if isinstance(value, dt.date | dt.time):
        return value.isoformat()
    remedy = "Await it." if isawaitable(value) else "Pass text, a number, bytes, a date or None."
    fault = f"parameter {name} is a {type(value).__name__}, which SQLite cannot store"
    raise DatabaseError(fault, remedy=remedy)
