"""The rewards and tool results of a results file beside those that the bundle gives."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.metrics import is_success, pass_power_k
from reward_kit.agent.reports.wording import count

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.tau_bench.players import ToolResults
    from reward_kit.agent.tau_bench.recorded import RecordedResults

SHOWN = 20
"""So many disagreements are printed; all of them are in the JSON."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A trial that got another reward here; ``why`` is this bundle's reason, empty for a success."""

    task_id: int
    trial: int
    row_id: str
    recorded: float
    reward: float
    why: str
    file: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a file and the bundle agree.

    ``compared`` counts the trials that have a reward here too. ``pass_power`` is Pass^k by the file's own
    rewards, for every k that all its tasks have trials for. ``tool_results`` counts those that this run made
    again, and ``different_results`` tells which of them did not come out as recorded.
    """

    compared: int
    disagreements: tuple[Disagreement, ...]
    pass_power: dict[int, float]
    tool_results: int
    different_results: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        plain = asdict(self)
        plain["pass_power"] = {str(k): value for k, value in self.pass_power.items()}
        return plain

    def lines(self) -> Iterator[str]:
        """The report for a terminal."""
        equal = self.compared - len(self.disagreements)
        own = ", ".join(f"Pass^{k} {value:.3f}" for k, value in list(self.pass_power.items())[:4])
        yield f"By the rewards in the file: {own}."
        yield f"The bundle's rewards agree with them in {equal} of {count(self.compared, 'judged rollout')}."
        for one in self.disagreements[:SHOWN]:
            why = f" ({one.why})" if one.why else ""
            rewards = f"{one.recorded:g} in the file, {one.reward:g} here"
            yield f"  task {one.task_id}, trial {one.trial}: {rewards}{why}"
        if len(self.disagreements) > SHOWN:
            yield f"  and {len(self.disagreements) - SHOWN} more"
        same = self.tool_results - len(self.different_results)
        if self.tool_results:
            yield f"The tools answered as recorded in {same} of {count(self.tool_results, 'call')}."
        for difference in self.different_results[:1]:
            yield f"  first: {difference}"


def agreement_of(
    results: RecordedResults, outcomes: Iterable[RolloutOutcome], tools: ToolResults
) -> Agreement:
    """Compare a file with what came of running its calls."""
    compared = 0
    disagreements = []
    for outcome in outcomes:
        recorded = results.trials.get((outcome.row_id, outcome.index))
        if recorded is None or outcome.reward is None:
            continue
        compared += 1
        trial = recorded.trial
        if is_success(trial.reward) != is_success(outcome.reward):
            disagreements.append(
                Disagreement(
                    task_id=trial.task_id,
                    trial=trial.trial,
                    row_id=outcome.row_id,
                    recorded=trial.reward,
                    reward=outcome.reward,
                    why=outcome.trouble,
                    file=outcome.file,
                )
            )
    return Agreement(
        compared=compared,
        disagreements=tuple(disagreements),
        pass_power=_pass_power(results),
        tool_results=tools.compared,
        different_results=tuple(tools.differences),
    )


def _pass_power(results: RecordedResults) -> dict[int, float]:
    counts: dict[str, tuple[int, int]] = {}
    for (row_id, _), recorded in results.trials.items():
        n, c = counts.get(row_id, (0, 0))
        counts[row_id] = n + 1, c + is_success(recorded.trial.reward)
    fewest = min(n for n, _ in counts.values())
    return {
        k: sum(pass_power_k(n, c, k) for n, c in counts.values()) / len(counts) for k in range(1, fewest + 1)
    }
