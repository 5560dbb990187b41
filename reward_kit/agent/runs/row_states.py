"""The databases that the rollouts of a row share, open from its first rollout to its last."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward_kit.agent.reports.wording import one_line
from reward_kit.agent.runs.gold_state import GoldState, replay_row_gold
from reward_kit.agent.schedule import Job, rollout_seed
from reward_kit.agent.storage import keep_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Executor

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.storage import Keep, RunsFolder

BaseKey = tuple[str, str]


@dataclass(slots=True)
class RowState:
    """What a row's rollouts start from and are compared with.

    ``gold`` is None for rows without gold actions, ``keep`` where final states are not kept.
    """

    base: Database
    gold: GoldState | None
    keep: Keep | None

    async def gold_for(self, task: Task, seed: int) -> GoldState | None:
        """``gold``, or one of the rollout's own (to be closed) where random numbers are part of it."""
        if self.gold is None or self.gold.shared:
            return self.gold
        return await replay_row_gold(task, self.base, seed=seed)


class RowStates:
    """Opens bases and replays gold actions when a row's first rollout starts; closes them after its last."""

    def __init__(
        self,
        folder: RunsFolder,
        config: EvaluationConfig,
        jobs: Sequence[Job],
        files: Executor,
        tell: Callable[[str], None],
    ) -> None:
        """``files`` runs what has to wait for the disk; ``tell`` gets what a person should know."""
        self._folder = folder
        self._files = files
        self._config = config
        self._tell = tell
        self._faulty = False
        self._rows: dict[str, asyncio.Future[RowState]] = {}
        self._bases: dict[BaseKey, Database] = {}
        self._jobs_left = Counter(job.task.row.id for job in jobs)
        self._rows_left = Counter(
            _base_key(task) for task in {job.task.row.id: job.task for job in jobs}.values()
        )

    async def of(self, task: Task) -> RowState:
        """The state of a row; rollouts that ask at the same time wait for the same one."""
        pending = self._rows.get(task.row.id)
        if pending is None:
            pending = self._rows[task.row.id] = asyncio.ensure_future(self._open(task))
        return await asyncio.shield(pending)

    async def _open(self, task: Task) -> RowState:
        base = self._bases.get(_base_key(task))
        if base is None:
            base = self._bases[_base_key(task)] = self._folder.open_base(
                task.seed, mode=task.registry.database
            )
        gold = None
        if task.row.actions is not None:
            gold = await replay_row_gold(task, base, seed=rollout_seed(self._config.seed, task.row.id, 0))
            self._tell_fault(task, gold)
            try:
                writing = asyncio.get_running_loop().run_in_executor(
                    self._files, self._folder.write_gold, task, gold
                )
                gold.file = await writing
            except BaseException:
                gold.database.close()
                raise
        return RowState(base, gold, keep_of(self._config.keep_db, base))

    def _tell_fault(self, task: Task, gold: GoldState) -> None:
        """Tell the first gold action that broke its tool: rollouts are compared with what is left then."""
        if gold.fault is not None and not self._faulty:
            self._faulty = True
            self._tell(
                f"warning: row {task.row.id!r}: gold {one_line(gold.fault)}: what the data should be is not "
                "known; --validate-only names all such rows"
            )

    def leave(self, task: Task) -> None:
        """A rollout of the row is over; what no other needs is closed."""
        row_id, key = task.row.id, _base_key(task)
        self._jobs_left[row_id] -= 1
        if self._jobs_left[row_id] > 0:
            return
        state = self._rows.pop(row_id).result()
        if state.gold is not None:
            state.gold.database.close()
        self._rows_left[key] -= 1
        if self._rows_left[key] == 0:
            self._bases.pop(key).close()

    async def close(self) -> None:
        """Close all that is still open, also after a fault."""
        rows = list(self._rows.values())
        for row in rows:
            row.cancel()
        for state in await asyncio.gather(*rows, return_exceptions=True):
            if isinstance(state, RowState) and state.gold is not None:
                state.gold.database.close()
        self._rows.clear()
        while self._bases:
            self._bases.popitem()[1].close()


def _base_key(task: Task) -> BaseKey:
    return task.seed.key, task.registry.database
