"""One row that differs from the base."""

from __future__ import annotations

import marshal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Literal

SQLiteValue = None | int | float | str | bytes
Op = Literal["insert", "update", "delete"]
Values = Mapping[str, SQLiteValue]

SCHEMA_TABLE = "sqlite_schema"
"""Created, altered and dropped tables, indexes, views and triggers appear as rows of this table."""


def typed(values: Sequence[SQLiteValue]) -> bytes:
    """A hashable form of ``values`` that keeps 60 apart from 60.0, -0.0 from 0.0, 'a' from b'a'.

    Version 2 of the format is the last one that does not depend on which of the objects are shared or
    interned.
    """
    return marshal.dumps(tuple(values), 2)


@dataclass(frozen=True, slots=True, eq=False)
class RowChange:
    """``key`` holds the primary key; it is ``None`` where the row has none (no primary key, or NULL in it).

    ``before`` and ``after`` are whole rows for deletes and inserts, and only the changed columns for
    updates. Generated columns are left out.  A row without a key has no identity: its update is a delete
    and an insert.
    """

    table: str
    op: Op
    key: Values | None
    before: Values | None
    after: Values | None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowChange) and self.identity() == other.identity()

    def __hash__(self) -> int:
        return hash(self.identity())

    def identity(self) -> tuple[str, Op, bytes, bytes, bytes]:
        """Equal for equal changes; sensitive to the type of every value, not to the order of columns.

        In a whole row a column that is not named counts as NULL, as it does after ``ALTER TABLE ADD COLUMN``.
        """
        whole = self.op != "update"
        before, after = _typed_values(self.before, whole=whole), _typed_values(self.after, whole=whole)
        return self.table, self.op, _typed_values(self.key), before, after

    def row_identity(self) -> tuple[str, bytes]:
        """Table and key; for a row without a key, table and content."""
        if self.key is not None:
            return self.table, _typed_values(self.key)
        return self.table, _typed_values(self.after if self.before is None else self.before, whole=True)

    def sort_key(self) -> tuple[Any, ...]:
        """Orders by table, key as SQLite orders values, operation; rows without a key by their content."""
        if self.key is None:
            return self.table, True, (), *self.identity()[1:]
        return self.table, False, tuple(map(_collate, self.key.values())), self.op

    def without(self, ignored: Collection[str]) -> RowChange | None:
        """This change without the columns ``ignored`` (casefolded names); ``None`` if nothing of it is left.

        A key that loses a column no longer tells rows apart, so it is given up: what is left of it joins the
        row's content.
        """
        before, after = _drop(self.before, ignored), _drop(self.after, ignored)
        key = _drop(self.key, ignored)
        if self.op == "update" and not before and not after:
            return None
        if self.key is None or key is None or len(key) == len(self.key):
            return RowChange(self.table, self.op, key, before, after)
        if self.op == "update":
            before, after = {**key, **(before or {})}, {**key, **(after or {})}
        return RowChange(self.table, self.op, None, before, after)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values; parts that are ``None`` are left out."""
        parts = {"key": self.key, "before": self.before, "after": self.after}
        encoded = {
            name: {column: _encode(value) for column, value in values.items()}
            for name, values in parts.items()
            if values is not None
        }
        return {"table": self.table, "op": self.op, **encoded}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RowChange:
        """The inverse of ``to_json``."""
        parts = [
            None if record.get(name) is None else {column: _decode(v) for column, v in record[name].items()}
            for name in ("key", "before", "after")
        ]
        return cls(record["table"], record["op"], *parts)


def _typed_values(values: Values | None, *, whole: bool = False) -> bytes:
    if values is None:
        return b""
    items = [item for item in values.items() if not whole or item[1] is not None]
    items.sort(key=itemgetter(0))
    return marshal.dumps(items, 2)


def _drop(values: Values | None, ignored: Collection[str]) -> dict[str, SQLiteValue] | None:
    if values is None:
        return None
    return {column: value for column, value in values.items() if column.casefold() not in ignored}


def _collate(value: SQLiteValue) -> tuple[int, int | float | str | bytes]:
    if value is None:
        return 0, 0
    if isinstance(value, int | float):
        return 1, value
    return (2, value) if isinstance(value, str) else (3, value)


def _encode(value: SQLiteValue) -> Any:
    if isinstance(value, bytes):
        return {"$blob": value.hex()}
    if isinstance(value, float) and value - value != 0.0:  # JSON has no word for infinity
        return {"$real": repr(value)}
    return value


def _decode(value: Any) -> SQLiteValue:
    if isinstance(value, dict):
        if "$blob" in value:
            return bytes.fromhex(value["$blob"])
        return float(value["$real"])
    return value  # type: ignore[no-any-return]  # a scalar that JSON and SQLite share
