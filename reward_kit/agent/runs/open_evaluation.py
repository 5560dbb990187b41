"""An evaluation that this process may write: locked, its log open, and what is done already known."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from reward_kit.agent.results import RowResult, row_results
from reward_kit.agent.runs.evaluation_lock import EvaluationLock
from reward_kit.agent.runs.evaluation_log import EvaluationLog, LoggedEvaluation, read_log
from reward_kit.agent.runs.resume import finished_outcomes, make_header, more_than_asked, outcomes_to_judge
from reward_kit.agent.schedule import plan
from reward_kit.agent.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.storage import RunsFolder


class OpenEvaluation:
    """``jobs`` are left to be run, and ``unjudged`` are over, but their reward failed. ``broken_off`` is what
    attempts have used that were broken off before, ``seconds_before`` how long these runs took. ``warning``:
    more is there than is asked for.

    Raises ``StorageError`` if another process has it, ``UsageError`` if it was begun with something else.
    """

    def __init__(self, folder: RunsFolder, config: EvaluationConfig, tasks: Sequence[Task]) -> None:
        assert config.eval_id is not None
        self.folder = folder
        self._config = config
        path = folder.evals / f"{config.eval_id}.jsonl"
        with ExitStack() as opened:
            lock = EvaluationLock(path.with_suffix(".lock"))
            opened.callback(lock.release)
            logged = read_log(path) if path.exists() else LoggedEvaluation()
            self._earlier = {outcome.file: outcome for outcome in logged.outcomes}
            self.broken_off = logged.broken_off
            self.seconds_before = logged.seconds
            self._finished = finished_outcomes(logged, folder.root)
            asked = {task.row.id: config.n_rollouts or task.row.n_rollouts for task in tasks}
            header = make_header(config, tasks, asked)
            if logged.headers:
                from reward_kit.agent.runs.differences import check_same

                check_same(header, logged, tasks, folder.root)
                folder.sweep(tasks)
            for earlier in logged.headers:
                for known in earlier.get("toolsets", ()):
                    header.toolsets.pop(known, None)
            unjudged = outcomes_to_judge(logged, folder.root, self._finished)
            left = plan(tasks, asked, self._finished)
            self.jobs = [job for job in left if job.place not in unjudged]
            self.unjudged = [(job, unjudged[job.place]) for job in left if job.place in unjudged]
            self._planned = _planned(asked, self._finished)
            self.warning = more_than_asked(asked, self._finished)
            self.log = EvaluationLog(path, keep=logged.whole, lock=lock)
            opened.callback(self.log.close)
            self.log.append(header.to_json("resumed" if logged.headers else "evaluation"))
            self._close = opened.pop_all()

    @property
    def earlier(self) -> list[RolloutOutcome]:
        """What the log holds from before, each rollout that was judged again as it is judged now."""
        return list(self._earlier.values())

    def judged_again(self, outcome: RolloutOutcome) -> None:
        """One of the ``unjudged``, as it is judged now: a line of the log says so."""
        self._earlier[outcome.file] = outcome
        if outcome.judged:
            self._finished[outcome.row_id, outcome.index] = outcome

    def tally(self) -> Tally:
        """The running numbers, with what is done already counted in."""
        assert self._config.eval_id is not None
        tally = Tally(
            eval_id=self._config.eval_id,
            planned=sum(self._planned.values()),
            max_cost=self._config.max_cost,
            max_tokens=self._config.max_tokens,
            errors_as_failures=self._config.errors_as_failures,
        )
        for outcome in self._finished.values():
            tally.add(outcome)
        tally.earlier = tally.done
        used = [outcome.usage for outcome in self.earlier]
        for by_role in (*used, self.broken_off.usage):
            for usage in by_role.values():
                tally.spending.count(usage)
        return tally

    def row_results(self, outcomes: Sequence[RolloutOutcome]) -> tuple[RowResult, ...]:
        """The results of all rows, with the ``outcomes`` of this run.

        Of each rollout the last final outcome counts, unless its trajectory is lost.
        """
        unjudged = [outcome for outcome in self.earlier if not outcome.judged]
        return row_results(
            self._planned,
            [*unjudged, *self._finished.values(), *outcomes],
            errors_as_failures=self._config.errors_as_failures,
        )

    def __enter__(self) -> OpenEvaluation:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close.close()


def _planned(asked: dict[str, int], finished: dict[tuple[str, int], RolloutOutcome]) -> dict[str, int]:
    """Rollouts of each row: those asked for, and at least those that are there already."""
    planned = dict(asked)
    for row_id, index in finished:
        if index >= asked.get(row_id, 0):
            planned[row_id] = planned.get(row_id, 0) + 1
    return planned
