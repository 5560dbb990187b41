"""The values in which the final data differ from what was expected."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.cut_text import cut

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from reward_kit.agent.database.row_change import RowChange

LONGEST_VALUE = 300
"""Characters of a text that are kept."""
LEAD = 40
"""Characters that are shown of what two long texts have in common."""


@dataclass(frozen=True, slots=True)
class RowDifference:
    """One value that differs, or a whole row (``column`` is None) that is missing or too many.

    Of a whole row ``expected`` and ``got`` hold the values by column; the side on which there is no such row
    is None. ``key`` is None where the table has no key.
    """

    table: str
    key: Mapping[str, Any] | None
    column: str | None
    expected: Any
    got: Any

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; long texts are cut, around the place where they begin to differ."""
        expected, got = _shown(self.expected, self.got)
        key = None if self.key is None else dict(self.key)
        return {"table": self.table, "key": key, "column": self.column, "expected": expected, "got": got}

    def line(self) -> str:
        """``orders #W1 status: expected 'cancelled', got 'pending'``."""
        expected, got = _shown(self.expected, self.got)
        if self.column is not None:
            return f"{self._name} {self.column}: expected {expected!r}, got {got!r}"
        if self.got is None:
            return f"{self._name}: missing row {_row(expected)}"
        if self.expected is None:
            return f"{self._name}: unexpected row {_row(got)}"
        return f"{self._name}: expected {_row(expected)}, got {_row(got)}"

    @property
    def _name(self) -> str:
        if self.key is None:
            return self.table
        values = list(self.key.values())
        if len(values) == 1 and isinstance(values[0], str | int):
            return f"{self.table} #{str(values[0]).removeprefix('#')}"
        return f"{self.table} ({', '.join(f'{name}={value!r}' for name, value in self.key.items())})"


class DifferingRows:
    """The rows in which data differ, to be asked whether a change is of one of them."""

    def __init__(self, differences: Iterable[RowDifference]) -> None:
        self._keys: dict[str, set[str | None]] = {}
        for one in differences:
            self._keys.setdefault(one.table, set()).add(_key(one.key))

    def __bool__(self) -> bool:
        return bool(self._keys)

    def touched_by(self, change: Mapping[str, Any]) -> bool:
        """Whether a change (as in ``ToolCall.changes``) is of one of them, as far as can be told: a row
        without a key may be any of its table.
        """
        keys = self._keys.get(change["table"], ())
        key = _key(change.get("key"))
        return bool(keys) and (key is None or key in keys or None in keys)


def _key(key: Mapping[str, Any] | None) -> str | None:
    return None if key is None else json.dumps(key, sort_keys=True, default=str)


def row_differences(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> list[RowDifference]:
    """How the state with the changes ``actual`` differs from the one with ``expected``; both of one base.

    Empty exactly where the changes are equal. Rows without a key are compared by their content.
    """
    have, want = list(actual), list(expected)
    return [*_keyed(have, want), *_keyless(have, want)]


def _keyed(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> Iterator[RowDifference]:
    have = {change.row_identity(): change for change in actual if change.key is not None}
    want = {change.row_identity(): change for change in expected if change.key is not None}
    named = {**have, **want}
    for identity in sorted(named, key=lambda identity: named[identity].sort_key()):
        yield from _of_row(named[identity], want.get(identity), have.get(identity))


def _of_row(named: RowChange, want: RowChange | None, have: RowChange | None) -> Iterator[RowDifference]:
    """The differences of one row; a side that is None left it as the base has it."""
    if want is not None and have is not None and want == have:
        return
    in_base = any(change is not None and change.op != "insert" for change in (want, have))
    wanted = in_base if want is None else want.op != "delete"
    there = in_base if have is None else have.op != "delete"
    base = {**_before(want), **_before(have)}
    wanted_row, got_row = {**base, **_after(want)}, {**base, **_after(have)}
    if wanted and there:
        for column in {**_after(want), **_after(have)}:
            wanted_value, got_value = wanted_row.get(column), got_row.get(column)
            if (type(wanted_value), repr(wanted_value)) != (type(got_value), repr(got_value)):
                yield RowDifference(
                    named.table, _plain_row(named.key), column, _plain(wanted_value), _plain(got_value)
                )
    elif wanted:
        yield RowDifference(named.table, _plain_row(named.key), None, _plain_row(wanted_row), None)
    elif there:
        yield RowDifference(named.table, _plain_row(named.key), None, None, _plain_row(got_row))


def _keyless(actual: Iterable[RowChange], expected: Iterable[RowChange]) -> Iterator[RowDifference]:
    have = Counter(change for change in actual if change.key is None)
    want = Counter(change for change in expected if change.key is None)
    for change in (want - have).elements():
        yield RowDifference(change.table, None, None, _plain_row(change.after), _plain_row(change.before))
    for change in (have - want).elements():
        yield RowDifference(change.table, None, None, _plain_row(change.before), _plain_row(change.after))


def _before(change: RowChange | None) -> Mapping[str, Any]:
    return (change.before if change is not None else None) or {}


def _after(change: RowChange | None) -> Mapping[str, Any]:
    return (change.after if change is not None else None) or {}


def _plain_row(values: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if values is None else {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    """The value as changes have it in JSON."""
    if isinstance(value, bytes):
        return {"$blob": value.hex()}
    if isinstance(value, float) and value - value != 0.0:  # JSON has no word for infinity
        return {"$real": repr(value)}
    return value


def _shown(expected: Any, got: Any) -> tuple[Any, Any]:
    """Both sides short enough to be read."""
    if isinstance(expected, str) and isinstance(got, str):
        same = next(
            (place for place, (one, other) in enumerate(zip(expected, got, strict=False)) if one != other),
            min(len(expected), len(got)),
        )
        begin = max(0, same - LEAD) if max(len(expected), len(got)) > LONGEST_VALUE else 0
        return _cut(expected, begin), _cut(got, begin)
    return _cut_values(expected), _cut_values(got)


def _cut_values(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _cut_values(inner) for name, inner in value.items()}
    return _cut(value, 0) if isinstance(value, str) else value


def _cut(text: str, begin: int) -> str:
    return ("…" if begin else "") + cut(text[begin:], LONGEST_VALUE)


def _row(values: Any) -> str:
    if not isinstance(values, dict):
        return repr(values)
    return f"({', '.join(f'{name}={value!r}' for name, value in values.items())})"
