"""Scores by group: the rows of an evaluation, apart by what a field of theirs says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.averages import reward_of
from reward_kit.agent.results import passes_of
from reward_kit.agent.runs.row_fields import row_fields
from reward_kit.agent.tools.arguments import did_you_mean
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from reward_kit.agent.metrics import Estimate, PassTable
    from reward_kit.agent.results import RowResult


METADATA = "metadata"
MOST_GROUPS = 20
"""Groups of a field that are still read as one table."""

_Known = list[tuple["RowResult", Mapping[str, Any]]]
"""Rows, with what they say of themselves."""


@dataclass(frozen=True, slots=True)
class Group:
    """The ``rows`` whose field has this ``value`` (None: that do not have it), counted up.

    ``passes`` and ``reward`` are what they would be of an evaluation of these rows alone.
    """

    value: Any
    rows: tuple[RowResult, ...]
    passes: PassTable
    reward: Estimate | None

    @property
    def judged(self) -> int:
        """The rollouts that enter Pass^k."""
        return sum(row.n for row in self.rows)

    @property
    def pass_power(self) -> Mapping[int, Estimate]:
        return self.passes.pass_power


def groups_of(rows: Sequence[RowResult], field: str, *, folder: Path, seed: int) -> list[Group]:
    """A group for each value of ``field``: numbers first, then texts, and last the rows without it.

    ``field`` is a field of rows, or what is within one: ``metadata.domain``. A row whose value is a list is
    in the group of each of its members. Rows of which no rollout is over are in none: what they say is read
    from trajectories in the runs folder ``folder``. Raises ``UsageError`` where no row has the field,
    ``StorageError`` where no trajectory of a row can be read.
    """
    if not isinstance(field, str):
        raise UsageError(f"rows are grouped by the name of a field, not by {field!r}")
    known = _known(rows, folder)
    groups = _groups(known, field, seed)
    if all(group.value is None for group in groups):
        raise _no_such_field(field, [fields for _, fields in known])
    return groups


def metadata_groups(rows: Sequence[RowResult], *, folder: Path, seed: int) -> dict[str, list[Group]]:
    """The groups by each field of the rows' metadata that tells them apart, as ``groups_of`` gives them.

    Its values are texts, numbers, true or false, or lists of such: two to ``MOST_GROUPS`` of them, each in
    two rows on average; what is another one in almost every row names rows, and is no group of them.
    Raises ``StorageError`` where no trajectory of a row can be read.
    """
    known = _known(rows, folder)
    metadata = [said for _, fields in known if isinstance(said := fields.get(METADATA), Mapping)]
    paths = dict.fromkeys(path for said in metadata for path in _paths(said))
    return {
        f"{METADATA}.{path}": _groups(known, f"{METADATA}.{path}", seed)
        for path in paths
        if _tells_apart([_values(said, path) for said in metadata])
    }


def _tells_apart(said: Sequence[Sequence[Any]]) -> bool:
    """Whether these values of rows make groups that are worth a table."""
    if any(isinstance(value, list | Mapping) for values in said for value in values):
        return False
    different = {_key(value) for values in said for value in values}
    return 2 <= len(different) <= MOST_GROUPS and 2 * len(different) <= sum(map(len, said))


def _known(rows: Sequence[RowResult], folder: Path) -> _Known:
    return [(row, fields) for row in rows if (fields := row_fields(row, folder)) is not None]


def _groups(known: _Known, field: str, seed: int) -> list[Group]:
    found: dict[str, tuple[Any, list[RowResult]]] = {}
    for row, fields in known:
        for value in _values(fields, field) or [None]:
            found.setdefault(_key(value), (value, []))[1].append(row)
    groups = [
        Group(value, tuple(of), passes_of(of, seed=seed), reward_of(of, seed=seed))
        for value, of in found.values()
    ]
    return sorted(groups, key=lambda group: _order(group.value))


def _values(fields: Mapping[str, Any], path: str) -> list[Any]:
    """What a row says at ``path``: the members of a list, each once; nothing for null or where it is not."""
    value = _at(fields, path)
    members = value if isinstance(value, list) else [value]
    return list({_key(member): member for member in members if member is not None}.values())


def _at(fields: Any, path: str) -> Any:
    """The value at ``path``, whose names may have dots themselves; None where there is none."""
    if not isinstance(fields, Mapping):
        return None
    if path in fields:
        return fields[path]
    first, _, rest = path.partition(".")
    return _at(fields.get(first), rest) if rest else None


def _key(value: Any) -> str:
    """Text that is the same for the same JSON value: 1, true and "1" are three."""
    return json.dumps(value, sort_keys=True)


def _order(value: Any) -> tuple[int, float, str]:
    if value is None:
        return 2, 0.0, ""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return 0, value, ""
    return 1, 0.0, value if isinstance(value, str) else _key(value)


def _no_such_field(field: str, rows: Sequence[Mapping[str, Any]]) -> UsageError:
    if not rows:
        return UsageError("no rollout is over yet, so nothing is known of the rows")
    known = list(dict.fromkeys(path for fields in rows for path in _paths(fields)))
    return UsageError(
        f"no row has a field {field!r}{did_you_mean(field, known)}", remedy=f"There are: {', '.join(known)}."
    )


def _paths(fields: Mapping[str, Any], before: str = "") -> Iterator[str]:
    """The names of fields, and of what is within them."""
    for name, value in fields.items():
        if isinstance(value, Mapping):
            yield from _paths(value, f"{before}{name}.")
        else:
            yield f"{before}{name}"
