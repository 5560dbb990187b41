"""The databases that the rollouts of a row share: its base, and the state its gold actions lead to."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import one_line
from reward_kit.agent.records.outcome import RowGold
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.runner.schedule import rollout_seed
from reward_kit.agent.scoring.failures.alignment import ExpectedCall
from reward_kit.agent.storage.layout import keep_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.database import Database
    from reward_kit.agent.storage.layout import Keep, RunsFolder

BaseKey = tuple[str, str]
MOST_IDLE = 32
"""Rows that stay open without a rollout; few rows are not made again for each of their rollouts."""


@dataclass(slots=True)
class GoldState:
    """The state after the gold actions, with each action and the rows that it changed.

    ``shared`` means that no random number was drawn, so that the state does not depend on the rollout's seed
    and all rollouts of the row can be compared with this one; otherwise (tools that make up random ids) each
    needs its own. ``fault`` is the first action that could not be done as it is written
    (``GoldCall.is_faulty``).
    """

    database: Database
    calls: list[dict[str, Any]] = field(default_factory=list)
    shared: bool = True
    fault: str | None = None

    @property
    def expected(self) -> list[ExpectedCall]:
        """The gold actions as the failure classes need them.

        The answers of reads are known; not those after a change for which a random number may be drawn.
        """
        expected = []
        is_known = True
        for call in self.calls:
            writes = bool(call["changes"])
            is_known = is_known and (self.shared or not writes)
            answer = call["content"] if is_known and not writes else None
            expected.append(ExpectedCall(call["name"], call["arguments"], writes, call["changes"], answer))
        return expected


async def replay_row_gold(task: Task, base: Database, *, seed: int) -> GoldState:
    """Replay the gold actions with the seed of a rollout, so that random ids come out as in the rollout."""
    replay = await replay_gold_calls(task, base, seed=seed)
    done = list(zip(task.row.actions or (), replay.calls, strict=True))
    calls = [
        {"name": action.name, "arguments": action.arguments, "content": call.content, "changes": call.changes}
        for action, call in done
    ]
    faults = (
        f"action {number} ({action.name}): {call.raised or call.content}"
        for number, (action, call) in enumerate(done)
        if call.is_faulty
    )
    shared = replay.database.draws == 0
    return GoldState(database=replay.database, calls=calls, shared=shared, fault=next(faults, None))


@dataclass(slots=True)
class RowState:
    """The base of a row's rollouts, and the gold state that they are compared with.

    ``gold`` is None for rows without gold actions, ``keep`` where final states are not kept. ``unsaved`` is
    what is to be stored of the gold actions, until a rollout takes it along.
    """

    base: Database
    gold: GoldState | None
    keep: Keep | None
    unsaved: RowGold | None = None

    async def gold_for(self, task: Task, seed: int) -> GoldState | None:
        """``gold``, or one of the rollout's own (to be closed) where random numbers are part of it."""
        if self.gold is None or self.gold.shared:
            return self.gold
        return await replay_row_gold(task, self.base, seed=seed)

    def take_unsaved(self) -> RowGold | None:
        """``unsaved``, for the first who asks."""
        taken, self.unsaved = self.unsaved, None
        return taken


class RowStates:
    """Bases and gold states of rows: made when a row's first rollout starts, closed when others need room."""

    def __init__(
        self, folder: RunsFolder, config: EvaluationConfig, warn: Callable[[str], None], *, planned: int
    ) -> None:
        """``planned`` is the number of rollouts of the whole evaluation."""
        self._folder = folder
        self._config = config
        self._warn = warn
        self._planned = planned
        self._faulty = False
        self._rows: dict[str, asyncio.Future[RowState]] = {}
        self._bases: dict[BaseKey, Database] = {}
        self._users: Counter[str] = Counter()
        self._idle: dict[str, Task] = {}

    async def of(self, task: Task) -> RowState:
        """The state of a row, until ``release``; rollouts that ask at the same time share one."""
        row_id = task.row.id
        self._users[row_id] += 1
        self._idle.pop(row_id, None)
        pending = self._rows.get(row_id)
        if pending is None:
            pending = self._rows[row_id] = asyncio.ensure_future(self._open(task))
        return await asyncio.shield(pending)

    def release(self, task: Task) -> None:
        """A rollout of the row is over; close the row that was idle longest if there are too many."""
        row_id = task.row.id
        self._users[row_id] -= 1
        if self._users[row_id]:
            return
        del self._users[row_id]
        self._idle[row_id] = task
        while len(self._idle) > MOST_IDLE:
            self._close_row(self._idle.pop(next(iter(self._idle))))

    def _close_row(self, task: Task) -> None:
        row = self._rows.pop(task.row.id)
        if row.cancelled() or row.exception() is not None:
            return
        gold = row.result().gold
        if gold is not None:
            gold.database.close()

    async def _open(self, task: Task) -> RowState:
        key = task.seed.key, task.registry.database
        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = self._folder.open_base(task.seed, mode=task.registry.database)
        await asyncio.to_thread(self._folder.row_folder, task)
        row = RowState(base, None, keep_of(self._config.keep_db, base, self._planned))
        if task.row.actions is not None:
            gold = await replay_row_gold(task, base, seed=rollout_seed(self._config.seed, task.row.id, 0))
            self._warn_of_fault(task, gold)
            row.gold = gold
            changes = gold.database.changes().to_json()
            row.unsaved = RowGold(
                task.row.id, gold.calls, changes, gold.database.delta() if gold.shared else None
            )
        return row

    def _warn_of_fault(self, task: Task, gold: GoldState) -> None:
        """Report the first gold action that broke its tool: the expected data is not known then."""
        if gold.fault is not None and not self._faulty:
            self._faulty = True
            self._warn(
                f"warning: row {task.row.id!r}: gold {one_line(gold.fault)}: what the data should be is not "
                "known; --validate-only names all such rows"
            )

    async def close(self) -> None:
        """Close everything."""
        rows = list(self._rows.values())
        for row in rows:
            row.cancel()
        for state in await asyncio.gather(*rows, return_exceptions=True):
            if isinstance(state, RowState) and state.gold is not None:
                state.gold.database.close()
        self._rows.clear()
        while self._bases:
            self._bases.popitem()[1].close()
