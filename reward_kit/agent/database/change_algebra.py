"""Net changes of consecutive spans of time: which rows lead from where to where.

Rows with a key are followed by it.  Rows without one have no identity and are counted: +1 for an insert, -1
for a delete of the same content.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from reward_kit.agent.database.row_change import RowChange, SQLiteValue, Values, typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_Row = dict[str, SQLiteValue]


def compose(first: Iterable[RowChange], second: Iterable[RowChange]) -> Iterator[RowChange]:
    """The changes 0 -> 2 from those 0 -> 1 and 1 -> 2."""
    first, second = list(first), list(second)
    yield from _count([(first, 1), (second, 1)])
    later = _by_key(second)
    for identity, row in _by_key(first).items():
        change = _compose_row(row, later.pop(identity, None))
        if change is not None:
            yield change
    yield from later.values()


def subtract(whole: Iterable[RowChange], first: Iterable[RowChange]) -> Iterator[RowChange]:
    """The changes 1 -> 2 from those 0 -> 2 and 0 -> 1: back to 0 and the whole way again."""
    return compose([_reverse(row) for row in first], whole)


def cancel(rows: Iterable[RowChange]) -> list[RowChange]:
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
    before: _Row = {**(second.before or {}), **(first.before or {})}
    after: _Row = {**(first.after or {}), **(second.after or {})}
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
