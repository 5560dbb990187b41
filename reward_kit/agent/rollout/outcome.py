"""The outcome of a rollout, and the data of a played one that the store takes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypedDict

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.types import UNJUDGED_STOPS, Usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from reward_kit.agent.base.types import Violations

REWARD_ERROR = "reward_error"
SUCCESS_THRESHOLD = 1 - 1e-6
"""A reward of at least this much is a success."""


def is_success(reward: float) -> bool:
    """Return True if the reward counts as solved."""
    return reward >= SUCCESS_THRESHOLD


class ToolFault(TypedDict):
    """The number of calls of a tool that raised, and what the first one raised, after its place."""

    calls: int
    first: str


@dataclass(slots=True)
class Attempt:
    """One attempt at a rollout: its place, and its end.

    ``index`` counts the rollouts of the row from 0, ``attempt`` the tries at this one. ``reward`` is None if
    nothing could be judged: ``stop_reason`` says why, or ``error`` if the reward itself failed. ``started``
    is in Unix seconds.
    """

    id: str
    row_id: str
    index: int
    attempt: int
    seed: int
    reward: float | None
    stop_reason: str
    stop_detail: str | None = None
    error: str | None = None
    steps: int = 0
    turns: int = 0
    started: float = 0.0
    seconds: float = 0.0

    @property
    def judged(self) -> bool:
        """True if there is a reward."""
        return self.reward is not None

    @property
    def success(self) -> bool:
        return self.reward is not None and is_success(self.reward)

    @property
    def unjudged_reason(self) -> str | None:
        """The reason for having no reward: ``user_error``, ``infrastructure_error`` or ``reward_error``."""
        if self.reward is not None:
            return None
        return self.stop_reason if self.stop_reason in UNJUDGED_STOPS else REWARD_ERROR


@dataclass(slots=True)
class RolloutOutcome(Attempt):
    """An attempt as reports count it: a row of the table ``rollouts``.

    Only the last attempt is ``final``. ``failure`` is the class of a failure, ``failure_step`` the first
    wrong step. ``turn_of_success`` is None unless the rollout succeeded. ``model_seconds`` are those of all
    model calls that were answered, retries included, ``waited_seconds`` those for which limits held back
    these calls; ``timed_calls`` counts those whose time is known. ``file`` is the address of the trajectory,
    ``database`` the complete final database, both relative to the runs folder. ``user_faults`` are the kinds
    of the simulated user's faults, None without such a user. ``tool_faults`` are the tools that raised
    something other than ``ToolError``, or broke or held up what others need. ``metrics`` are the scores of
    the reward's metrics, None for none. ``violations`` are the rows that each rule of the bundle has
    returned; None without rules, and if nothing was judged.
    """

    final: bool = True
    failure: str | None = None
    failure_detail: str | None = None
    turn_of_success: int | None = None
    model_seconds: float = 0.0
    file: str = ""
    usage: dict[str, Usage] = field(default_factory=dict)
    failure_step: int | None = None
    user_faults: list[str] | None = None
    tool_faults: dict[str, ToolFault] | None = None
    waited_seconds: float = 0.0
    timed_calls: int | None = None
    metrics: dict[str, float] | None = None
    database: str | None = None
    violations: Violations | None = None

    @property
    def broken_rules(self) -> list[str]:
        """The names of the rules with violations."""
        return [name for name, rows in (self.violations or {}).items() if rows]

    @property
    def trouble(self) -> str:
        """One line on what went wrong, cut for a terminal; empty for a success."""
        if self.success:
            return ""
        if self.reward is None:
            return shown_line(self.error or self.stop_detail or self.stop_reason)
        return shown_line(self.failure_detail or self.stop_detail or self.failure or "")

    @property
    def cost(self) -> float:
        """US dollars of the priced calls."""
        return sum(usage.cost for usage in self.usage.values())

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**as_json(self), "usage": _usage_to_json(self.usage)}


@dataclass(slots=True)
class BrokenOff:
    """The number of attempts that asked a model and came to no end, and their usage by role.

    An interruption aborts what is under way, and so does a fault that ends the run.
    """

    rollouts: int = 0
    usage: dict[str, Usage] = field(default_factory=dict)

    def add(self, other: BrokenOff) -> None:
        """Count ``other`` in."""
        self.rollouts += other.rollouts
        for role, usage in other.usage.items():
            self.usage.setdefault(role, Usage()).add(usage)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {"rollouts": self.rollouts, "usage": _usage_to_json(self.usage)}


def broken_off(usage: Mapping[Any, Usage]) -> BrokenOff:
    """One attempt with this usage; none if it has asked no model."""
    asked = {role: used for role, used in usage.items() if used.calls}
    return BrokenOff(int(bool(asked)), asked)


@dataclass(slots=True)
class RowGold:
    """The effect of a row's gold actions, replayed once per row.

    ``calls`` are the actions with their answers and changed rows, ``changes`` all changed rows, both as JSON
    values. ``state`` is the delta of the state they lead to from the base; None if that depends on the
    rollout's seed.
    """

    row_id: str
    calls: list[dict[str, Any]]
    changes: list[dict[str, Any]]
    state: bytes | None


@dataclass(slots=True)
class PlayedRollout:
    """One attempt at a rollout, ready to be stored.

    ``trajectory`` is the JSON text of its ``RolloutRecord``; ``base`` the key of its seed. ``state`` is the
    delta of its final state if that is kept but in no file, ``gold_state`` that of its own gold state, if
    it has one. ``row_gold`` comes with the first rollout of a row that a process plays. ``judged`` is the
    time (Unix seconds) at which a stored rollout was judged again. ``user_failed`` says that a fault of the
    simulated user decided it.
    """

    outcome: RolloutOutcome
    trajectory: str
    base: str
    state: bytes | None = None
    gold_state: bytes | None = None
    row_gold: RowGold | None = None
    judged: float | None = None
    user_failed: bool = False


def usage_from_json(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Usage]:
    """Usage by role; raises ``TypeError`` for unknown fields."""
    return {role: Usage(**usage) for role, usage in plain.items()}


def _usage_to_json(usage: Mapping[str, Usage]) -> dict[str, Any]:
    return {role: as_json(used) for role, used in usage.items()}


def total_usage(usages: Iterable[Usage]) -> Usage:
    """The sum of usages."""
    return Usage(*map(sum, zip(*(as_json(one).values() for one in usages), strict=True)))
