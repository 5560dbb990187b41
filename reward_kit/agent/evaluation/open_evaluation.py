"""An evaluation that this process may write: its store, and what is done already."""

from __future__ import annotations

from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

from reward_kit.agent.evaluation.progress import Tally
from reward_kit.agent.evaluation.schedule import plan
from reward_kit.agent.rollout.budgets import Budget
from reward_kit.agent.rollout.outcome import REWARD_ERROR
from reward_kit.agent.store.differences import check_same
from reward_kit.agent.store.loading import StoredRollout
from reward_kit.agent.store.resume import make_run, more_than_asked
from reward_kit.agent.store.stored_evaluation import (
    StoredEvaluation,
    has_runs,
    judged_places,
    read_evaluation,
)
from reward_kit.agent.store.writer import Store
from reward_kit.errors import DatabaseError, StorageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.bundles.task import PlannedTask
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.evaluation.protocol import Description
    from reward_kit.agent.store.layout import RunsFolder


class OpenEvaluation:
    """The evaluation of a configuration, begun or resumed.

    ``jobs`` are left to be run, and ``unjudged`` are over, but their reward failed. ``seconds_before`` is the
    length of earlier runs. ``warning``: more is there than is asked for.
    Raises ``StorageError`` if another process has it, ``UsageError`` if it was begun with something else.
    """

    def __init__(
        self,
        folder: RunsFolder,
        config: EvaluationConfig,
        tasks: Sequence[PlannedTask],
        description: Description,
    ) -> None:
        assert config.eval_id is not None
        self.folder = folder
        self._config = config
        path = folder.evaluation(config.eval_id)
        with ExitStack() as opened:
            self.store = opened.enter_context(Store(path))
            before = self._before = (
                read_evaluation(path, running=True, unjudged=True) if has_runs(path) else None
            )
            finished = self._finished = judged_places(path)
            asked = {task.row.id: config.n_rollouts or task.row.n_rollouts for task in tasks}
            more = Counter(row_id for row_id, index in finished if index >= asked.get(row_id, 0))
            planned = {row_id: number + more[row_id] for row_id, number in asked.items()}
            run = make_run(config, tasks, planned, description.code)
            if before is not None:
                check_same(run, before, tasks, description.reward_files)
                folder.sweep(tasks)
            unjudged = {
                (outcome.row_id, outcome.index): outcome
                for outcome in (before.outcomes if before is not None else ())
                if outcome.unjudged_reason == REWARD_ERROR and _is_kept(StoredRollout(path, outcome.id))
            }
            left = plan(tasks, asked, finished)
            self.jobs = [job for job in left if job.place not in unjudged]
            self.unjudged = [(job, unjudged[job.place]) for job in left if job.place in unjudged]
            self.planned = sum(planned.values()) + sum(more[row] for row in more.keys() - asked.keys())
            self.warning = more_than_asked(asked, finished)
            self.seconds_before = before.seconds if before is not None else 0.0
            self.store.begin_run(run)
            self._close = opened.pop_all()

    def read(self) -> StoredEvaluation:
        """The evaluation as it is stored now."""
        return read_evaluation(self.store.path, running=True)

    def tally(self) -> Tally:
        """The running numbers, with what is done already counted in."""
        config = self._config
        assert config.eval_id is not None
        tally = Tally(
            config.eval_id,
            self.planned,
            Budget(config.max_cost, config.max_tokens),
            errors_as_failures=config.errors_as_failures,
        )
        before, self._before = self._before, None
        if before is not None:
            tally.add_earlier(self._finished, before.usage.values())
            for usage in (*before.usage.values(), *before.broken_off.usage.values()):
                tally.usage.add(usage)
        return tally

    def __enter__(self) -> OpenEvaluation:
        return self

    def __exit__(self, *_: object) -> None:
        self._close.close()


def _is_kept(rollout: StoredRollout) -> bool:
    """True if the final state of a rollout can be read."""
    try:
        with ExitStack() as opened:
            return rollout.open("final", "overlay", opened) is not None
    except (StorageError, DatabaseError):
        return False
