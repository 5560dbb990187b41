"""Row changes in words."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from reward_kit.agent.database.row_change import SCHEMA_TABLE, RowChange, SQLiteValue, Values, typed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_WIDTH = 80
"""Longest value (characters) that a line quotes."""
_ROW_WIDTH = 400
"""Longest row (characters) that a line quotes."""


def describe_row(change: RowChange, *, whole: bool = False) -> list[str]:
    """One line for an insert or a delete, one per column for an update; long values only if ``whole``."""
    name = _name(change, whole=whole)
    if change.op == "insert":
        return [f"{name}: inserted {_content(change.after, whole=whole)}"]
    if change.op == "delete":
        return [f"{name}: deleted {_content(change.before, whole=whole)}"]
    before, after = change.before or {}, change.after or {}
    return [
        f"{name} {column}: {_quote(before.get(column), whole=whole)} -> {_quote(value, whole=whole)}"
        for column, value in after.items()
    ]


def describe_difference(actual: Iterable[RowChange], expected: Iterable[RowChange], limit: int) -> list[str]:
    """How ``actual`` differs from ``expected``; at most ``limit`` lines and one that counts the rest."""
    lines = [*_keyed_faults(actual, expected), *_counted_faults(actual, expected)]
    if len(lines) <= limit:
        return lines
    return [*lines[:limit], f"... and {len(lines) - limit} more"]


def _keyed_faults(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> Iterator[str]:
    have = {change.row_identity(): change for change in actual if change.key is not None}
    want = {change.row_identity(): change for change in expected if change.key is not None}
    named = {**have, **want}
    for identity in sorted(named, key=lambda identity: named[identity].sort_key()):
        yield from _row_faults(_name(named[identity]), want.get(identity), have.get(identity))


def _row_faults(name: str, want: RowChange | None, have: RowChange | None) -> Iterator[str]:
    """What is wrong with one row; a side that is ``None`` left the row as the base has it."""
    in_base = any(change is not None and change.op != "insert" for change in (want, have))
    wanted = in_base if want is None else want.op != "delete"
    there = in_base if have is None else have.op != "delete"
    if wanted and there:
        yield from _column_faults(name, want, have)
    elif wanted:
        if in_base:
            yield f"{name}: deleted, expected to stay"
        elif want is not None:
            yield f"{name}: missing row {_content(want.after)}"
    elif there:
        if in_base:
            yield f"{name}: expected to be deleted, still there"
        elif have is not None:
            yield f"{name}: unexpected row {_content(have.after)}"


def _column_faults(name: str, want: RowChange | None, have: RowChange | None) -> Iterator[str]:
    want_before, want_after = _sides(want)
    have_before, have_after = _sides(have)
    base = {**want_before, **have_before}
    for column in {**want_after, **have_after}:
        wanted = want_after.get(column, base.get(column))
        got = have_after.get(column, base.get(column))
        if typed([wanted]) != typed([got]):
            yield f"{name} {column}: expected {_quote(wanted)}, got {_quote(got)}"


def _counted_faults(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> Iterator[str]:
    have = Counter(change for change in actual if change.key is None)
    want = Counter(change for change in expected if change.key is None)
    missing = {
        "insert": "missing row",
        "delete": "expected to be deleted, still there:",
        "update": "missing change",
    }
    surplus = {
        "insert": "unexpected row",
        "delete": "deleted, expected to stay:",
        "update": "unexpected change",
    }
    for counted, words in ((want - have, missing), (have - want, surplus)):
        for change in sorted(counted.elements(), key=RowChange.sort_key):
            yield f"{_name(change)}: {words[change.op]} {_counted_content(change)}"


def _counted_content(change: RowChange) -> str:
    if change.op == "update":
        return f"{_content(change.before)} -> {_content(change.after)}"
    return _content(change.after if change.before is None else change.before)


def _sides(change: RowChange | None) -> tuple[Values, Values]:
    if change is None:
        return {}, {}
    return change.before or {}, change.after or {}


def _name(change: RowChange, *, whole: bool = False) -> str:
    """Table and key: ``orders #W2611340``, ``order_items (order_id='#W2611340', item_id=7)``."""
    if change.key is None:
        return change.table
    if change.table == SCHEMA_TABLE:
        kind, name = map(str, change.key.values())
        return f"schema: {kind} {name}"
    values: Sequence[SQLiteValue] = list(change.key.values())
    if len(values) == 1 and isinstance(values[0], (str, int)):
        text = str(values[0])
        return f"{change.table} {text if text.startswith('#') else '#' + text}"
    return f"{change.table} ({_listed(change.key, whole=whole)})"


def _content(values: Values | None, *, whole: bool = False) -> str:
    return f"({_shorten(_listed(values or {}, whole=whole), _ROW_WIDTH, whole=whole)})"


def _listed(values: Values, *, whole: bool) -> str:
    return ", ".join(f"{name}={_quote(value, whole=whole)}" for name, value in values.items())


def _quote(value: SQLiteValue, *, whole: bool = False) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"x'{_shorten(value.hex(), _WIDTH, whole=whole)}'"
    return repr(_shorten(value, _WIDTH, whole=whole)) if isinstance(value, str) else repr(value)


def _shorten(text: str, width: int, *, whole: bool) -> str:
    return text if whole or len(text) <= width else f"{text[: width - 3]}..."
