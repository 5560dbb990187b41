"""The values in which the final data differ from what was expected."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import cut, json_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from reward_kit.agent.database.row_change import RowChange

LONGEST_VALUE = 300
"""Characters of a text that are kept."""
LEAD = 40
"""Characters that are shown of the common beginning of two long texts."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One value that differs, or a whole row (``column`` is None) that is missing or unexpected.

    Of a whole row ``expected`` and ``got`` hold the values by column; the side without the row is None.
    ``key`` is None if the table has no key.
    """

    table: str
    key: Mapping[str, Any] | None
    column: str | None
    expected: Any
    got: Any

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; long texts are cut, around the place where they begin to differ."""
        expected, got = _shortened(self.expected, self.got)
        return {**asdict(self), "expected": expected, "got": got}

    def line(self) -> str:
        """See ``row_line``."""
        return row_line(self.to_json())


def row_line(row: Mapping[str, Any]) -> str:
    """The JSON of a row difference as a line: ``orders #W1 status: expected "paid", got "open"``."""
    name, key = str(row.get("table")), row.get("key")
    if isinstance(key, dict) and key:
        values = list(key.values())
        name += f" #{str(values[0]).removeprefix('#')}" if len(values) == 1 else f" {json_text(key)}"
    expected, got = json_text(row.get("expected")), json_text(row.get("got"))
    if row.get("column"):
        return f"{name} {row['column']}: expected {expected}, got {got}"
    if row.get("got") is None:
        return f"{name}: missing row {expected}"
    if row.get("expected") is None:
        return f"{name}: unexpected row {got}"
    return f"{name}: expected {expected}, got {got}"


class DifferingRows:
    """The rows in which data differ, to find the changes that touch one of them."""

    def __init__(self, differences: Iterable[RowDifference]) -> None:
        self._keys: dict[str, set[str | None]] = {}
        for one in differences:
            self._keys.setdefault(one.table, set()).add(_key(one.key))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def touched_by(self, change: Mapping[str, Any]) -> bool:
        """Return True if a change (as in ``ToolCall.changes``) may be of one of the rows.

        A row without a key may be any row of its table.
        """
        keys = self._keys.get(change["table"], ())
        key = _key(change.get("key"))
        return bool(keys) and (key is None or key in keys or None in keys)


def _key(key: Mapping[str, Any] | None) -> str | None:
    return None if key is None else json.dumps(key, sort_keys=True, default=str)


def row_differences(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> list[RowDifference]:
    """The differences between two states of one base, given by their changes.

    Empty exactly if the changes are equal. Rows without a key are compared by their content.
    """
    actual, expected = list(actual), list(expected)
    have = {change.row_identity(): change for change in actual if change.key is not None}
    want = {change.row_identity(): change for change in expected if change.key is not None}
    named = {**have, **want}
    ordered = sorted(named, key=lambda identity: named[identity].sort_key())
    return [
        *(one for each in ordered for one in _of_row(named[each], want.get(each), have.get(each))),
        *_without_keys(actual, expected),
    ]


def _of_row(named: RowChange, want: RowChange | None, have: RowChange | None) -> Iterator[RowDifference]:
    """The differences of one row; a side that is None left it as the base has it."""
    if want == have:
        return
    in_base = any(change is not None and change.op != "insert" for change in (want, have))
    wanted = in_base if want is None else want.op != "delete"
    exists = in_base if have is None else have.op != "delete"
    want_after, have_after = (dict(side.after or {}) if side else {} for side in (want, have))
    base = {name: value for side in (want, have) if side for name, value in (side.before or {}).items()}
    wanted_row, got_row = {**base, **want_after}, {**base, **have_after}
    key = _plain_row(named.key)
    if wanted and exists:
        for column in want_after | have_after:
            expected, got = wanted_row.get(column), got_row.get(column)
            if (type(expected), repr(expected)) != (type(got), repr(got)):
                yield RowDifference(named.table, key, column, _plain(expected), _plain(got))
    elif wanted:
        yield RowDifference(named.table, key, None, _plain_row(wanted_row), None)
    elif exists:
        yield RowDifference(named.table, key, None, None, _plain_row(got_row))


def _without_keys(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> Iterator[RowDifference]:
    have = Counter(change for change in actual if change.key is None)
    want = Counter(change for change in expected if change.key is None)
    for change in (want - have).elements():
        yield RowDifference(change.table, None, None, _plain_row(change.after), _plain_row(change.before))
    for change in (have - want).elements():
        yield RowDifference(change.table, None, None, _plain_row(change.before), _plain_row(change.after))


def _plain_row(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """The value as changes have it in JSON."""
    if isinstance(value, bytes):
        return {"$blob": value.hex()}
    if isinstance(value, float) and value - value != 0.0:  # JSON has no infinity
        return {"$real": repr(value)}
    return value


def _shortened(expected: Any, got: Any) -> tuple[Any, Any]:
    if not isinstance(expected, str) or not isinstance(got, str):
        return _cut_values(expected), _cut_values(got)
    same = next(
        (place for place, (one, other) in enumerate(zip(expected, got, strict=False)) if one != other),
        min(len(expected), len(got)),
    )
    begin = max(0, same - LEAD) if max(len(expected), len(got)) > LONGEST_VALUE else 0
    lead = "…" if begin else ""
    return lead + cut(expected[begin:], LONGEST_VALUE), lead + cut(got[begin:], LONGEST_VALUE)


def _cut_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cut_values(inner) for name, inner in value.items()}
    return cut(value, LONGEST_VALUE) if isinstance(value, str) else value
