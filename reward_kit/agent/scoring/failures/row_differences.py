"""The values in which the final data differ from the expected ones."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, TypedDict

from reward_kit.agent.base.text import cut, json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from reward_kit.agent.database.changes import RowChange

LONGEST_VALUE = 300
"""Characters of a text that are kept."""
LEAD = 40
"""Characters that are shown of the common beginning of two long texts."""


class RowDifference(TypedDict):
    """One value that differs, or a whole row (``column`` is None) that is missing or unexpected.

    Of a whole row ``expected`` and ``got`` hold the values by column; the side without the row is None.
    ``key`` is None if the table has no key. Long texts are cut, around the place where they begin to differ.
    """

    table: str
    key: Mapping[str, Any] | None
    column: str | None
    expected: Any
    got: Any


def row_line(row: Mapping[str, Any]) -> str:
    """A row difference as a line: ``orders #W1 status: expected "paid", got "open"``."""
    name, key = str(row.get("table")), row.get("key")
    if isinstance(key, dict) and key:
        values = list(key.values())
        name += f" #{str(values[0]).removeprefix('#')}" if len(values) == 1 else f" {_listed(key)}"
    expected, got = row.get("expected"), row.get("got")
    if row.get("column"):
        return f"{name} {row['column']}: expected {json_text(expected)}, got {json_text(got)}"
    if got is None:
        return f"{name}: missing row {_listed(expected, key)}"
    if expected is None:
        return f"{name}: unexpected row {_listed(got, key)}"
    return f"{name}: expected {_listed(expected)}, got {_listed(got)}"


def _listed(values: Any, told: Any = None) -> str:
    """``(amount=109.27, type="refund")``, without the key that was ``told``."""
    if not isinstance(values, dict):
        return json_text(values)
    told = told if isinstance(told, dict) and told.keys() < values.keys() else {}
    return f"({', '.join(f'{name}={json_text(one)}' for name, one in values.items() if name not in told)})"


def row_differences(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> list[RowDifference]:
    """The differences between two states of one base, given by their changes.

    Empty exactly if the changes are equal. Rows without a key are compared by their content.
    """
    actual, expected = list(actual), list(expected)
    have = {change.row_identity(): change for change in actual if change.key is not None}
    want = {change.row_identity(): change for change in expected if change.key is not None}
    both = {**have, **want}
    ordered = sorted(both, key=lambda identity: both[identity].sort_key())
    return [
        *(one for each in ordered for one in _of_row(want.get(each), have.get(each))),
        *_without_keys(actual, expected),
    ]


def _of_row(want: RowChange | None, have: RowChange | None) -> Iterator[RowDifference]:
    """The differences of one row; a side that is None left it as the base has it."""
    wanted, made = (side.to_json() if side else {} for side in (want, have))
    named = wanted or made
    table, key = named["table"], named["key"]
    in_base = any(side and side["op"] != "insert" for side in (wanted, made))
    base = {**wanted.get("before", {}), **made.get("before", {})}
    expected, got = (
        {**base, **side.get("after", {})} if (side["op"] != "delete" if side else in_base) else None
        for side in (wanted, made)
    )
    if expected is None or got is None:
        if expected != got:
            yield _difference(table, key, None, expected, got)
        return
    for column in wanted.get("after", {}) | made.get("after", {}):
        one, other = expected.get(column), got.get(column)
        if repr(one) != repr(other):  # 1, 1.0 and true differ
            yield _difference(table, key, column, one, other)


def _without_keys(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> Iterator[RowDifference]:
    have = Counter(change for change in actual if change.key is None)
    want = Counter(change for change in expected if change.key is None)
    for changes, sides in ((want - have, ("after", "before")), (have - want, ("before", "after"))):
        for change in changes.elements():
            yield _difference(change.table, None, None, *map(change.to_json().get, sides))


def _difference(
    table: str, key: Mapping[str, Any] | None, column: str | None, expected: Any, got: Any
) -> RowDifference:
    start = 0
    if isinstance(expected, str) and isinstance(got, str) and max(len(expected), len(got)) > LONGEST_VALUE:
        pairs = enumerate(zip(expected, got, strict=False))
        same = next((at for at, (one, other) in pairs if one != other), min(len(expected), len(got)))
        start = max(0, same - LEAD)
    return RowDifference(
        table=table, key=key, column=column, expected=_cut(expected, start), got=_cut(got, start)
    )


def _cut(value: Any, start: int = 0) -> Any:
    if isinstance(value, dict):
        return {name: _cut(inner) for name, inner in value.items()}
    return cut(f"{'…' if start else ''}{value[start:]}", LONGEST_VALUE) if isinstance(value, str) else value
