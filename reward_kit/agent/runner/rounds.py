"""An evaluation beside a baseline: its rollouts in rounds, until the difference is decided."""

from __future__ import annotations

from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from reward_kit.agent.comparison.baseline import load_baseline, reasons
from reward_kit.agent.records.evaluation_file import SUFFIX
from reward_kit.agent.storage.resume import make_run
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from reward_kit.agent.bundles.task import PlannedTask
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.runner.job_runner import JobRunner
    from reward_kit.agent.runner.open_evaluation import OpenEvaluation
    from reward_kit.agent.runner.progress import Tally
    from reward_kit.agent.runner.protocol import Description
    from reward_kit.agent.scoring.sequential import Decision
    from reward_kit.agent.storage.stored_evaluation import StoredEvaluation


class Rounds:
    """The baseline that ``--against`` names, and the rounds of an evaluation that is compared with it.

    ``against`` is its address, which a resumed evaluation finds again: ``latest`` is another one then.
    Raises ``UsageError`` if there is no such baseline.
    """

    def __init__(self, config: EvaluationConfig, root: Path) -> None:
        assert config.against is not None
        self._margin, self._until_decided = config.margin, config.until_decided
        self._baseline = load_baseline(config.against, root)
        path = self._baseline.path
        is_here = path.parent == root / "evals" and path.suffix == SUFFIX
        if is_here and path.stem == config.eval_id:
            raise UsageError("--against names the evaluation itself", place=f"evaluation {path.stem}")
        self.against = path.stem if is_here else str(path)

    def check(
        self,
        config: EvaluationConfig,
        tasks: Sequence[PlannedTask],
        description: Description,
        warn: Callable[[str], None],
    ) -> None:
        """Warn of rows that cannot be compared; raises ``UsageError`` if none can be."""
        planned = {task.row.id: task.row.n_rollouts for task in tasks}
        rows = make_run(config, tasks, planned, description.code).rows
        fingerprints = {row.row_id: row.fingerprints for row in rows}
        left_out = self._baseline.left_out(fingerprints, str(config.eval_id))
        if left_out:
            warn(f"--against {self.against} does not count {reasons(left_out)}")

    async def run(
        self, opened: OpenEvaluation, jobs: JobRunner, tally: Tally, note: Callable[[str], None]
    ) -> None:
        """Run the jobs; with ``--until-decided`` round by round, as few rounds as decide."""
        if not self._until_decided:
            await jobs.run(opened.jobs)
            await jobs.judge_again(opened.unjudged)
            return
        await jobs.judge_again(opened.unjudged)
        decision = self.decide(opened.read())
        over = [job for job in opened.jobs if job.index < decision.round]
        if over:  # rollouts that were not judged before, in rounds that are over
            await jobs.run(over)
            decision = self.decide(opened.read())
        for _, in_round in groupby(opened.jobs[len(over) :], key=attrgetter("index")):
            if decision.is_final or not tally.may_start:
                break
            await jobs.run([*in_round])
            before, decision = decision, self.decide(opened.read())
            if decision != before:
                note(str(decision))
        if decision.is_final:
            opened.store.plan_as_played()
            tally.planned = tally.done

    def decide(self, stored: StoredEvaluation) -> Decision:
        """The decision so far."""
        return self._baseline.decide(stored, margin=self._margin, until_decided=self._until_decided)
