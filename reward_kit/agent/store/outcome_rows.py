"""Outcomes of rollouts as rows of the table ``rollouts``: the one mapping of fields to columns."""

from __future__ import annotations

import json
from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import json_text
from reward_kit.agent.base.redaction import hide
from reward_kit.agent.rollout.outcome import RolloutOutcome, usage_from_json
from reward_kit.agent.store.evaluation_file import checked_id, checked_row_id
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.base.types import Usage
    from reward_kit.agent.rollout.outcome import PlayedRollout

_ADDRESS = "file"
"""The field that is no column: it follows from the evaluation's file and the id."""
_RENAMED = {"index": "idx", "database": "file"}
_COLUMNS = {
    one.name: _RENAMED.get(one.name, one.name) for one in fields(RolloutOutcome) if one.name != _ADDRESS
}
_FREE_TEXT = ("stop_detail", "error", "failure_detail")
_JSON = ("usage", "user_faults", "tool_faults", "metrics", "violations")
_values = attrgetter(*_COLUMNS)
_text_places, _json_places = (
    [place for place, name in enumerate(_COLUMNS) if name in names] for names in (_FREE_TEXT, _JSON)
)
WRITTEN = (*_COLUMNS.values(), "run", "tokens", "cost", "base", "judged")
"""The columns that ``row_of`` fills."""
_SELECT = ", ".join(_COLUMNS.get(one.name, "? || id") for one in fields(RolloutOutcome))
_FIELDS = [one.name for one in fields(RolloutOutcome)]
_shared_places = [
    _FIELDS.index(name)
    for name in ("row_id", "stop_reason", "reward", "failure", "model_seconds", "waited_seconds")
]
_json_cells = [_FIELDS.index(name) for name in _JSON]
_ID_PLACE, _ROW_ID_PLACE, _USAGE_PLACE = map(_FIELDS.index, ("id", "row_id", "usage"))
_decode = json.JSONDecoder().decode  # ``json.loads`` takes a third longer


def row_of(played: PlayedRollout, run: int, hidden: set[str]) -> tuple[Any, ...]:
    """The values of an attempt in ``WRITTEN``; ``hidden`` gets the secrets that were in its texts."""
    outcome = played.outcome
    values = list(_values(outcome))
    for place in _text_places:
        values[place] = storable(values[place], hidden)
    for place in _json_places:
        if values[place] is not None:
            values[place] = hide(json_text(values[place]), hidden)
    return (*values, run, *totals(outcome.usage), played.base, played.judged)


def storable(text: str | None, hidden: set[str]) -> str | None:
    """``text`` without secrets; halves of surrogate pairs, which SQLite does not take, are escaped."""
    return None if text is None else hide(text, hidden).encode("utf-8", "backslashreplace").decode("utf-8")


def read_outcomes(
    connection: sqlite3.Connection, path: Path, where: str = "1", values: Sequence[object] = ()
) -> Iterator[RolloutOutcome]:
    """The stored attempts that ``where`` (SQL of this package) selects, in the order of storing.

    Raises ``StorageError`` for a damaged row.
    """
    query = f"SELECT {_SELECT} FROM rollouts WHERE {where} ORDER BY seq"  # noqa: S608
    row_ids: set[str] = set()
    shared: dict[Any, Any] = {}  # values that recur are kept once
    for row in connection.execute(query, (f"evals/{path.name}/", *values)):
        cells = list(row)
        id_, row_id = cells[_ID_PLACE], cells[_ROW_ID_PLACE]
        checked_id(id_, path)
        if row_id not in row_ids:
            row_ids.add(checked_row_id(row_id, path))
        for place in _shared_places:
            value = cells[place]
            cells[place] = shared.setdefault(value, value)
        try:
            for place in _json_cells:
                if cells[place] is not None:
                    cells[place] = {} if cells[place] == "{}" else _decode(cells[place])
            if cells[_USAGE_PLACE]:
                cells[_USAGE_PLACE] = usage_from_json(cells[_USAGE_PLACE])
        except (TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"rollout {id_} is damaged: {error}", place=str(path)) from error
        outcome = RolloutOutcome(*cells)
        outcome.final = bool(outcome.final)
        yield outcome


def totals(usage: Mapping[str, Usage]) -> tuple[int, float]:
    """Tokens and cost of all roles."""
    used = usage.values()
    return sum(one.input_tokens + one.output_tokens for one in used), sum(one.cost for one in used)
