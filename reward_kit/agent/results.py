"""What came out of an evaluation, counted up from the outcomes of its rollouts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.metrics import (
    LEADERBOARD_KS,
    Estimate,
    PassTable,
    mean,
    pass_power_k,
    pass_table,
    success_within_turns,
)
from reward_kit.agent.outcome import RolloutOutcome, total_usage, usage_to_json
from reward_kit.agent.runs.broken_off import BrokenOff

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.averages import Averages
    from reward_kit.agent.completion import Usage
    from reward_kit.agent.explain import Explanations
    from reward_kit.agent.groups import Group
    from reward_kit.agent.runs.comparison import Comparison
    from reward_kit.agent.runs.rollout_record import RolloutRecord
    from reward_kit.agent.tau_bench.agreement import Agreement

FORMAT = "reward-kit.evaluation/1"
Status = Literal["complete", "budget", "interrupted", "stopped"]
"""``budget``: ``--max-cost`` was reached; ``interrupted``: by a person; ``stopped``: by a fault to mend."""
StoredStatus = Literal[Status, "running"]
"""``running``: another process works at what is read back."""


@dataclass(frozen=True, slots=True)
class UserFaults:
    """In how many of the rollouts with a ``simulated`` user it misbehaved, and in how many in which way."""

    simulated: int = 0
    faulty: int = 0
    kinds: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, outcomes: Iterable[RolloutOutcome]) -> UserFaults:
        """Those of ``outcomes``."""
        simulated = [outcome.user_faults for outcome in outcomes if outcome.user_faults is not None]
        kinds = Counter(kind for faults in simulated for kind in set(faults))
        return cls(len(simulated), sum(map(bool, simulated)), kinds)

    def to_json(self) -> dict[str, Any]:
        return {
            "simulated": self.simulated,
            "faulty": self.faulty,
            "kinds": dict(self.kinds.most_common()),
        }


@dataclass(frozen=True, slots=True)
class RowResult:
    """The rollouts of one row: ``planned`` many, of which ``outcomes`` are over.

    ``n`` counts those that enter Pass^k and ``c`` the successful ones among them.
    """

    row_id: str
    planned: int
    outcomes: tuple[RolloutOutcome, ...]
    n: int
    c: int

    @property
    def unjudged(self) -> Counter[str]:
        """Rollouts without a reward, by reason."""
        return _unjudged(self.outcomes)

    @property
    def failures(self) -> Counter[str]:
        """Judged failures, by class."""
        return _failures(self.outcomes)

    @property
    def user_faults(self) -> UserFaults:
        """What the simulated user did wrong in these rollouts."""
        return UserFaults.of(self.outcomes)

    @property
    def turns_of_success(self) -> list[int]:
        """The turn in which each successful rollout succeeded."""
        return [
            outcome.turns if outcome.turn_of_success is None else outcome.turn_of_success
            for outcome in self.outcomes
            if outcome.success
        ]

    @property
    def reward(self) -> float | None:
        """The mean reward of the judged rollouts."""
        return mean([outcome.reward for outcome in self.outcomes if outcome.reward is not None])

    def pass_power(self, k: int) -> float | None:
        """Pass^k of this row; None if fewer than k rollouts are judged."""
        return pass_power_k(self.n, self.c, k) if 1 <= k <= self.n else None

    def to_json(self) -> dict[str, Any]:
        return {
            "id": self.row_id,
            "planned": self.planned,
            "judged": self.n,
            "successes": self.c,
            "pass_power": {str(k): self.pass_power(k) for k in range(1, self.n + 1)},
            "reward": self.reward,
            "failures": dict(self.failures),
            "unjudged": dict(self.unjudged),
            "user_faults": self.user_faults.to_json(),
            "steps": mean([outcome.steps for outcome in self.outcomes]),
            "seconds": mean([outcome.seconds for outcome in self.outcomes]),
            "waited_seconds": mean([outcome.waited_seconds for outcome in self.outcomes]),
            "cost": sum(outcome.cost for outcome in self.outcomes),
            "rollouts": [outcome.to_json() for outcome in self.outcomes],
        }


@dataclass(frozen=True, slots=True)
class EvaluationResult:
    """The results of an evaluation, as far as it got.

    ``passes`` holds Pass^k and Pass@k with intervals; ``usage`` the tokens and cost of agent and user,
    attempts that were repeated included, and ``broken_off`` apart from them what attempts have used that came
    to no end, because the run was interrupted or a fault ended it (calls that were under way just then are
    not known). ``spent`` is all of it. ``seconds`` is the time of all its runs. ``explanations`` are a
    model's judgements of the failures (``--explain``), whose cost is not in ``usage``. ``agreement`` is that
    with the results file of tau-bench that was read (``--from-tau-bench``), ``compared_with`` says what came
    out differently from the recording that was replayed.
    """

    eval_id: str
    status: StoredStatus
    reason: str | None
    configuration: Mapping[str, Any]
    versions: Mapping[str, str]
    rows: tuple[RowResult, ...]
    passes: PassTable
    averages: Averages
    usage: Mapping[str, Usage]
    seconds: float
    folder: Path
    broken_off: BrokenOff = field(default_factory=BrokenOff)
    agreement: Agreement | None = None
    explanations: Explanations | None = None
    compared_with: Comparison | None = None

    def __repr__(self) -> str:
        """One line, also for thousands of rollouts: Python itself asks for it at times."""
        first = self.pass_power.get(1)
        finished = f"{len(self.outcomes)} of {self.planned} rollouts"
        passed = "" if first is None else f", Pass^1 {first.value:.3f}"
        return f"<EvaluationResult {self.eval_id} {self.status}: {finished}{passed}>"

    @property
    def score(self) -> float | None:
        """The mean of Pass^1 to Pass^4, over those that exist."""
        return self.passes.score

    @property
    def pass_power(self) -> Mapping[int, Estimate]:
        return self.passes.pass_power

    @property
    def pass_at(self) -> Mapping[int, Estimate]:
        return self.passes.pass_at

    @property
    def outcomes(self) -> list[RolloutOutcome]:
        """The rollouts that are over, row by row."""
        return [outcome for row in self.rows for outcome in row.outcomes]

    def records(self) -> Iterator[RolloutRecord]:
        """The trajectories of the rollouts that are over, row by row, each read from its file in its turn.

        Raises ``StorageError`` for one that is not there any more.
        """
        from reward_kit.agent.runs.rollout_record import load_rollout

        for outcome in self.outcomes:
            with load_rollout(self.folder / outcome.file) as record:
                yield record

    def to_table(self) -> list[dict[str, Any]]:
        """The rollouts that are over as flat dicts, all with the same keys: for pandas or CSV files."""
        from reward_kit.agent.flat_table import flat_table

        return flat_table(self)

    def by(self, field: str) -> list[Group]:
        """The rows in groups by a field of theirs (``metadata.domain``), counted up; see ``groups_of``."""
        from reward_kit.agent.groups import groups_of

        seed = self.configuration.get("seed", 0)
        return groups_of(self.rows, field, folder=self.folder, seed=seed)

    @property
    def planned(self) -> int:
        return sum(row.planned for row in self.rows)

    @property
    def failures(self) -> Counter[str]:
        """Judged failures, by class."""
        return _failures(self.outcomes)

    @property
    def failure_breakdown(self) -> dict[str, dict[str, float]]:
        """Judged failures by class, the most frequent first: ``count``, and ``percent`` of all of them."""
        total = self.failures.total()
        return {
            kind: {"count": number, "percent": 100 * number / total}
            for kind, number in self.failures.most_common()
        }

    @property
    def user_faults(self) -> UserFaults:
        """What the simulated users did wrong."""
        return UserFaults.of(self.outcomes)

    @property
    def success_within_turns(self) -> dict[int, float]:
        """The share of rollouts that had succeeded within k turns, by k. It is no Pass^k."""
        return success_within_turns([(row.n, row.turns_of_success) for row in self.rows])

    @property
    def unjudged(self) -> Counter[str]:
        """Rollouts without a reward, by reason."""
        return _unjudged(self.outcomes)

    @property
    def complete(self) -> bool:
        """Whether every planned rollout is over and judged, and explained where that was asked for."""
        explained = self.explanations is None or self.explanations.complete
        return self.status == "complete" and not self.unjudged and explained

    @property
    def spent(self) -> Usage:
        """What all model calls have used together, those of attempts that were broken off included."""
        return total_usage([*self.usage.values(), *self.broken_off.usage.values()])

    @property
    def results_path(self) -> Path:
        return self.folder / "evals" / f"{self.eval_id}.json"

    @property
    def log_path(self) -> Path:
        return self.folder / "evals" / f"{self.eval_id}.jsonl"

    def to_json(self) -> dict[str, Any]:
        """What stands in ``evals/<eval_id>.json``."""
        return {
            "format": FORMAT,
            "eval_id": self.eval_id,
            "status": self.status,
            "reason": self.reason,
            "configuration": dict(self.configuration),
            "versions": dict(self.versions),
            "score": self.score,
            "pass_power": {str(k): estimate.to_json() for k, estimate in self.pass_power.items()},
            "pass_at": {str(k): estimate.to_json() for k, estimate in self.pass_at.items()},
            "planned": self.planned,
            "finished": len(self.outcomes),
            "judged": sum(row.n for row in self.rows),
            "successes": sum(row.c for row in self.rows),
            "failures": dict(self.failures.most_common()),
            "failure_breakdown": self.failure_breakdown,
            "user_faults": self.user_faults.to_json(),
            "unjudged": dict(self.unjudged.most_common()),
            "success_within_turns": {str(k): share for k, share in self.success_within_turns.items()},
            **({"explanations": self.explanations.to_json()} if self.explanations is not None else {}),
            "averages": self.averages.to_json(),
            "usage": {role: usage_to_json(usage) for role, usage in self.usage.items()},
            **({"broken_off": self.broken_off.to_json()} if self.broken_off.rollouts else {}),
            "seconds": self.seconds,
            **({"agreement": self.agreement.to_json()} if self.agreement is not None else {}),
            **({"compared_with": self.compared_with.to_json()} if self.compared_with is not None else {}),
            "rows": [row.to_json() for row in self.rows],
        }


def _unjudged(outcomes: Iterable[RolloutOutcome]) -> Counter[str]:
    return Counter(outcome.unjudged_reason for outcome in outcomes if outcome.unjudged_reason)


def _failures(outcomes: Iterable[RolloutOutcome]) -> Counter[str]:
    return Counter(outcome.failure for outcome in outcomes if outcome.failure and outcome.judged)


def row_result(
    row_id: str, planned: int, outcomes: Sequence[RolloutOutcome], *, errors_as_failures: bool = False
) -> RowResult:
    """Count up the final outcomes of a row; ``errors_as_failures``: those without a reward as failed."""
    ordered = tuple(sorted(outcomes, key=lambda outcome: outcome.index))
    counted = len(ordered) if errors_as_failures else sum(outcome.judged for outcome in ordered)
    return RowResult(row_id, planned, ordered, n=counted, c=sum(outcome.success for outcome in ordered))


def row_results(
    planned: Mapping[str, int], outcomes: Iterable[RolloutOutcome], *, errors_as_failures: bool = False
) -> tuple[RowResult, ...]:
    """Count up what counts, row by row: of each rollout the last final outcome.

    ``planned`` holds the least number of rollouts of each row; rows that are not in it follow.
    """
    latest = {(outcome.row_id, outcome.index): outcome for outcome in outcomes if outcome.final}
    by_row: dict[str, list[RolloutOutcome]] = {row_id: [] for row_id in planned}
    for (row_id, _), outcome in latest.items():
        by_row.setdefault(row_id, []).append(outcome)
    return tuple(
        row_result(
            row_id, max(planned.get(row_id, 0), len(found)), found, errors_as_failures=errors_as_failures
        )
        for row_id, found in by_row.items()
    )


def passes_of(rows: Sequence[RowResult], *, seed: int) -> PassTable:
    """Pass^k and Pass@k over rows."""
    return pass_table([(row.n, row.c) for row in rows], seed=seed)


def usage_of(outcomes: Sequence[RolloutOutcome]) -> dict[str, Usage]:
    """Tokens and cost of agent and user apart, and of rewards that have counted theirs (``judge``)."""
    judged = any("judge" in outcome.usage for outcome in outcomes)
    return {
        role: total_usage(outcome.usage[role] for outcome in outcomes if role in outcome.usage)
        for role in ("agent", "user", *(["judge"] if judged else []))
    }


def asked_model(
    configuration: Mapping[str, Any], usage: Mapping[str, Usage], outcomes: Sequence[RolloutOutcome]
) -> str | None:
    """The agent's model, as far as it has part in the results.

    A person's own agent may leave unasked what ``MODEL_AGENT`` names: None where none of its calls has been
    counted, though there is something to judge.
    """
    from reward_kit.agent.plugins import is_own

    asked = "agent" in usage and usage["agent"].calls > 0
    judged = any(outcome.judged for outcome in outcomes)
    if is_own(str(configuration.get("agent"))) and judged and not asked:
        return None
    return configuration.get("model")


def leaderboard_values(result: EvaluationResult) -> list[float | None]:
    """Pass^1 to Pass^4; None for each k that no row has enough rollouts for."""
    return [result.pass_power[k].value if k in result.pass_power else None for k in LEADERBOARD_KS]
