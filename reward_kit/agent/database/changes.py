"""The difference between two states of a database, row by row, and words for it.

changes = db.changes()
changes.lines()                    # ["orders #W1 status: 'pending' -> 'cancelled'"]
changes.describe(gold.changes())   # ["orders #W1 status: expected 'returned', got 'cancelled'"]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Literal

from reward_kit.agent.base.encoding import decode, encode, normal, same, typed, typed_items
from reward_kit.agent.base.text import cut

SQLiteValue = None | int | float | str | bytes
Op = Literal["insert", "update", "delete"]
Values = Mapping[str, SQLiteValue]

SCHEMA_TABLE = "sqlite_schema"
"""Created, altered and dropped tables, indexes, views and triggers appear as rows of this table."""
_REVERSED: dict[Op, Op] = {"insert": "delete", "delete": "insert", "update": "update"}
_FAULTS: dict[tuple[Op, bool], str] = {
    ("insert", True): "expected to be deleted, still there",
    ("insert", False): "unexpected row",
    ("delete", True): "deleted, expected to stay",
    ("delete", False): "missing row",
}
"""Words for a row that is there or not, against what is expected, by its presence in the base."""
IGNORED: ContextVar[set[str] | None] = ContextVar("ignored", default=None)
"""Collects the names that are passed as ``ignore``, where a check of the bundle sets it."""
_VALUE_WIDTH, _ROW_WIDTH = 80, 400
"""Longest value and longest row (characters) that a line quotes."""


@dataclass(frozen=True, slots=True, eq=False)
class RowChange:
    """One row that differs from the base.

    ``key`` holds the primary key; it is None if the row has none (no primary key, or NULL in it). ``before``
    and ``after`` are whole rows for deletes and inserts, and only the changed columns for updates. Generated
    columns are left out. A row without a key has no identity: its update is a delete and an insert.
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
        before, after = typed_items(self.before, whole=whole), typed_items(self.after, whole=whole)
        return self.table, self.op, typed_items(self.key), before, after

    def row_identity(self) -> tuple[str, bytes]:
        """Table and key; for a row without a key, table and content."""
        if self.key is not None:
            return self.table, typed_items(self.key)
        return self.table, typed_items(self.content, whole=True)

    @property
    def content(self) -> Values:
        """The row that was deleted or inserted."""
        return (self.after if self.before is None else self.before) or {}

    def sort_key(self) -> tuple[Any, ...]:
        """Orders by table, key as SQLite orders values, operation; rows without a key by their content."""
        if self.key is None:
            return self.table, True, (), *self.identity()[1:]
        return self.table, False, tuple(map(_collate, self.key.values())), self.op

    def reversed(self) -> RowChange:
        """The change that undoes this one."""
        return RowChange(self.table, _REVERSED[self.op], self.key, self.after, self.before)

    def without(self, ignored: Collection[str]) -> RowChange | None:
        """This change without the columns ``ignored`` (casefolded names); None if no other changed.

        The key of an inserted or deleted row that loses a column no longer distinguishes rows. That of an
        updated one stays: the row is in the base, so its key was not made up.
        """
        key, before, after = (
            values and {name: value for name, value in values.items() if name.casefold() not in ignored}
            for values in (self.key, self.before, self.after)
        )
        if self.op == "update" and not before and not after:
            return None
        if self.op == "update":
            key = self.key
        elif self.key and len(key or ()) < len(self.key):
            key = None
        return RowChange(self.table, self.op, key, before, after)

    def lines(self, *, whole: bool = False) -> list[str]:
        """One line for an insert or a delete, one per column for an update; long values only if ``whole``."""
        name = self.name(whole=whole)
        if self.op != "update":
            words = "inserted" if self.op == "insert" else "deleted"
            return [f"{name}: {words} {_row_text(self.content, whole=whole)}"]
        before, after = (
            {column: _value_text(value, whole=whole) for column, value in (side or {}).items()}
            for side in (self.before, self.after)
        )
        return [f"{name} {column}: {before.get(column, 'NULL')} -> {after[column]}" for column in after]

    def name(self, *, whole: bool = False) -> str:
        """Table and key: ``orders #W2611340``, ``order_items (order_id='#W2611340', item_id=7)``."""
        if self.key is None:
            return self.table
        values: list[SQLiteValue] = list(self.key.values())
        if self.table == SCHEMA_TABLE:
            return f"schema: {values[0]!s} {values[1]!s}"
        if len(values) == 1 and isinstance(values[0], str | int):
            return f"{self.table} #{str(values[0]).removeprefix('#')}"
        return f"{self.table} ({_listed(self.key, whole=whole)})"

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON values; parts that are None are left out."""
        parts = {
            name: {column: encode(value) for column, value in values.items()}
            for name, values in (("key", self.key), ("before", self.before), ("after", self.after))
            if values is not None
        }
        return {"table": self.table, "op": self.op, **parts}

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> RowChange:
        """The inverse of ``to_json``."""
        parts = [
            None if part is None else {column: decode(value) for column, value in part.items()}
            for part in map(record.get, ("key", "before", "after"))
        ]
        return cls(record["table"], record["op"], *parts)


@dataclass(slots=True, eq=False, repr=False)
class Changes(Sequence[RowChange]):
    """The net row changes from a base, in a stable order: by table, key, operation.

    ``find`` computes them when they are first read. Two states of one base hold equal rows exactly if their
    changes are equal.
    """

    find: Callable[[], Iterable[RowChange]] | None = None
    found: tuple[RowChange, ...] = ()

    @classmethod
    def of(cls, rows: Iterable[RowChange]) -> Changes:
        """The changes ``rows``, put in order."""
        return cls(None, tuple(sorted(rows, key=RowChange.sort_key)))

    @property
    def _rows(self) -> tuple[RowChange, ...]:
        if (find := self.find) is not None:  # another thread may read them now, too
            self.found, self.find = tuple(sorted(find(), key=RowChange.sort_key)), None
        return self.found

    def __reduce__(self) -> tuple[type[Changes], tuple[None, tuple[RowChange, ...]]]:
        return Changes, (None, self._rows)

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RowChange]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changes) and self.equals(other, exact=True)

    def __repr__(self) -> str:
        return f"Changes({list(self._rows)!r})"

    def equals(self, other: Changes, ignore: Collection[str] = (), *, exact: bool = False) -> bool:
        """True if both lead to equal rows: 60 and 60.0 are equal, also inside JSON text, unless ``exact``.

        ``ignore`` names what does not count: ``"table.column"``, ``"*.column"`` or ``"table"``.  New and
        deleted rows of a table whose key is ignored are compared by their other columns.
        """
        ours, theirs = self.ignoring(ignore), other.ignoring(ignore)
        if tuple(ours) == tuple(theirs):
            return True
        if not (ours and theirs) and len({row.op for row in (*ours, *theirs)} - {"update"}) == 1:
            return False  # a row is there or not, in any spelling
        return not exact and len({tuple(side) for side in in_one_spelling(ours, theirs)}) == 1

    def ignoring(self, ignore: Collection[str]) -> Changes:
        """These changes without what ``ignore`` names (see :meth:`equals`)."""
        if not ignore:
            return self
        tables, columns = _parse_ignore(ignore)
        rests = (
            row.without(columns.get(table, set()) | columns.get("*", set()))
            for row in self._rows
            if (table := row.table.casefold()) not in tables
        )
        return Changes.of(net(rest for rest in rests if rest is not None))

    def minus(self, earlier: Changes) -> Changes:
        """The changes that lead from the state after ``earlier`` to this one."""
        return Changes.of(net([*(row.reversed() for row in earlier), *self])) if earlier else self

    def then(self, later: Changes) -> Changes:
        """The inverse of ``minus``: from the base over this state to the end of ``later``."""
        return Changes.of(net([*self, *later])) if self and later else (self or later)

    def describe(
        self, expected: Changes, ignore: Collection[str] = (), *, limit: int = 20, exact: bool = False
    ) -> list[str]:
        """The differences from ``expected``, one line per fault; empty if they are equal (see ``equals``).

        ``orders #W2611340 status: expected 'cancelled', got 'pending'``.  After ``limit`` lines: ``... and
        N more``.
        """
        wanted, got = expected.ignoring(ignore), self.ignoring(ignore)
        if not exact:
            wanted, got = in_one_spelling(wanted, got)
        lines = list(_faults(got, wanted))
        return lines if len(lines) <= limit else [*lines[:limit], f"... and {len(lines) - limit} more"]

    def lines(self, *, whole: bool = False) -> list[str]:
        """The changes as lines for a person; long values are cut unless ``whole``."""
        return [line for row in self._rows for line in row.lines(whole=whole)]

    def to_json(self) -> list[dict[str, Any]]:
        """A list of dicts of JSON values; blobs become ``{"$blob": hex}``."""
        return [row.to_json() for row in self._rows]

    @classmethod
    def from_json(cls, records: Iterable[Mapping[str, Any]]) -> Changes:
        """The inverse of ``to_json``."""
        return cls.of(map(RowChange.from_json, records))


NO_CHANGES = Changes()


def net(steps: Iterable[RowChange]) -> Iterator[RowChange]:
    """The net changes of ``steps``, each of which starts from the state after the one before.

    Rows with a key are followed by it. Rows without one are counted: +1 for an insert, -1 for a delete of the
    same content.
    """
    followed: dict[tuple[str, bytes], RowChange | None] = {}
    counts: Counter[tuple[str, bytes]] = Counter()
    contents: dict[tuple[str, bytes], RowChange] = {}
    for step in steps:
        identity = step.row_identity()
        if step.key is not None:
            earlier = followed.get(identity)
            followed[identity] = step if earlier is None else _joined(earlier, step)
        else:
            contents[identity] = step
            counts[identity] += 1 if step.op == "insert" else -1
    yield from (row for row in followed.values() if row is not None)
    for identity, count in counts.items():
        row = contents[identity]
        for _ in range(abs(count)):
            yield row if (row.op == "insert") == (count > 0) else row.reversed()


def in_one_spelling(*sides: Iterable[RowChange]) -> list[Changes]:
    """The ``sides`` with equal values of a column (see ``equal_values``) spelled as the first of them is.

    Updates that only spell a value in another way are left out. Texts in keys stay as they are.
    """
    spellings: dict[tuple[str, str, bytes], SQLiteValue] = {}

    def spelled(table: str, values: Values | None, kept: type = bytes) -> Values | None:
        free = {name: value for name, value in (values or {}).items() if not isinstance(value, kept)}
        forms = {name: (table, name, typed([normal(value)])) for name, value in free.items()}
        return values and {**values, **{name: spellings.setdefault(forms[name], free[name]) for name in free}}

    def respelled(row: RowChange) -> RowChange | None:
        key, before = spelled(row.table, row.key, str), spelled(row.table, row.before)
        after = spelled(row.table, row.after)
        both = zip((before or {}).items(), (after or {}).values(), strict=False)
        unchanged = {name.casefold() for (name, old), new in both if same(old, new)}
        return RowChange(row.table, row.op, key, before, after).without(unchanged)

    return [Changes.of(net(filter(None, map(respelled, side)))) for side in sides]


def _joined(first: RowChange, second: RowChange) -> RowChange | None:
    """One change in place of two of the same row; None if the second undoes the first."""
    # what a side does not mention it did not change, so the other side's value holds there
    before = {**(second.before or {}), **(first.before or {})}
    after = {**(first.after or {}), **(second.after or {})}
    existed, exists = first.op != "insert", second.op != "delete"
    if not existed:
        return RowChange(first.table, "insert", first.key, None, after) if exists else None
    if not exists:
        return RowChange(first.table, "delete", first.key, before, None)
    changed = [column for column in {**before, **after} if not same(before.get(column), after.get(column))]
    if not changed:
        return None
    old, new = ({column: side.get(column) for column in changed} for side in (before, after))
    return RowChange(first.table, "update", first.key, old, new)


def _parse_ignore(ignore: Collection[str]) -> tuple[set[str], dict[str, set[str]]]:
    """Whole tables, and table -> columns, all casefolded as SQLite folds names."""
    tables: set[str] = set()
    columns: dict[str, set[str]] = {}
    seen = IGNORED.get()
    for name in [ignore] if isinstance(ignore, str) else ignore:
        if seen is not None:
            seen.add(name)
        table, dot, column = name.casefold().rpartition(".")
        if dot:
            columns.setdefault(table, set()).add(column)
        else:
            tables.add(column)
    return tables, columns


def _faults(actual: Changes, expected: Changes) -> Iterator[str]:
    """The changes that lead from the expected rows to the actual ones, in words; rows without a key last."""
    deleted, to_delete = (
        {change.row_identity() for change in side if change.op == "delete"} for side in (actual, expected)
    )
    keyless = []
    for change in actual.minus(expected):
        name, identity, row = change.name(), change.row_identity(), _row_text(change.content)
        if change.op == "update":
            for column, wanted in (change.before or {}).items():
                got = (change.after or {}).get(column)
                yield f"{name} {column}: expected {_value_text(wanted)}, got {_value_text(got)}"
            continue
        in_base = identity in (to_delete if change.op == "insert" else deleted)
        fault = _FAULTS[change.op, in_base]
        if change.key is None:
            keyless.append(f"{name}: {fault}{':' if in_base else ''} {row}")
        else:
            yield f"{name}: {fault}" + ("" if in_base else f" {row}")
    yield from sorted(keyless)


def _collate(value: SQLiteValue) -> tuple[int, int | float | str | bytes]:
    if isinstance(value, str | bytes):
        return 2 + isinstance(value, bytes), value
    return (0, 0) if value is None else (1, value)


def _row_text(values: Values | None, *, whole: bool = False) -> str:
    text = _listed(values or {}, whole=whole)
    return f"({text if whole else cut(text, _ROW_WIDTH)})"


def _value_text(value: SQLiteValue, *, whole: bool = False) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, int | float):
        return repr(value)
    text = value.hex() if isinstance(value, bytes) else value
    text = text if whole else cut(text, _VALUE_WIDTH)
    return f"x'{text}'" if isinstance(value, bytes) else repr(text)


def _listed(values: Values, *, whole: bool) -> str:
    return ", ".join(f"{name}={_value_text(value, whole=whole)}" for name, value in values.items())
