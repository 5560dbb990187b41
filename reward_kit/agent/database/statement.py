"""One statement on its way to SQLite, and the answer that comes back."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from reward_kit.agent.database.row import Row, row_type
from reward_kit.errors import DatabaseError, TooManyRowsError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.database.guards import Limits
    from reward_kit.agent.database.scopes import Scope

Parameters = Mapping[str, Any] | Sequence[Any] | None
"""Values of named parameters (``:name``) by name, or of positional ones (``?``) in order."""

_FIRST_ROWS = 8
_CHUNK_ROWS = 1024
_CHUNK_BYTES = 16 << 20


class Ticket:
    """A statement that runs in a thread; whoever no longer wants its answer sets ``over``."""

    __slots__ = ("over",)

    def __init__(self) -> None:
        self.over = False


class Statement:
    """``first``: of a query, only the first row is wanted.

    ``many``, if given, are the parameters of several runs; they take the place of ``parameters``.
    ``refusal`` is the text of the error if it writes, None where writing is allowed.  ``call`` is the tool
    call, if any, that was given the database on which it is run.  The connection sets ``ticket`` (None while
    it holds up the event loop), ``in_transaction`` and ``first_write`` (nothing was written in its
    transaction so far); the guard sets ``writes``.
    """

    __slots__ = (
        "call", "first", "first_write", "in_transaction", "many", "parameters", "refusal", "sql", "ticket",
        "writes",
    )  # fmt: skip

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
        self.ticket: Ticket | None = None
        self.in_transaction = False
        self.first_write = True
        self.writes = False


class Answer:
    """The result of a statement: ``columns`` is None for one that returns no rows.

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
    """A statement is too slow for the event loop's thread."""


def fetch_rows(rows: Iterator[tuple[Any, ...]], limits: Limits) -> list[tuple[Any, ...]]:
    """All of ``rows``; ``TooManyRowsError`` if there are more than ``limits`` allow, or more bytes in them.

    The bytes are estimated from one row in a thousand, or in fewer where rows are large.
    """
    fetched = list(islice(rows, _FIRST_ROWS))
    amount, wanted = len(fetched), _FIRST_ROWS
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
        chunk = list(islice(rows, wanted))
        fetched += chunk
        amount = len(chunk)
    raise TooManyRowsError(
        f"the query returns more than {limits.max_rows} rows",
        remedy="Add a LIMIT, or let SQL count or sum them up.",
    )


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
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise DatabaseError(f"parameter {name} is not valid text: {error}") from error
        return value
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
