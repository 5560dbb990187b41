"""The databases that the rollouts of a row share: its base, and the state its gold actions lead to."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import one_line
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.scoring.failures.first_fault import ExpectedCall
from reward_kit.agent.store.kept_gold import row_gold
from reward_kit.agent.store.layout import keep_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.database import Database
    from reward_kit.agent.database.determinism import Randomness
    from reward_kit.agent.rollout.gold import GoldReplay
    from reward_kit.agent.rollout.outcome import RowGold
    from reward_kit.agent.store.kept_gold import KeptGold
    from reward_kit.agent.store.layout import Keep, RunsFolder

MOST_OPEN = 128
"""Rows that stay open while no rollout of theirs runs; more are closed, and made again when needed."""


def expected_calls(task: Task, gold: GoldReplay | None) -> list[ExpectedCall]:
    """The gold actions as the failure classes need them.

    The answers of reads are known; not those after a change for which a random number may be drawn.
    """
    if gold is None:
        return []
    expected = []
    is_known = True
    for action, call in zip(task.row.actions or (), gold.calls, strict=True):
        writes = bool(call.changes)
        is_known = is_known and (gold.shared or not writes)
        answer = call.content if is_known and not writes else None
        expected.append(ExpectedCall(action.name, action.arguments, writes, call.changes, answer, action.by))
    return expected


@dataclass(slots=True)
class RowState:
    """The base of a row's rollouts, and the gold state that they are compared with.

    ``gold`` is None for rows without gold actions, ``keep`` if final states are not kept. ``unsaved`` is what
    is to be stored of the gold actions.
    """

    task: Task
    base: Database
    gold: GoldReplay | None
    keep: Keep | None
    unsaved: RowGold | None = None

    @asynccontextmanager
    async def gold_for(self, seed: int | Randomness) -> AsyncIterator[GoldReplay | None]:
        """``gold``, or a replay with the rollout's seed if random numbers are drawn in it."""
        if self.gold is None or self.gold.shared:
            yield self.gold
            return
        replay = await replay_gold_calls(self.task, self.base, seed=seed)
        with replay.database:
            yield replay

    def take_unsaved(self) -> RowGold | None:
        """The effect of the gold actions, for the first rollout that asks: it is stored once."""
        taken, self.unsaved = self.unsaved, None
        return taken


class RowStates:
    """Bases and gold states of rows: made when a row's first rollout starts, closed when others need room."""

    def __init__(
        self,
        folder: RunsFolder,
        config: EvaluationConfig,
        kept: KeptGold,
        warn: Callable[[str], None],
        *,
        planned: int,
    ) -> None:
        """``planned`` is the number of rollouts of the whole evaluation."""
        self._kept = kept
        self._folder = folder
        self._config = config
        self._warn = warn
        self._planned = planned
        self._has_warned = False
        self._rows: dict[str, asyncio.Task[RowState]] = {}
        self._users: Counter[str] = Counter()
        self._bases: dict[tuple[str, str], Database] = {}

    @asynccontextmanager
    async def of(self, task: Task, seed: int) -> AsyncIterator[RowState]:
        """The state of a row; its gold actions are replayed with ``seed``. Rollouts of a row share it."""
        row_id = task.row.id
        state = self._rows.get(row_id)
        if state is None:
            state = self._rows[row_id] = asyncio.create_task(self._open(task, seed))
        self._users[row_id] += 1
        try:
            yield state.result() if state.done() else await asyncio.shield(state)
        finally:
            self._users[row_id] -= 1
            if not self._users[row_id] and len(self._rows) > MOST_OPEN:
                del self._rows[row_id]
                _close(state)

    async def _open(self, task: Task, seed: int) -> RowState:
        key = task.seed.key, task.registry.database
        base = self._bases.get(key)
        if base is None:
            base = self._bases[key] = self._folder.open_base(task.seed, mode=task.registry.database)
        row = RowState(task, base, None, keep_of(self._config.keep_db, base, self._planned))
        if task.row.actions is not None:
            gold, row.unsaved = await self._gold(task, base, seed)
            row.gold = gold
            if gold.fault is not None and not self._has_warned:
                self._has_warned = True
                self._warn(
                    f"warning: row {task.row.id!r}: {one_line(gold.fault)}: what the data should be is not "
                    "known; reward-kit validate names all such rows"
                )
        return row

    async def _gold(self, task: Task, base: Database, seed: int) -> tuple[GoldReplay, RowGold]:
        """The state of the row's gold actions, kept or replayed, and what is to be stored of it."""
        key = self._kept.key_of(task)
        if key is not None and (known := self._kept.get(key, task, base, seed)) is not None:
            return known
        gold = await replay_gold_calls(task, base, seed=seed)
        changes = gold.database.changes().to_json()
        stored = row_gold(task, gold.calls, changes, gold.database.delta() if gold.shared else None)
        if key is not None:
            self._kept.add(key, gold, stored)
        with gold.database as played:  # a fork of it that is not written to needs no connection
            gold.database = played.fork()
        return gold, stored

    async def close(self) -> None:
        """Close everything."""
        states = [*self._rows.values()]
        self._rows.clear()
        for state in states:
            state.cancel()
        await asyncio.gather(*states, return_exceptions=True)
        for state in states:
            _close(state)
        while self._bases:
            self._bases.popitem()[1].close()
        self._kept.close()


def _close(state: asyncio.Task[RowState]) -> None:
    state.cancel()
    is_open = state.done() and not state.cancelled() and state.exception() is None
    if is_open and (gold := state.result().gold) is not None:
        gold.database.close()
