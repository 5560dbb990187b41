"""What judging an evaluation again came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.scoring.metrics import mean, passes_of
from reward_kit.agent.scoring.rows import row_results

if TYPE_CHECKING:
    from pathlib import Path

    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.scoring.metrics import PassTable
    from reward_kit.agent.scoring.results import EvaluationResult
    from reward_kit.agent.scoring.rows import RowResult

FORMAT = "reward-kit.rescoring/1"


@dataclass(frozen=True, slots=True)
class Rejudged:
    """One rollout: ``before`` is its outcome as it was recorded, ``now`` as it is judged now.

    ``result`` is what the reward returned, ``fields`` the row as the reward got it; both are None where it
    was not called.
    """

    before: RolloutOutcome
    now: RolloutOutcome
    result: dict[str, Any] | None = None
    fields: dict[str, Any] | None = None

    @property
    def changed(self) -> bool:
        """Whether the reward is another."""
        return self.before.reward != self.now.reward

    @property
    def failed(self) -> bool:
        """Whether it could not be judged though it should."""
        return self.now.unjudged_reason == "reward_error"

    @property
    def reason(self) -> str:
        """Why the reward is what it is, in the reward's own words."""
        return str(self.now.error or (self.result or {}).get("reason") or "")

    def to_json(self) -> dict[str, Any]:
        return {
            "row_id": self.now.row_id,
            "index": self.now.index,
            "file": self.before.file,
            "reward_before": self.before.reward,
            "reward": self.now.reward,
            "error": self.now.error,
            "result": self.result,
        }


@dataclass(frozen=True, slots=True)
class Rescoring:
    """A finished evaluation, judged again. ``written`` are the results of the new evaluation, if one was
    made.
    """

    log: Path
    config: EvaluationConfig
    rollouts: tuple[Rejudged, ...]
    planned: dict[str, int]
    seconds: float
    written: EvaluationResult | None = None

    @property
    def changed(self) -> list[Rejudged]:
        """The rollouts whose reward is another, those that have none any more included."""
        return [rollout for rollout in self.rollouts if rollout.changed]

    @property
    def failed(self) -> list[Rejudged]:
        """The rollouts that could not be judged though they should."""
        return [rollout for rollout in self.rollouts if rollout.failed]

    @property
    def before(self) -> PassTable:
        """Pass^k as it was, without the rollouts that cannot be judged now."""
        return passes_of(self.rows(before=True), seed=self.config.seed)

    @property
    def now(self) -> PassTable:
        """Pass^k as it is."""
        return passes_of(self.rows(), seed=self.config.seed)

    def mean_reward(self, *, before: bool = False) -> float | None:
        """The mean over rows of their mean reward, as reports give it."""
        return mean([row.reward for row in self.rows(before=before) if row.reward is not None])

    def rows(self, *, before: bool = False) -> tuple[RowResult, ...]:
        """The rollouts row by row; rows without any are left out.

        Of the ``failed`` the rewards ``before`` do not count either: the two would be of different rollouts.
        """
        outcomes = [
            rollout.before if before and not rollout.failed else rollout.now for rollout in self.rollouts
        ]
        planned = {outcome.row_id: self.planned.get(outcome.row_id, 0) for outcome in outcomes}
        return row_results(planned, outcomes, errors_as_failures=self.config.errors_as_failures)

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "log": str(self.log),
            "pass_power_before": {str(k): one.to_json() for k, one in self.before.pass_power.items()},
            "pass_power": {str(k): one.to_json() for k, one in self.now.pass_power.items()},
            "reward_before": self.mean_reward(before=True),
            "reward": self.mean_reward(),
            "changed": len(self.changed),
            "not_judged": len(self.failed),
            "rollouts": [rollout.to_json() for rollout in self.rollouts],
        }
