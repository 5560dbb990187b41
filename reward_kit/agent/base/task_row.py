"""The rows of a dataset: the fields of one task, and faults that rows share."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import copied
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_FAULTS_SHOWN = 200

INJECTED = frozenset({"messages", "db", "gold_db", "rollout"})
"""Arguments that a reward gets from the rollout; a row cannot have fields of these names."""


@dataclass(frozen=True, slots=True)
class Action:
    """One ground-truth call; ``arguments`` may hold references to earlier results (``gold_reference``)."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The action as the dataset has it."""
        return {"name": self.name, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of a dataset; ``more`` are the fields that are not listed here, for the reward.

    ``place`` is the line that the row was read from, ``task.jsonl:3``, else its id; ``texts`` are those of
    its ``file:`` fields.
    """

    id: str
    toolset: str
    initial_messages: list[dict[str, Any]] = field(default_factory=list)
    reward: str | None = None
    seed_sql: str | None = None
    end_goal_sql: str | None = None
    system_prompt: str | None = None
    sim_user_prompt: str | None = None
    sim_user_template: str | None = None
    n_rollouts: int = 1
    actions: list[Action] | None = None
    outputs: list[str] = field(default_factory=list)
    max_steps: int = 30
    now: str | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    toolset_outside: bool | None = None
    more: Mapping[str, Any] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    place: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.place:
            object.__setattr__(self, "place", f"row {self.id!r}")

    @classmethod
    def from_json(
        cls, plain: Mapping[str, Any], *, place: str = "", texts: Mapping[str, str] | None = None
    ) -> TaskRow:
        """The row of a checked JSON object; ``null`` counts as leaving a field out."""
        known: dict[str, Any] = {}
        more: dict[str, Any] = {}
        for name, value in plain.items():
            if name not in KNOWN_FIELDS:
                more[name] = value
            elif value is not None:
                known[name] = value
        if "actions" in known:
            known["actions"] = [Action(**action) for action in known["actions"]]
        return cls(**known, more=more or _NOTHING, texts=texts or _NOTHING, place=place)

    def copied(self) -> TaskRow:
        """A copy that shares no mutable value with this row."""
        actions = self.actions and [Action(one.name, copied(one.arguments)) for one in self.actions]
        changeable = ("initial_messages", "outputs", "metadata", "more")
        return replace(self, actions=actions, **{name: copied(getattr(self, name)) for name in changeable})

    def clock(self) -> datetime | None:
        """``now`` as a time in UTC; a time without an offset counts as UTC."""
        return None if self.now is None else parse_time(self.now)

    def text(self, name: str) -> str | None:
        """The field ``name``, with a ``file:`` reference replaced by that file's text."""
        value: str | None = self.texts.get(name, getattr(self, name))
        return value

    def given_fields(self) -> set[str]:
        """The names of all fields that have a value."""
        return {name for name in KNOWN_FIELDS if getattr(self, name) is not None} | self.more.keys()

    def reward_fields(self) -> dict[str, Any]:
        """The row as keyword arguments of a reward: plain JSON values, ``file:`` replaced by the text.

        Optional fields that have no value are left out; unknown fields are in.
        """
        given = {name: self.texts.get(name, getattr(self, name)) for name in KNOWN_FIELDS}
        if self.actions is not None:
            given["actions"] = [action.to_json() for action in self.actions]
        return {name: value for name, value in given.items() if value is not None} | dict(self.more)


KNOWN_FIELDS: dict[str, Any] = {
    item.name: item.default if item.default_factory is MISSING else item.default_factory()
    for item in fields(TaskRow)
    if item.name not in ("more", "texts", "place")
}
"""The documented fields with their defaults, ``MISSING`` for those that a row must have."""

_NOTHING: dict[str, Any] = {}
"""Shared by the rows that have no ``file:`` fields and none of their own."""


def parse_time(text: str) -> datetime:
    """An ISO 8601 date or time as a time in UTC; without an offset it counts as UTC.

    Raises ``ValueError`` for anything else.
    """
    moment = datetime.fromisoformat(text)
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


class FaultyBundleError(BundleError):
    """Several faults of one bundle; ``faults`` has one line for each, the message the first of them."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        shown = faults[:MAX_FAULTS_SHOWN]
        if len(faults) > len(shown):
            shown.append(f"… and {len(faults) - len(shown)} more faults")
        super().__init__("\n".join(shown))


class RowFaults:
    """Faults that rows share: one line each, with the first row and the number of others."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], tuple[TaskRow, int]] = {}

    def add(self, row: TaskRow, name: str, fault: str) -> None:
        """Note the fault of the field ``name``."""
        first, count = self._rows.get((name, fault), (row, 0))
        self._rows[name, fault] = first, count + 1

    def lines(self) -> list[str]:
        """``task.jsonl:3: row 'a', field 'toolset': … (also in 2 more rows)``."""
        return [
            f"{first.place}: row {first.id!r}, field {name!r}: {fault}{also_in_more_rows(count - 1)}"
            for (name, fault), (first, count) in self._rows.items()
        ]

    def raise_if_any(self) -> None:
        """Raise ``FaultyBundleError`` if there is a fault."""
        if self._rows:
            raise FaultyBundleError(self.lines())


def also_in_more_rows(count: int) -> str:
    """The end of a message about the first of several rows."""
    return f" (also in {count} more {'row' if count == 1 else 'rows'})" if count else ""
