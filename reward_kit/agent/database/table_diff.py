"""The exact difference of two databases, row by row, by reading both.

Needs nothing but two ``execute`` callables, so it serves plain files under ``sqlite3`` as well as forks.
It is the reference for ``session.py``, which gets the same result from recorded writes.
"""

from __future__ import annotations

import itertools
import marshal
from collections.abc import Container, Iterable, Iterator, Sequence
from typing import Any

from reward_kit.agent.database.changes import Changes
from reward_kit.agent.database.row_change import SCHEMA_TABLE, RowChange, typed
from reward_kit.agent.database.schema import Execute, Schema, Table, quote_name, read_schema, select
from reward_kit.errors import DatabaseError

_CHUNK = 256
_Row = Sequence[Any]


def diff_databases(before: Execute, after: Execute, *, unchanged: Container[str] = ()) -> Changes:
    """The changes that lead from the rows and the schema of ``before`` to those of ``after``.

    ``unchanged`` names tables whose stored rows are known to be equal; they are skipped.
    ``DatabaseError`` for text that is not UTF-8.
    """
    try:
        return Changes(_diff_all(before, after, unchanged))
    except UnicodeDecodeError as error:
        raise DatabaseError(f"a text in the database is not UTF-8: {error}") from error


def _diff_all(before: Execute, after: Execute, unchanged: Container[str]) -> Iterator[RowChange]:
    old, new = read_schema(before), read_schema(after)
    yield from _diff_schemas(old, new)
    for name in old.tables.keys() | new.tables.keys():
        # a new column with a default value changes rows without a write to them
        same_columns = old.objects.get(("table", name)) == new.objects.get(("table", name))
        if name not in unchanged or not same_columns:
            yield from diff_tables(before, old.tables.get(name), after, new.tables.get(name))


def diff_tables(before: Execute, old: Table | None, after: Execute, new: Table | None) -> Iterator[RowChange]:
    """The row changes of one table; a side that is ``None`` has no such table.

    A column that only one side has counts as NULL on the other; if the primary key is another one, the rows
    are compared as rows without a key.
    """
    sides = [table for table in (old, new) if table is not None]
    columns = tuple(dict.fromkeys(column for table in sides for column in table.columns))
    key = sides[0].key if len({table.key for table in sides}) == 1 else ()
    layout = RowLayout(sides[0].name, columns, key)
    left = before(select_rows(old, layout)) if old else ()
    right = after(select_rows(new, layout)) if new else ()
    return diff_rows(layout, left, right)


class RowLayout:
    """What the values of a row mean: ``columns``, preceded by the rowid if that is the key but no column."""

    def __init__(self, table: str, columns: tuple[str, ...], key: tuple[str, ...]) -> None:
        self.table = table
        self.columns = columns
        self.key = key
        self.names = columns if set(key) <= set(columns) else (*key, *columns)
        self._key_positions = [self.names.index(name) for name in key]

    def key_of(self, row: _Row) -> _Row | None:
        """The values of the primary key; ``None`` if the row has none, or NULL in it."""
        values = [row[position] for position in self._key_positions]
        return None if not values or None in values else values

    def inserted(self, row: _Row) -> RowChange:
        """The change that brings ``row``."""
        return RowChange(self.table, "insert", self._named_key(row), None, self._named(row))

    def deleted(self, row: _Row) -> RowChange:
        """The change that takes ``row`` away."""
        return RowChange(self.table, "delete", self._named_key(row), self._named(row), None)

    def updated(self, before: _Row, after: _Row) -> RowChange | None:
        """The change from one row to another of the same key; ``None`` if they are equal."""
        pairs = zip(self.names, before, after, strict=True)
        changed = [(name, old, new) for name, old, new in pairs if typed([old]) != typed([new])]
        if not changed:
            return None
        old_values = {name: old for name, old, _ in changed}
        new_values = {name: new for name, _, new in changed}
        return RowChange(self.table, "update", self._named_key(after), old_values, new_values)

    def _named(self, row: _Row) -> dict[str, Any]:
        return dict(zip(self.names, row, strict=True))

    def _named_key(self, row: _Row) -> dict[str, Any] | None:
        values = self.key_of(row)
        return None if values is None else dict(zip(self.key, values, strict=True))


def select_rows(table: Table, layout: RowLayout, condition: str = "") -> str:
    """The query for the rows of ``table`` as ``layout`` has them, in storage order, which is the fastest."""
    present = {*table.columns, *table.key}
    return select(
        [quote_name(name) if name in present else "NULL" for name in layout.names], table.name, condition
    )


def diff_rows(layout: RowLayout, left: Iterable[_Row], right: Iterable[_Row]) -> Iterator[RowChange]:
    """The changes that lead from the rows ``left`` to the rows ``right``.

    Rows are matched by key, or by content where there is no key.  Both sides are read in step and a row is
    kept only until its partner turns up: equal order, which storage order nearly is, makes this cheap; no
    order makes it wrong.
    """
    waiting_left: dict[bytes, list[_Row]] = {}
    waiting_right: dict[bytes, list[_Row]] = {}
    for old_rows, new_rows in _unequal_chunks(left, right):
        for old, new in itertools.zip_longest(old_rows, new_rows):
            if old is not None:
                partner = _meet(layout, old, waiting_right, waiting_left)
                change = None if partner is None else layout.updated(old, partner)
                if change is not None:
                    yield change
            if new is not None:
                partner = _meet(layout, new, waiting_left, waiting_right)
                change = None if partner is None else layout.updated(partner, new)
                if change is not None:
                    yield change
    yield from (layout.deleted(row) for rows in waiting_left.values() for row in rows)
    yield from (layout.inserted(row) for rows in waiting_right.values() for row in rows)


def _unequal_chunks(left: Iterable[_Row], right: Iterable[_Row]) -> Iterator[tuple[list[_Row], list[_Row]]]:
    """Both sides in pieces, leaving out pieces that are equal to the last bit."""
    left, right = iter(left), iter(right)
    while True:
        old, new = list(itertools.islice(left, _CHUNK)), list(itertools.islice(right, _CHUNK))
        if not old and not new:
            return
        # version 2 of the format: see row_change.typed
        if len(old) != len(new) or marshal.dumps(old, 2) != marshal.dumps(new, 2):
            yield old, new


def _meet(
    layout: RowLayout, row: _Row, partners: dict[bytes, list[_Row]], waiting: dict[bytes, list[_Row]]
) -> _Row | None:
    """The partner that ``row`` has been waited for by; without one it starts to wait itself."""
    key = layout.key_of(row)
    identity = typed([*row, None]) if key is None else typed(key)  # a row is longer than its key: no mix-up
    found = partners.get(identity)
    if found is None:
        waiting.setdefault(identity, []).append(row)
        return None
    partner = found.pop()
    if not found:
        del partners[identity]
    return partner


def _diff_schemas(old: Schema, new: Schema) -> Iterator[RowChange]:
    layout = RowLayout(SCHEMA_TABLE, ("type", "name", "sql"), ("type", "name"))
    return diff_rows(layout, *([(*key, sql) for key, sql in side.objects.items()] for side in (old, new)))
