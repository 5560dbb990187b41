"""Outcomes of rollouts as rows of the table ``rollouts``."""

from __future__ import annotations

import json
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.redaction import hide, hide_in_json
from reward_kit.agent.base.strict_json import json_bytes
from reward_kit.agent.records.evaluation_file import checked_id, checked_row_id
from reward_kit.agent.records.outcome import RolloutOutcome, usage_from_json
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.base.types import Usage
    from reward_kit.agent.records.outcome import PlayedRollout

_RENAMED = {"index": "idx", "database": "file"}
_FIELDS = tuple(one.name for one in fields(RolloutOutcome) if one.name != "file")
_COLUMNS = tuple(_RENAMED.get(name, name) for name in _FIELDS)
_FREE_TEXT = frozenset({"stop_detail", "error", "failure_detail"})
_JSON = frozenset({"usage", "user_faults", "tool_faults", "metrics"})
_JSON_PLACES = tuple(place for place, name in enumerate(_FIELDS) if name in _JSON and name != "usage")
_FILE, _USAGE, _FINAL = (
    [one.name for one in fields(RolloutOutcome)].index("file"),
    _FIELDS.index("usage"),
    _FIELDS.index("final"),
)
_decode = json.JSONDecoder().decode  # ``json.loads`` takes a third longer
_values = attrgetter(*_FIELDS)
WRITTEN = (*_COLUMNS, "run", "tokens", "cost", "base", "judged")
"""The columns that ``row_of`` fills."""


def row_of(played: PlayedRollout, run: int, secrets: Collection[str]) -> tuple[Any, ...]:
    """The values of an attempt in ``WRITTEN``; ``secrets`` are hidden in texts of foreign code."""
    outcome = played.outcome
    values = list(_values(outcome))
    for place, name in enumerate(_FIELDS):
        if name in _FREE_TEXT:
            values[place] = storable(values[place], secrets)
        elif name in _JSON and values[place] is not None:
            values[place] = hide_in_json(json_text(values[place]), secrets)
    return (*values, run, *totals(outcome.usage), played.base, played.judged)


def storable(text: str | None, secrets: Collection[str]) -> str | None:
    """``text`` without ``secrets``; halves of surrogate pairs, which SQLite does not take, are escaped."""
    return None if text is None else hide(text, secrets).encode("utf-8", "backslashreplace").decode("utf-8")


def read_outcomes(
    connection: sqlite3.Connection, path: Path, where: str = "1", values: Sequence[object] = ()
) -> Iterator[RolloutOutcome]:
    """The stored attempts that ``where`` (SQL of this package) selects, in the order of storing.

    Raises ``StorageError`` for a damaged row.
    """
    row_id_of = cache(lambda row_id: checked_row_id(row_id, path))
    address = f"evals/{path.name}/"
    query = f"SELECT {', '.join(_COLUMNS)} FROM rollouts WHERE {where} ORDER BY seq"  # noqa: S608
    for row in connection.execute(query, values):
        rollout, row_id, *rest = row
        checked_id(rollout, path)
        found = [rollout, row_id_of(row_id), *rest]
        try:
            found[_FINAL] = bool(found[_FINAL])
            found[_USAGE] = usage_from_json(_decode(found[_USAGE]))
            for place in _JSON_PLACES:
                text = found[place]
                if text is not None:
                    found[place] = [] if text == "[]" else _decode(text)
        except (TypeError, ValueError, AttributeError) as error:
            raise StorageError(f"rollout {rollout} is damaged: {error}", place=str(path)) from error
        found.insert(_FILE, address + rollout)
        yield RolloutOutcome(*found)


def totals(usage: Mapping[str, Usage]) -> tuple[int, float]:
    """Tokens and cost of all roles."""
    used = usage.values()
    return sum(one.input_tokens + one.output_tokens for one in used), sum(one.cost for one in used)


def json_text(value: Any) -> str:
    """``value`` as JSON text."""
    return json_bytes(value).decode("utf-8")
