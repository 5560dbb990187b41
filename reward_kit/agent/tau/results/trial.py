"""``Trial``: one simulation of a results file, of either benchmark, as a recording to replay."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.rollout.trace import Trace

if TYPE_CHECKING:
    from reward_kit.agent.rows.task_row import TaskRow

NOTHING_SAID = "(nothing was said)"
"""Stands for an empty reply, which the benchmarks accept."""


@dataclass(frozen=True, slots=True)
class Expected:
    """A task of the file: ``fields`` as a row has them, and its user, as far as the file has them."""

    fields: dict[str, Any]
    instruction: str | None = None
    user_id: str | None = None

    def differing_fields(self, row: TaskRow) -> list[str]:
        """The fields of ``row`` with other contents than the file's task."""
        ours = {name: row.more.get(name, getattr(row, name, None)) for name in self.fields}
        compared = [name for name in ours if ours[name] is not None or name != "score_by"]
        return [one for one in compared if _comparable(one, self.fields[one]) != _comparable(one, ours[one])]


@dataclass(kw_only=True)
class Trial(Trace):
    """One simulation: the benchmark's grade, the lines and the calls.

    ``place`` is its JSON path, ``task_id`` the task that it was graded by, ``named`` the one that it names if
    that is known to differ. ``index`` counts the trials of a task from 0. ``reward`` is None if the file has
    none. ``parts`` are the parts of the grade by the name of our metric (data, outputs, …). ``tool_calls``
    are those of both sides in their order.
    """

    id: str = ""
    row_id: str = ""
    place: str
    task_id: int | str
    named: int | str | None = None
    parts: dict[str, float] = field(default_factory=dict)
    expected: Expected | None = None

    def recording(self, row_id: str, index: int, opening: int) -> Trial:
        """The trial as a recorded rollout of a row with ``opening`` messages."""
        speaks = any(message["role"] == "user" for message in self.messages[opening:])
        user = "recorded" if speaks else "none"
        return replace(self, id=f"{row_id} {index}", row_id=row_id, index=index, user=user)


def _comparable(name: str, value: Any) -> str:
    """A field's value as text that does not depend on how it is written."""
    value = value or []
    if name in ("actions", "checks"):
        calls = (one if isinstance(one, dict | str) else one.to_json() for one in value)
        value = [_call(one) for one in calls if isinstance(one, dict)]  # SQL checks have no place in a file
    return json.dumps(sorted(value) if name == "score_by" else value, sort_keys=True, default=str)


def _call(one: dict[str, Any]) -> Any:
    return [one.get("by", "agent"), one.get("name"), one.get("arguments") or {}, one.get("is", True)]
