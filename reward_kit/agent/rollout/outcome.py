"""The outcome of a rollout, and a played one in the form for the store."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from typing_extensions import TypedDict  # pydantic takes no other before Python 3.12

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.types import UNJUDGED_STOPS, Usage, Violations

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

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


class Scored:
    """Questions about a reward, which is None if nothing could be judged."""

    __slots__ = ()
    reward: float | None
    stop_reason: str | None

    @property
    def scored(self) -> bool:
        """True if there is a reward."""
        return self.reward is not None

    @property
    def success(self) -> bool:
        return self.reward is not None and is_success(self.reward)

    @property
    def verdict(self) -> str:
        """``passed, reward 1``, or why nothing could be judged."""
        if self.reward is None:
            return f"not judged ({self.unjudged_reason})" if self.stop_reason else "not over"
        return f"{'passed' if self.success else 'failed'}, reward {self.reward:g}"

    @property
    def unjudged_reason(self) -> str | None:
        """The reason for having no reward: ``user_error``, ``infrastructure_error`` or ``reward_error``."""
        if self.reward is not None:
            return None
        return self.stop_reason if self.stop_reason in UNJUDGED_STOPS else REWARD_ERROR


@dataclass(slots=True)
class Outcome(Scored):
    """An attempt as reports count it: a row of the table ``rollouts``, whose columns these are.

    ``file`` is the address of the trace, ``database`` that of a complete final database, both relative to the
    runs folder. ``model_seconds`` are those of all model calls that were answered, retries included,
    ``waited_seconds`` those for which limits held back these calls; ``timed_calls`` counts those whose time
    is known. The other fields are those of the trace, in short.
    """

    id: str
    row_id: str
    index: Annotated[int, "number of the rollout in its row, from 0"]
    attempt: Annotated[int, "from 0"] = 0
    final: Annotated[bool, "0: another attempt follows"] = True
    seed: int = 0
    reward: Annotated[float | None, "NULL: not judged"] = None
    stop_reason: str = ""
    stop_detail: str | None = None
    error: Annotated[str | None, "why the reward failed"] = None
    failure: Annotated[str | None, "failure class"] = None
    failure_detail: str | None = None
    failure_step: Annotated[int | None, "the first wrong one"] = None
    steps: int = 0
    turns: int = 0
    turn_of_success: int | None = None
    started: Annotated[float, "Unix seconds"] = 0.0
    seconds: float = 0.0
    model_seconds: float = 0.0
    waited_seconds: float = 0.0
    timed_calls: int | None = None
    usage: Annotated[dict[str, Usage], "JSON by role"] = field(default_factory=dict)
    user_faults: Annotated[list[str] | None, "JSON: kinds; NULL without a simulated user"] = None
    tool_faults: Annotated[dict[str, ToolFault] | None, "JSON: calls that raised, by tool"] = None
    metrics: Annotated[dict[str, float] | None, "JSON"] = None
    violations: Annotated[Violations | None, "JSON: rows that each rule returned; NULL without rules"] = None
    base: Annotated[str, "key of the seed: runs/.bases/KEY.db"] = ""
    database: Annotated[str | None, "complete final database, relative to the runs folder"] = None
    scored_at: Annotated[float | None, "Unix seconds; only of rollouts that were judged again"] = None
    file: str = ""

    def __repr__(self) -> str:
        return f"<Outcome {self.row_id}#{self.index + 1}: {self.verdict}>"

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
    def likeness(self) -> tuple[Any, ...]:
        """All that reports count of a rollout; means, which take more, are those of whole outcomes."""
        odd = self.reward if self.reward and not 0 <= self.reward <= 1 else None
        said = self.error or (self.stop_detail if self.stop_reason.endswith("_error") else "")
        turns, is_talk = self.turn_of_success or self.turns, 1 < self.turns >= self.steps / 3
        raised = [(name, fault["calls"]) for name, fault in (self.tool_faults or {}).items()]
        faults = str((self.user_faults, raised, self.violations and self.broken_rules))
        won = self.success and f"in turn {turns}"
        return self.scored, won, odd, self.failure, self.stop_reason, said, is_talk, faults

    @property
    def cost(self) -> float:
        """US dollars of the priced calls."""
        return sum(usage.cost for usage in self.usage.values())

    @property
    def tokens(self) -> int:
        """Input and output tokens of all roles."""
        return sum(usage.tokens for usage in self.usage.values())

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

    @property
    def total(self) -> Usage:
        """The usage of all roles."""
        return total_usage(self.usage.values())

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
class Played:
    """One attempt at a rollout, ready to be stored.

    ``trace`` is the JSON text of its ``Trace``. ``state`` is the delta of its final state if that is kept but
    in no file, ``gold_state`` that of its own gold state, if it has one. ``row_gold`` comes with the first
    rollout of a row that a process plays. ``user_failed`` says that a fault of the simulated user decided it.
    """

    outcome: Outcome
    trace: str
    state: bytes | None = None
    gold_state: bytes | None = None
    row_gold: RowGold | None = None
    user_failed: bool = False


def usage_from_json(plain: Mapping[str, Mapping[str, Any]]) -> dict[str, Usage]:
    """Usage by role; raises ``TypeError`` for unknown fields."""
    return {role: Usage(**usage) for role, usage in plain.items()}


def _usage_to_json(usage: Mapping[str, Usage]) -> dict[str, Any]:
    return {role: as_json(used) for role, used in usage.items()}


def total_usage(usages: Iterable[Usage]) -> Usage:
    """The sum of usages."""
    return Usage(*map(sum, zip(*(as_json(one).values() for one in usages), strict=True)))
