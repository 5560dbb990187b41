"""The plan of a run: the rollouts that are left, or rounds of them until a comparison is decided."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import groupby
from operator import attrgetter
from typing import TYPE_CHECKING

from reward_kit.agent.comparison.compare import load
from reward_kit.agent.comparison.gate import decide_against, left_out_of, reasons
from reward_kit.agent.evaluation.progress import Tally
from reward_kit.agent.rollout.outcome import REWARD_ERROR
from reward_kit.agent.rollout.rollout import Budget
from reward_kit.agent.scoring.sequential import RowProgress, decide
from reward_kit.agent.store.evaluation_file import reading
from reward_kit.agent.store.layout import judged_places, paid_for_explanations, read_evaluation
from reward_kit.agent.store.loading import StoredRollout
from reward_kit.agent.store.resume import check_same, more_than_asked
from reward_kit.errors import DatabaseError, StorageError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from pathlib import Path

    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.job_runner import JobRunner
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.scoring.sequential import Decision
    from reward_kit.agent.store.layout import RunsFolder
    from reward_kit.agent.store.results import EvaluationResult
    from reward_kit.agent.store.resume import PlannedRow, Run
    from reward_kit.agent.store.writer import Store


@dataclass(frozen=True, slots=True)
class Job:
    """Rollout ``index`` (from 0) of ``task``, after ``attempts`` and ``user_retries`` in earlier runs."""

    task: PlannedRow
    index: int
    attempts: int = 0
    user_retries: int = 0

    @property
    def place(self) -> tuple[str, int]:
        """Row id and index, which tell a rollout from all others of its evaluation."""
        return self.task.row.id, self.index


@dataclass(slots=True)
class Plan:
    """The rollouts of a run: ``jobs`` are left to be played, ``unjudged`` are over, but their reward failed.

    The ``tally`` begins with what is done already, in ``seconds_before`` by earlier runs. ``warning``: more
    is there than is asked for.
    """

    jobs: list[Job]
    unjudged: list[tuple[Job, Outcome]]
    tally: Tally
    seconds_before: float
    warning: str | None


def make_plan(config: EvaluationConfig, run: Run, folder: RunsFolder, store: Store) -> Plan:
    """Plan ``run`` with what ``store`` has of the evaluation already, and begin it there.

    Raises ``UsageError`` if the evaluation was started with something else.
    """
    asked = {row.row.id: row.n_rollouts for row in run.rows}
    budget = Budget(config.max_cost, config.max_tokens)
    tally = Tally(run.eval_id, sum(asked.values()), budget, errors_as_failures=config.errors_as_failures)
    plan = Plan([], [], tally, 0.0, None)
    finished: dict[tuple[str, int], bool] = {}
    unjudged: dict[tuple[str, int], Outcome] = {}
    attempts: dict[tuple[str, int], list[int]] = {}
    if store.has_runs:
        before = read_evaluation(store.path, running=True, unjudged=True)
        finished = judged_places(store.path)
        if more := Counter(row_id for row_id, index in finished if index >= asked.get(row_id, 0)):
            rows = [replace(row, n_rollouts=row.n_rollouts + more[row.row.id]) for row in run.rows]
            run = replace(run, rows=rows)
            tally.planned += more.total()
            plan.warning = more_than_asked(more, asked, finished)
        check_same(run, before)
        folder.sweep(asked)
        unjudged = {
            (outcome.row_id, outcome.index): outcome
            for outcome in before.outcomes
            if outcome.unjudged_reason == REWARD_ERROR and _is_kept(StoredRollout(store.path, outcome.id))
        }
        query = "SELECT row_id, idx, max(attempt) + 1, count(reward) FROM rollouts GROUP BY row_id, idx"
        with reading(store.path) as connection:
            attempts = {(row_id, index): made for row_id, index, *made in connection.execute(query)}
        tally.add_earlier(finished)
        for usage in (*before.usage.values(), *before.broken_off.usage.values()):
            tally.usage.add(usage)
        tally.usage.cost += paid_for_explanations(store.path)
        plan.seconds_before = before.seconds
    for job in jobs_of(run.rows, asked, finished):
        if job.place in unjudged:
            plan.unjudged.append((job, unjudged[job.place]))
        else:
            plan.jobs.append(Job(job.task, job.index, *attempts.get(job.place, ())))
    store.begin_run(run)
    store.path.with_suffix(".json").unlink(missing_ok=True)  # the results of an earlier run
    return plan


def jobs_of(
    rows: Sequence[PlannedRow], asked: Mapping[str, int], finished: Collection[tuple[str, int]] = ()
) -> list[Job]:
    """The rollouts that are left: the first of every row, then the second; ``asked`` numbers by row id."""
    return [
        Job(row, index)
        for index in range(max(asked.values(), default=0))
        for row in rows
        if index < asked[row.row.id] and (row.row.id, index) not in finished
    ]


def _is_kept(rollout: StoredRollout) -> bool:
    try:
        with ExitStack() as opened:
            return rollout.open("final", "overlay", opened) is not None
    except (StorageError, DatabaseError):
        return False


class Rounds:
    """The baseline that ``--against`` names, and the rounds of an evaluation that is compared with it.

    ``against`` is its path: a resumed evaluation finds the same, also by ``latest``. Raises ``UsageError`` if
    there is no such baseline.
    """

    def __init__(self, config: EvaluationConfig, root: Path) -> None:
        assert config.against is not None
        self._config = config
        self._baseline = load(config.against, root)
        self.against = str(self._baseline.log_path.absolute())
        if self._baseline.log_path.absolute() == root / "evals" / f"{config.eval_id}.db":
            raise UsageError("--against names the evaluation itself", place=f"evaluation {config.eval_id}")

    def check(self, run: Run, warn: Callable[[str], None]) -> None:
        """Warn of rows that cannot be compared; raises ``UsageError`` if none can be."""
        fingerprints = {row.row.id: row.fingerprints for row in run.rows}
        if left_out := left_out_of(self._baseline, fingerprints, run.eval_id):
            warn(f"--against {self._baseline.eval_id}: not compared: {reasons(left_out)}")
        others = {row_id for ids in left_out.values() for row_id in ids}
        asked = {row.row.id: row.n_rollouts for row in run.rows if row.row.id not in others}
        before = [row for row in self._baseline.rows if row.n_scored and row.row_id in asked]
        rows = [RowProgress(row.n_scored, row.passed, (), asked[row.row_id]) for row in before]
        config, name = self._config, self._baseline.eval_id
        decision = decide(rows, margin=config.margin, until_decided=config.until_decided, baseline=name)
        if decision.least_margin > decision.margin:
            warn(f"--against {decision.baseline}: {decision.advice}")

    async def run(self, plan: Plan, runner: JobRunner, store: Store) -> None:
        """Run the jobs round by round, as few rounds as decide."""
        await runner.judge_again(plan.unjudged)
        decision = self._decided(store)
        over = [job for job in plan.jobs if job.index < decision.round]
        if over:  # rollouts that were not judged before, in rounds that are over
            await runner.run(over)
            decision = self._decided(store)
        for _, in_round in groupby(plan.jobs[len(over) :], key=attrgetter("index")):
            if decision.is_final or not plan.tally.may_start():
                break
            await runner.run([*in_round])
            before, decision = decision, self._decided(store)
            if decision != before and not decision.is_final and decision.round < decision.rounds:
                runner.display.show(str(decision))
        if decision.is_final:
            store.plan_as_played()
            plan.tally.planned = plan.tally.done

    def _decided(self, store: Store) -> Decision:
        return self.decide(read_evaluation(store.path, running=True))

    def decide(self, stored: EvaluationResult) -> Decision:
        margin, until_decided = self._config.margin, self._config.until_decided
        return decide_against(self._baseline, stored, margin=margin, until_decided=until_decided)
