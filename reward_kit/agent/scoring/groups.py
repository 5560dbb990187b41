"""Scores by group: the rows of an evaluation, grouped by the value of one of their fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import count, did_you_mean
from reward_kit.agent.scoring.metrics import passes_of, reward_of
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.scoring.metrics import Estimate, PassTable, RowResult

MOST_GROUPS = 20
"""Fields with more values than this get no table."""


@dataclass(frozen=True, slots=True)
class Group:
    """The ``rows`` whose field has this ``value`` (None: rows without the field), counted.

    ``passes`` and ``reward`` are those of an evaluation of these rows alone.
    """

    value: Any
    rows: tuple[RowResult, ...]
    passes: PassTable
    reward: Estimate | None

    def __repr__(self) -> str:
        first = self.pass_power.get(1)
        passed = "" if first is None else f", Pass^1 {first.value:.3f}"
        return f"<Group {self.value!r}: {count(len(self.rows), 'row')}{passed}>"

    @property
    def n_scored(self) -> int:
        """The rollouts that enter Pass^k."""
        return sum(row.n_scored for row in self.rows)

    @property
    def pass_power(self) -> Mapping[int, Estimate]:
        """Pass^k by k."""
        return self.passes.pass_power


def groups_of(rows: Sequence[tuple[RowResult, Mapping[str, Any]]], field: str) -> list[Group]:
    """Group ``rows``, given with their fields, by ``field``: numbers first, then texts, then rows without it.

    ``field`` is a field, or the path of a value within one: ``metadata.domain``. A row whose value is a list
    is in the group of each member. Raises ``UsageError`` if no row has the field.
    """
    found: dict[str, tuple[Any, list[RowResult]]] = {}
    for row, fields in rows:
        for value in values_at(fields, field) or [None]:
            found.setdefault(_key(value), (value, []))[1].append(row)
    if set(found) <= {_key(None)}:
        if not rows:
            raise UsageError("no rollout is finished yet, so the fields of the rows are not known")
        known = [*dict.fromkeys(path for _, fields in rows for path in _paths(fields))]
        fault = f"no row has a field {field!r}{did_you_mean(field, known)}"
        raise UsageError(fault, remedy=f"There are: {', '.join(known)}.")
    groups = [
        Group(value, tuple(members), passes_of(members), reward_of([row.rewards for row in members]))
        for value, members in found.values()
    ]
    return sorted(groups, key=lambda group: _order(group.value))


def metadata_groups(rows: Sequence[tuple[RowResult, Mapping[str, Any]]]) -> dict[str, list[Group]]:
    """The groups by each metadata field whose values are worth a table.

    The values are texts, numbers, booleans, or lists of these: two to ``MOST_GROUPS`` different ones, each in
    two rows on average (a value that nearly every row has alone is a name, not a group).
    """
    metadata = [fields.get("metadata") or {} for _, fields in rows]
    return {
        f"metadata.{path}": groups_of(rows, f"metadata.{path}")
        for path in dict.fromkeys(path for fields in metadata for path in _paths(fields))
        if _are_groups([value for fields in metadata for value in values_at(fields, path)])
    }


def _are_groups(values: Sequence[Any]) -> bool:
    different = len(set(map(_key, values)))
    is_plain = not any(isinstance(value, list | Mapping) for value in values)
    return is_plain and 2 <= different <= MOST_GROUPS and 2 * different <= len(values)


def values_at(fields: Mapping[str, Any], path: str) -> list[Any]:
    """The value at ``path``, or the distinct members of a list; empty for null or a missing field."""
    value = _at(fields, path)
    members = value if isinstance(value, list) else [value]
    return list({_key(member): member for member in members if member is not None}.values())


def _at(fields: Any, path: str) -> Any:
    """The value at ``path``, whose names may have dots themselves; None if there is none."""
    if not isinstance(fields, Mapping):
        return None
    if path in fields:
        return fields[path]
    first, _, rest = path.partition(".")
    return _at(fields.get(first), rest) if rest else None


def _key(value: Any) -> str:
    """Text that is equal for equal JSON values only: 1, true and "1" differ."""
    return json.dumps(value, sort_keys=True)


def _order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value, ""
    return 1, 0.0, value if isinstance(value, str) else _key(value)


def _paths(fields: Mapping[str, Any], before: str = "") -> Iterator[str]:
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"
