"""An evaluation beside a baseline: its rollouts in rounds, until the difference is decided."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from reward_kit.agent.comparison.baseline import load_baseline, reasons
from reward_kit.agent.store.stored_evaluation import read_evaluation
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.job_runner import JobRunner
    from reward_kit.agent.evaluation.schedule import Plan
    from reward_kit.agent.scoring.sequential import Decision
    from reward_kit.agent.store.resume import Run
    from reward_kit.agent.store.stored_evaluation import StoredEvaluation
    from reward_kit.agent.store.writer import Store


class Rounds:
    """The baseline that ``--against`` names, and the rounds of an evaluation that is compared with it.

    ``against`` is its path: a resumed evaluation finds the same, also by ``latest``. Raises ``UsageError`` if
    there is no such baseline.
    """

    def __init__(self, config: EvaluationConfig, root: Path) -> None:
        assert config.against is not None
        self._config = config
        self._baseline = load_baseline(config.against, root)
        self.against = str(self._baseline.path)
        if self._baseline.path == root / "evals" / f"{config.eval_id}.db":
            raise UsageError("--against names the evaluation itself", place=f"evaluation {config.eval_id}")

    def check(self, run: Run, warn: Callable[[str], None]) -> None:
        """Warn of rows that cannot be compared; raises ``UsageError`` if none can be."""
        fingerprints = {row.row.id: row.fingerprints for row in run.rows}
        if left_out := self._baseline.left_out(fingerprints, run.eval_id):
            warn(f"--against {self._baseline.name}: not compared: {reasons(left_out)}")

    async def run(self, plan: Plan, runner: JobRunner, store: Store) -> None:
        """Run the jobs round by round, as few rounds as decide."""
        await runner.judge_again(plan.unjudged)
        decision = self._decided(store)
        over = [job for job in plan.jobs if job.index < decision.round]
        if over:  # rollouts that were not judged before, in rounds that are over
            await runner.run(over)
            decision = self._decided(store)
        for _, in_round in groupby(plan.jobs[len(over) :], key=attrgetter("index")):
            if decision.is_final or not plan.tally.may_start:
                break
            await runner.run([*in_round])
            before, decision = decision, self._decided(store)
            if decision != before:
                runner.display.show(str(decision))
        if decision.is_final:
            store.plan_as_played()
            plan.tally.planned = plan.tally.done

    def _decided(self, store: Store) -> Decision:
        return self.decide(read_evaluation(store.path, running=True))

    def decide(self, stored: StoredEvaluation) -> Decision:
        """The decision so far."""
        config = self._config
        return self._baseline.decide(stored, margin=config.margin, until_decided=config.until_decided)
