"""Means over the rollouts of an evaluation: rewards and their metrics, lengths, times."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.metrics import Estimate, mean, mean_estimates, percentile

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.results import RowResult


@dataclass(frozen=True, slots=True)
class Averages:
    """Means per rollout, over all that are over and (``reward``, ``turn_of_success``) that have one.

    ``metrics`` holds the mean score of each of the reward's metrics, over rows as the reward's.
    ``seconds`` holds percentiles of a rollout's duration by percent, ``model_call_seconds`` the mean of the
    model calls whose time is known, ``model_call_waited_seconds`` the mean time for which limits held one
    back. ``waiting`` is the share of the rollouts' time that went by like this.
    """

    reward: Estimate | None
    steps: float | None
    turns: float | None
    turn_of_success: float | None
    seconds: Mapping[int, float]
    model_call_seconds: float | None
    model_call_waited_seconds: float | None
    waiting: float | None
    metrics: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return {
            "reward": self.reward.to_json() if self.reward else None,
            "metrics": dict(self.metrics),
            "steps": self.steps,
            "turns": self.turns,
            "turn_of_success": self.turn_of_success,
            "seconds": {f"p{percent}": value for percent, value in self.seconds.items()},
            "model_call_seconds": self.model_call_seconds,
            "model_call_waited_seconds": self.model_call_waited_seconds,
            "waiting": self.waiting,
        }


def averages_of(rows: Sequence[RowResult], *, seed: int) -> Averages:
    """The means over all rollouts of ``rows``; the reward's is a mean over rows, as Pass^k is."""
    outcomes = [outcome for row in rows for outcome in row.outcomes]
    durations = [outcome.seconds for outcome in outcomes]
    calls = sum(_timed_calls(outcome) for outcome in outcomes)
    asked = sum(outcome.model_seconds for outcome in outcomes)  # 0: no call that was counted told its time
    waited = sum(outcome.waited_seconds for outcome in outcomes)
    # calls that a rollout makes side by side wait at the same time
    waiting = sum(min(outcome.waited_seconds, outcome.seconds) for outcome in outcomes)
    turns = [outcome.turn_of_success for outcome in outcomes if outcome.turn_of_success is not None]
    return Averages(
        reward=reward_of(rows, seed=seed),
        steps=mean([outcome.steps for outcome in outcomes]),
        turns=mean([outcome.turns for outcome in outcomes]),
        turn_of_success=mean(turns),
        seconds={percent: percentile(durations, percent) for percent in (50, 90, 99)} if durations else {},
        model_call_seconds=asked / calls if calls and asked else None,
        model_call_waited_seconds=waited / calls if calls and asked else None,
        waiting=waiting / sum(durations) if any(durations) else None,
        metrics=_metric_means(rows),
    )


def reward_of(rows: Sequence[RowResult], *, seed: int) -> Estimate | None:
    """The mean over rows of their judged rollouts' mean reward; None where nothing is judged."""
    rewards = [(row.reward,) for row in rows if row.reward is not None]
    return next(iter(mean_estimates(rewards, seed=seed, left_out=len(rows) - len(rewards))), None)


def _metric_means(rows: Sequence[RowResult]) -> dict[str, float]:
    """Of each metric the mean over rows of their rollouts' mean, where rollouts have it."""
    by_row: dict[str, list[float]] = {}
    for row in rows:
        scores: dict[str, list[float]] = {}
        for outcome in row.outcomes:
            for name, score in (outcome.metrics or {}).items():
                scores.setdefault(name, []).append(score)
        for name, found in scores.items():
            by_row.setdefault(name, []).append(_mean_of(found))
    return {name: _mean_of(means) for name, means in by_row.items()}


def _mean_of(scores: Sequence[float]) -> float:
    """Their mean, also where their sum is no number any more, as that of scores near the largest."""
    total = sum(scores)
    return total / len(scores) if math.isfinite(total) else sum(score / len(scores) for score in scores)


def _timed_calls(outcome: RolloutOutcome) -> int:
    """The calls that ``model_seconds`` is the time of; agents with a model of their own need not tell it."""
    if outcome.timed_calls is not None:
        return outcome.timed_calls
    return sum(usage.calls for usage in outcome.usage.values())
