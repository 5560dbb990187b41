"""Evaluations as the lines of one table: the numbers of each alone, and how it stands to the first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward_kit.agent.averages import reward_of
from reward_kit.agent.metrics import Estimate, PassTable, shown_ks
from reward_kit.agent.outcome import total_usage
from reward_kit.agent.results import passes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.comparing.comparison import EvaluationComparison
    from reward_kit.agent.comparing.paired import PairedDifference
    from reward_kit.agent.completion import Usage
    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation


@dataclass(frozen=True, slots=True)
class Standing:
    """One evaluation: ``passes`` and ``reward`` are those of its own report, over all of its rows.

    ``success`` is the difference of Pass^1 to the baseline, on the rows that both have; None for the baseline
    itself.
    """

    evaluation: StoredEvaluation
    passes: PassTable
    reward: Estimate | None
    success: PairedDifference | None

    @property
    def judged(self) -> int:
        """The rollouts that enter Pass^k."""
        return sum(row.n for row in self.evaluation.rows)

    @property
    def spent(self) -> Usage:
        """What all model calls have used together, those of attempts that were broken off included."""
        stored = self.evaluation
        return total_usage([*stored.usage.values(), *stored.broken_off.usage.values()])


def standings(comparisons: Sequence[EvaluationComparison]) -> list[Standing]:
    """The baseline of ``comparisons``, which is A in each (one at least), then the others in order."""
    first = _standing(comparisons[0].a, None)
    return [first, *(_standing(each.b, each.success) for each in comparisons)]


def shared_ks(lines: Sequence[Standing]) -> list[int]:
    """The ks that tables show, of those that all have."""
    return shown_ks(min(len(line.passes.pass_power) for line in lines))


def _standing(stored: StoredEvaluation, success: PairedDifference | None) -> Standing:
    seed = stored.configuration.get("seed", 0)
    return Standing(stored, passes_of(stored.rows, seed=seed), reward_of(stored.rows, seed=seed), success)
