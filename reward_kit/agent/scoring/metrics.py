"""Pass^k and means over the rollouts of each row, and over all rows.

A task (a row of the dataset) has ``n`` judged rollouts, ``c`` of them successful.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from math import comb
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.encoding import as_json
from reward_kit.agent.scoring.intervals import NO_INTERVALS, Interval, Intervals, RowCounts, mean_intervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from reward_kit.agent.rollout.outcome import Outcome

LEADERBOARD_KS = (1, 2, 3, 4)
_NUMBERS = ("steps", "turns", "seconds", "model_seconds", "waited_seconds", "timed_calls")


@dataclass(frozen=True)
class Estimate:
    """A mean over tasks. ``left_out`` counts the tasks with too few judged rollouts."""

    value: float
    tasks: int
    left_out: int
    estimated: Callable[[], Intervals] = field(repr=False, compare=False)

    @cached_property
    def intervals(self) -> Intervals:
        """The intervals for these tasks and for tasks like these, computed when first asked for."""
        return self.estimated()

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; an interval is ``{"low", "high"}``, or null if there is none."""
        counts = {"tasks": self.tasks, "left_out": self.left_out}
        return {"value": self.value, **self.intervals.to_json(), **counts}


@dataclass(frozen=True, slots=True)
class PassTable:
    """Pass^k and Pass@k for each k from 1 to the largest number of judged rollouts of any task."""

    pass_power: Mapping[int, Estimate] = field(default_factory=dict)
    pass_at: Mapping[int, Estimate] = field(default_factory=dict)

    @property
    def score(self) -> float | None:
        """The overall score: the mean of Pass^1 to Pass^4 over those that exist; None if none does."""
        return mean([self.pass_power[k].value for k in LEADERBOARD_KS if k in self.pass_power])

    def to_json(self) -> dict[str, Any]:
        """``score``, ``pass_power`` and ``pass_at``, the latter two by k."""
        both = self.pass_power, self.pass_at
        power, at = ({str(k): one.to_json() for k, one in side.items()} for side in both)
        return {"score": self.score, "pass_power": power, "pass_at": at}


def shown_ks(largest: int) -> list[int]:
    """The ks from 1 to ``largest`` that tables show: the first four, powers of two, and the last."""
    return [k for k in range(1, largest + 1) if k in LEADERBOARD_KS or k & (k - 1) == 0 or k == largest]


@lru_cache(maxsize=256)
def pass_curves(n: int, c: int) -> list[tuple[float, float]]:
    """Pass^k and Pass@k of one task for k from 1 to n, each exact up to the final division.

    Pass^k = C(c, k) / C(n, k) is the chance that k rollouts drawn from its n all succeeded: the unbiased
    estimate of the chance that k independent rollouts all succeed (Yao et al. 2024, tau-bench, arXiv
    2406.12045). Pass@k = 1 - C(n-c, k) / C(n, k) is the chance that at least one of them did (Chen et al.
    2021, arXiv 2107.03374). Each binomial coefficient follows from the one before: n = 10 000 takes 0.1 s
    instead of minutes.
    """
    curves = []
    draws = all_succeed = all_fail = 1
    for k in range(1, n + 1):
        draws = draws * (n - k + 1) // k
        all_succeed = all_succeed * (c - k + 1) // k if k <= c else 0
        all_fail = all_fail * (n - c - k + 1) // k if k <= n - c else 0
        curves.append((all_succeed / draws, (draws - all_fail) / draws))
    return curves


def pass_table(counts: Sequence[tuple[int, int]]) -> PassTable:
    """Pass^k and Pass@k over tasks, given each task's ``(n, c)``.

    For each k the mean is over the tasks with at least k judged rollouts; the others are counted in
    ``left_out``.
    """
    of_rows = RowCounts(counts)
    curves_of = {count: pass_curves(*count) for count in set(counts)}
    pass_power: dict[int, Estimate] = {}
    pass_at: dict[int, Estimate] = {}
    for k in range(1, max((n for n, _ in counts), default=0) + 1):
        curves = [curves_of[count][k - 1] for count in counts if count[0] >= k]
        tasks = (len(curves), len(counts) - len(curves))
        powers, ats = zip(*curves, strict=True)
        pass_power[k] = Estimate(average(powers), *tasks, partial(of_rows.intervals, k))
        pass_at[k] = Estimate(average(ats), *tasks, partial(of_rows.intervals, k, at=True))
    return PassTable(pass_power, pass_at)


def passes_of(rows: Sequence[RowResult]) -> PassTable:
    """Pass^k and Pass@k over rows."""
    return pass_table([(row.n_scored, row.passed) for row in rows])


def reward_of(rows: Sequence[Sequence[float]]) -> Estimate | None:
    """The mean over rows of their mean reward, given the rewards of each; None if nothing is judged."""
    rewards = [*filter(None, rows)]
    if not rewards:
        return None
    value = average([average(each) for each in rewards])
    return Estimate(value, len(rewards), len(rows) - len(rewards), partial(intervals_of_means, rewards))


def intervals_of_means(rows: Sequence[Sequence[float]]) -> Intervals:
    """The intervals of the mean over rows of the rows' means: those of Pass^1 if all values are 0 or 1.

    None for numbers that overflow.
    """
    if set().union(*rows) <= {0, 1}:
        return RowCounts((len(row), round(sum(row))) for row in rows).intervals()
    try:
        found = mean_intervals(rows)
    except OverflowError:
        return NO_INTERVALS
    if any(not 0 <= value <= 1 for row in rows for value in row):
        return found
    return Intervals(*(one and Interval(max(one.low, 0.0), min(one.high, 1.0)) for one in found))


def success_within_turns(tasks: Sequence[tuple[int, Sequence[int]]]) -> dict[int, float]:
    """The share of rollouts that had succeeded within k turns, by k from 1 to the latest turn of success.

    Each task is its number of judged rollouts n and the turns (from 1) in which its successful ones
    succeeded. The share is taken per task and then averaged over tasks with n > 0, so that at the last k it
    equals Pass^1. k counts turns of one rollout, not rollouts as in Pass^k. Empty if none succeeded.
    """
    judged = [(n, turns) for n, turns in tasks if n > 0]
    latest = max((turn for _, turns in judged for turn in turns), default=0)
    return {
        k: math.fsum(sum(turn <= k for turn in turns) / n for n, turns in judged) / len(judged)
        for k in range(1, latest + 1)
    }


def mean(values: Sequence[float]) -> float | None:
    """The arithmetic mean; None of nothing."""
    return average(values) if values else None


def average(values: Sequence[float]) -> float:
    """The arithmetic mean of at least one number, also if their sum overflows."""
    try:
        return math.fsum(values) / len(values)
    except OverflowError:
        return math.fsum(value / len(values) for value in values)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that ``percent`` of the values (at least one) lie below, linear in between."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    below, above = ordered[math.floor(position)], ordered[math.ceil(position)]
    return below + (above - below) * (position % 1)


# -- rows


@dataclass(frozen=True, slots=True)
class UserFaults:
    """Faults of simulated users: ``faulty`` of the ``simulated`` rollouts have one; ``kinds`` counts them."""

    simulated: int
    faulty: int
    kinds: Counter[str]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {**as_json(self), "kinds": dict(self.kinds.most_common())}


def user_faults_of(outcomes: Iterable[Outcome]) -> UserFaults:
    """Faults of the simulated users; rollouts without one are skipped."""
    simulated = [one.user_faults for one in outcomes if one.user_faults is not None]
    kinds = Counter(kind for faults in simulated for kind in set(faults))
    return UserFaults(len(simulated), sum(map(bool, simulated)), kinds)


@dataclass(frozen=True, slots=True)
class RowResult:
    """The finished rollouts of one row, counted; ``planned`` is how many there will be.

    ``n_scored`` counts those that enter Pass^k (n in its formula), ``passed`` the successful ones (c),
    ``failures`` the judged failures by class, ``unjudged`` those without a reward by reason. ``rewards`` are
    those of the judged rollouts. ``broken_rules`` counts the rollouts that broke each rule, zeros included;
    ``rules_kept`` the successful ones that broke none. A row may have its counts alone, without ``outcomes``.
    """

    row_id: str
    planned: int
    outcomes: tuple[Outcome, ...]
    n_scored: int
    passed: int
    finished: int = 0
    rewards: Sequence[float] = ()
    failures: Counter[str] = field(default_factory=Counter)
    unjudged: Counter[str] = field(default_factory=Counter)
    broken_rules: Mapping[str, int] = field(default_factory=dict)
    rules_kept: int = 0

    def __repr__(self) -> str:
        return f"<RowResult {self.row_id}: {self.passed} of {self.n_scored} passed>"

    @property
    def n(self) -> int:
        """``n_scored``, as formulas call it."""
        return self.n_scored

    @property
    def c(self) -> int:
        """``passed``, as formulas call it."""
        return self.passed

    @property
    def reward(self) -> float | None:
        """The mean reward of the judged rollouts."""
        return mean(self.rewards)

    def scores(self, name: str) -> list[float]:
        """A metric in the rollouts whose reward has it."""
        return [scores[name] for one in self.outcomes if name in (scores := one.metrics or {})]

    def recounted(self, *, errors_as_failures: bool) -> RowResult:
        """The same rollouts, with the unjudged ones counted as failed or not at all."""
        return replace(self, n_scored=self.finished - (0 if errors_as_failures else self.unjudged.total()))

    def pass_power(self, k: int) -> float | None:
        """Pass^k of this row; None if fewer than k rollouts are judged."""
        return comb(self.passed, k) / comb(self.n_scored, k) if 1 <= k <= self.n_scored else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values, as in the results file."""
        powers = enumerate(pass_curves(self.n_scored, self.passed), start=1)
        return {
            "id": self.row_id,
            "planned": self.planned,
            "judged": self.n_scored,
            "successes": self.passed,
            "pass_power": {str(k): power for k, (power, _) in powers},
            "reward": self.reward,
            "failures": dict(self.failures),
            "unjudged": dict(self.unjudged),
            "user_faults": user_faults_of(self.outcomes).to_json(),
            "rules_kept": self.rules_kept if self.broken_rules else None,
            "broken_rules": self.broken_rules,
            "steps": mean([outcome.steps for outcome in self.outcomes]),
            "seconds": mean([outcome.seconds for outcome in self.outcomes]),
            "waited_seconds": mean([outcome.waited_seconds for outcome in self.outcomes]),
            "cost": sum(outcome.cost for outcome in self.outcomes),
            "rollouts": [outcome.to_json() for outcome in self.outcomes],
        }


def row_result(
    row_id: str, planned: int, outcomes: Sequence[Outcome], *, errors_as_failures: bool = False
) -> RowResult:
    """Count the final outcomes of a row; with ``errors_as_failures``, unjudged ones count as failed."""
    ordered = tuple(sorted(outcomes, key=lambda outcome: outcome.index))
    rewards = [one.reward for one in ordered if one.reward is not None]
    passed = sum(one.success for one in ordered)
    rules = dict.fromkeys(name for one in ordered for name in one.violations or ())
    return RowResult(
        row_id,
        max(planned, len(ordered)),
        ordered,
        n_scored=len(ordered) if errors_as_failures else len(rewards),
        passed=passed,
        finished=len(ordered),
        rewards=rewards,
        failures=Counter(one.failure for one in ordered if one.failure and one.scored),
        unjudged=Counter(one.unjudged_reason for one in ordered if one.unjudged_reason),
        broken_rules={name: sum(name in one.broken_rules for one in ordered) for name in rules},
        rules_kept=sum(one.success and not one.broken_rules for one in ordered) if rules else passed,
    )


def row_results(
    planned: Mapping[str, int], outcomes: Iterable[Outcome], *, errors_as_failures: bool = False
) -> tuple[RowResult, ...]:
    """Count outcomes row by row: of each rollout the last final one.

    ``planned`` holds the number of rollouts of each row; rows that are not in it come last.
    """
    by_row: dict[str, dict[int, Outcome]] = {row_id: {} for row_id in planned}
    for outcome in outcomes:
        if outcome.final:
            by_row.setdefault(outcome.row_id, {})[outcome.index] = outcome
    counted = partial(row_result, errors_as_failures=errors_as_failures)
    return tuple(counted(one, planned.get(one, 0), [*found.values()]) for one, found in by_row.items())


@dataclass(frozen=True, slots=True)
class Averages:
    """Means per rollout, over all finished rollouts that have the number.

    ``reward`` and ``metrics`` (by name) are means over rows of each row's mean, as Pass^k is. ``seconds``
    holds percentiles of a rollout's duration, by percent. ``model_call_seconds`` is the mean of the model
    calls whose time is known, ``model_call_waited_seconds`` the mean time that limits held one back;
    ``waiting`` is the share of the rollouts' time spent like that.
    """

    reward: Estimate | None
    steps: float | None
    turns: float | None
    turn_of_success: float | None
    seconds: Mapping[int, float]
    model_call_seconds: float | None
    model_call_waited_seconds: float | None
    waiting: float | None
    metrics: Mapping[str, float]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        seconds = {f"p{percent}": value for percent, value in self.seconds.items()}
        return {**as_json(self), "reward": self.reward and self.reward.to_json(), "seconds": seconds}


def averages_of(rows: Iterable[RowResult]) -> Averages:
    """The means over all rollouts of ``rows``, which are looked at one after the other."""
    numbers = steps, turns, durations, model_seconds, waits, timed = [array("d") for _ in _NUMBERS]
    turns_of_success, rewards, metrics = array("d"), [], dict[str, list[float]]()
    for row in rows:
        rewards.append(row.rewards)
        for column, name in zip(numbers, _NUMBERS, strict=True):
            column.extend([getattr(one, name) or 0 for one in row.outcomes])
        won = [one.turn_of_success for one in row.outcomes if one.turn_of_success is not None]
        turns_of_success.extend(won)
        for name in {name: None for one in row.outcomes for name in one.metrics or ()}:
            metrics.setdefault(name, []).append(average(row.scores(name)))
    # An agent with its own model need not report times.
    calls = sum(timed) if any(model_seconds) else 0
    return Averages(
        reward=reward_of(rewards),
        steps=mean(steps),
        turns=mean(turns),
        turn_of_success=mean(turns_of_success),
        seconds={percent: percentile(durations, percent) for percent in (50, 90, 99)} if durations else {},
        model_call_seconds=sum(model_seconds) / calls if calls else None,
        model_call_waited_seconds=sum(waits) / calls if calls else None,
        # Calls that one rollout makes side by side wait at the same time.
        waiting=sum(map(min, waits, durations)) / sum(durations) if any(durations) else None,
        metrics={name: average(of_rows) for name, of_rows in metrics.items()},
    )
