"""The difference between a database and its base, row by row."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

from reward_kit.agent.database.change_lines import describe_difference, describe_row
from reward_kit.agent.database.row_change import RowChange, SQLiteValue, Values, typed

__all__ = ["Changes", "RowChange"]


class Changes(Sequence[RowChange]):
    """The net row changes from a base, in a stable order: by table, key, operation.

    Two states of one base hold equal rows exactly if their changes are equal.
    """

    __slots__ = ("_find", "_found")

    def __init__(self, rows: Iterable[RowChange] = ()) -> None:
        self._found = tuple(sorted(rows, key=RowChange.sort_key))
        self._find: Callable[[], Iterable[RowChange]] | None = None

    @classmethod
    def deferred(cls, find: Callable[[], Iterable[RowChange]]) -> Changes:
        """Changes that ``find`` gives when somebody first reads them."""
        changes = cls()
        changes._find = find
        return changes

    @property
    def _rows(self) -> tuple[RowChange, ...]:
        find = self._find
        if find is not None:
            self._found = tuple(sorted(find(), key=RowChange.sort_key))
            self._find = None
        return self._found

    def __reduce__(self) -> tuple[type[Changes], tuple[tuple[RowChange, ...]]]:
        return Changes, (self._rows,)

    @overload
    def __getitem__(self, index: int) -> RowChange: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RowChange, ...]: ...
    def __getitem__(self, index: int | slice) -> RowChange | tuple[RowChange, ...]:
        return self._rows[index]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[RowChange]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Changes) and self.equals(other)

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return f"Changes({list(self._rows)!r})"

    def equals(self, other: Changes, ignore: Collection[str] = ()) -> bool:
        """True if both lead to the same rows; 60 and 60.0 differ, as do -0.0 and 0.0, 'a' and b'a'.

        ``ignore`` names what does not count: ``"table.column"``, ``"*.column"`` or ``"table"``.  Rows of a
        table whose key is ignored are compared by their other columns.
        """
        return tuple(self.ignoring(ignore)) == tuple(other.ignoring(ignore))

    def ignoring(self, ignore: Collection[str]) -> Changes:
        """These changes without what ``ignore`` names (see :meth:`equals`)."""
        if not ignore:
            return self
        tables, columns = _parse_ignore(ignore)
        kept = []
        for row in self._rows:
            table = row.table.casefold()
            if table in tables:
                continue
            rest = row.without(columns.get(table, set()) | columns.get("*", set()))
            if rest is not None:
                kept.append(rest)
        return Changes(_cancel(kept))

    def minus(self, earlier: Changes) -> Changes:
        """The changes that lead from the state after ``earlier`` to this one."""
        return Changes(_subtract(self._rows, earlier._rows)) if earlier else self

    def then(self, later: Changes) -> Changes:
        """The inverse of ``minus``: from the base over this state to the end of ``later``."""
        return Changes(_compose(self._rows, later._rows)) if self and later else (self or later)

    def describe(self, expected: Changes, ignore: Collection[str] = (), *, limit: int = 20) -> list[str]:
        """The differences from ``expected``, one line per fault; empty when they are equal.

        ``orders #W2611340 status: expected 'cancelled', got 'pending'``.  After ``limit`` lines: ``... and
        N more``.
        """
        return describe_difference(self.ignoring(ignore), expected.ignoring(ignore), limit)

    def lines(self, *, whole: bool = False) -> list[str]:
        """The changes as lines for a person; long values are cut unless ``whole``."""
        return [line for row in self._rows for line in describe_row(row, whole=whole)]

    def to_json(self) -> list[dict[str, Any]]:
        """A list of dicts of JSON values; blobs become ``{"$blob": hex}``."""
        return [row.to_json() for row in self._rows]

    @classmethod
    def from_json(cls, records: Iterable[Mapping[str, Any]]) -> Changes:
        """The inverse of ``to_json``."""
        return cls(map(RowChange.from_json, records))


def _parse_ignore(ignore: Collection[str]) -> tuple[set[str], dict[str, set[str]]]:
    """Whole tables, and table -> columns, all casefolded as SQLite folds names."""
    tables: set[str] = set()
    columns: dict[str, set[str]] = {}
    for name in [ignore] if isinstance(ignore, str) else ignore:
        table, dot, column = name.casefold().rpartition(".")
        if dot:
            columns.setdefault(table, set()).add(column)
        else:
            tables.add(column)
    return tables, columns


# Net changes of consecutive spans of time. Rows with a key are followed by it; rows without one have no
# identity and are counted: +1 for an insert, -1 for a delete of the same content.


def _compose(first: Iterable[RowChange], second: Iterable[RowChange]) -> Iterator[RowChange]:
    """The changes 0 -> 2 from those 0 -> 1 and 1 -> 2."""
    first, second = list(first), list(second)
    yield from _count([(first, 1), (second, 1)])
    later = _by_key(second)
    for identity, row in _by_key(first).items():
        change = _compose_row(row, later.pop(identity, None))
        if change is not None:
            yield change
    yield from later.values()


def _subtract(whole: Iterable[RowChange], first: Iterable[RowChange]) -> Iterator[RowChange]:
    """The changes 1 -> 2 from those 0 -> 2 and 0 -> 1: back to 0 and the whole way again."""
    return _compose([_reverse(row) for row in first], whole)


def _cancel(rows: Iterable[RowChange]) -> list[RowChange]:
    """``rows`` without pairs of an insert and a delete of the same content, where neither has a key."""
    rows = list(rows)
    counted = [row for row in rows if _is_counted(row)]
    if not counted:
        return rows
    return [*_count([(counted, 1)]), *(row for row in rows if not _is_counted(row))]


def _is_counted(row: RowChange) -> bool:
    # an update without a key stems from an ignored key column: it can be neither followed nor counted
    return row.key is None and row.op != "update"


def _by_key(rows: Iterable[RowChange]) -> dict[tuple[str, bytes], RowChange]:
    return {row.row_identity(): row for row in rows if row.key is not None}


def _count(spans: list[tuple[list[RowChange], int]]) -> Iterator[RowChange]:
    net: Counter[tuple[str, bytes]] = Counter()
    content: dict[tuple[str, bytes], Values] = {}
    for rows, weight in spans:
        for row in filter(_is_counted, rows):
            identity = row.row_identity()
            net[identity] += weight if row.op == "insert" else -weight
            values = row.after if row.before is None else row.before
            assert values is not None
            content[identity] = values
    for identity, count in net.items():
        values = content[identity]
        for _ in range(abs(count)):
            if count > 0:
                yield RowChange(identity[0], "insert", None, None, values)
            else:
                yield RowChange(identity[0], "delete", None, values, None)


def _reverse(row: RowChange) -> RowChange:
    if row.op == "update":
        return RowChange(row.table, "update", row.key, row.after, row.before)
    return RowChange(row.table, "delete" if row.op == "insert" else "insert", row.key, row.after, row.before)


def _compose_row(first: RowChange, second: RowChange | None) -> RowChange | None:
    if second is None:
        return first
    # what a side does not mention it did not change, so the other side's value holds there
    before: dict[str, SQLiteValue] = {**(second.before or {}), **(first.before or {})}
    after: dict[str, SQLiteValue] = {**(first.after or {}), **(second.after or {})}
    existed, exists = first.op != "insert", second.op != "delete"
    if existed and exists:
        changed = [
            column
            for column in {**before, **after}
            if typed([before.get(column)]) != typed([after.get(column)])
        ]
        if not changed:
            return None
        return RowChange(
            first.table,
            "update",
            first.key,
            {column: before.get(column) for column in changed},
            {column: after.get(column) for column in changed},
        )
    if existed:
        return RowChange(first.table, "delete", first.key, before, None)
    return RowChange(first.table, "insert", first.key, None, after) if exists else None
