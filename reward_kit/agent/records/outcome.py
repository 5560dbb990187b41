"""What is remembered of a rollout once it is over: one line of an evaluation's log."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypedDict

from reward_kit.agent.base.text import one_line
from reward_kit.agent.base.types import UNJUDGED_STOPS, Usage
from reward_kit.agent.records.rollout_record import as_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

REWARD_ERROR = "reward_error"
SUCCESS_THRESHOLD = 1 - 1e-6
"""A reward of at least this much is a success."""


def is_success(reward: float) -> bool:
    """Return True if the reward counts as solved."""
    return reward >= SUCCESS_THRESHOLD


class ToolFault(TypedDict):
    """How many calls of a tool raised in a rollout, and what the first one raised, after its place."""

    calls: int
    first: str


@dataclass(slots=True)
class RolloutOutcome:
    """How one rollout ended.

    ``index`` counts the rollouts of the row from 0, ``attempt`` the tries at this one; only the last try is
    ``final``. ``reward`` is None where nothing could be judged: ``stop_reason`` says why, or ``error`` if the
    reward itself failed. ``failure`` is the class of a failure, ``failure_step`` the first wrong step.
    ``user_faults`` are the kinds of what the simulated user did wrong, None where there was none.
    ``tool_faults`` are the tools that raised something other than ``ToolError``, or broke or held up what
    others need; None where none did.
    ``turn_of_success`` is None unless the rollout succeeded. ``started`` is in Unix seconds; ``seconds`` and
    ``model_seconds`` (all model calls that were answered, retries included) in seconds, ``waited_seconds``
    those for which limits held back these calls; ``timed_calls`` counts those whose time is known, None in
    logs that do not tell. ``metrics`` are the scores of the reward's metrics, None for none. ``file`` is the
    trajectory, relative to the runs folder.
    """

    id: str
    row_id: str
    index: int
    attempt: int
    final: bool
    seed: int
    reward: float | None
    stop_reason: str
    stop_detail: str | None
    error: str | None
    failure: str | None
    failure_detail: str | None
    steps: int
    turns: int
    turn_of_success: int | None
    started: float
    seconds: float
    model_seconds: float
    file: str
    usage: dict[str, Usage] = field(default_factory=dict)
    failure_step: int | None = None
    user_faults: list[str] | None = None
    tool_faults: dict[str, ToolFault] | None = None
    waited_seconds: float = 0.0
    timed_calls: int | None = None
    metrics: dict[str, float] | None = None
    database: str | None = None

    @property
    def judged(self) -> bool:
        """Whether there is a reward."""
        return self.reward is not None

    @property
    def success(self) -> bool:
        return self.reward is not None and is_success(self.reward)

    @property
    def unjudged_reason(self) -> str | None:
        """Why there is no reward: ``user_error``, ``infrastructure_error`` or ``reward_error``."""
        if self.reward is not None:
            return None
        return self.stop_reason if self.stop_reason in UNJUDGED_STOPS else REWARD_ERROR

    @property
    def trouble(self) -> str:
        """One line on what went wrong, cut for a terminal; empty for a success."""
        if self.success:
            return ""
        if self.reward is None:
            return one_line(self.error or self.stop_detail or self.stop_reason)
        return one_line(self.failure_detail or self.stop_detail or self.failure or "")

    @property
    def cost(self) -> float:
        """US dollars of the priced calls."""
        return sum(usage.cost for usage in self.usage.values())

    def to_json(self) -> dict[str, Any]:
        plain = as_json(self)
        plain["usage"] = {role: usage_to_json(usage) for role, usage in self.usage.items()}
        return plain

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> RolloutOutcome:
        """Read what ``to_json`` gave, also that of earlier versions.

        Raises ``KeyError`` or ``TypeError`` for anything else.
        """
        known = {name: plain[name] for name in _FIELDS if name in plain or name not in _LATER}
        known["usage"] = {role: Usage(**usage) for role, usage in plain["usage"].items()}
        return cls(**known)


_FIELDS = tuple(item.name for item in fields(RolloutOutcome))
_LATER = frozenset(
    {"failure_step", "user_faults", "tool_faults", "waited_seconds", "timed_calls", "metrics", "database"}
)
"""Fields that logs of before have not."""


def usage_to_json(usage: Usage) -> dict[str, Any]:
    """The usage's fields as plain JSON values."""
    return as_json(usage)


def total_usage(usages: Iterable[Usage]) -> Usage:
    """The sum of usages."""
    total = Usage()
    for usage in usages:
        total.add(usage)
    return total
