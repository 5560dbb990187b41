"""``bundle.episode(row)``: an ``Episode`` of a bundle's row, on a base that is seeded once per bundle."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

from reward_kit.agent.bundles.bundle import Task, TaskBundle
from reward_kit.agent.database import Database
from reward_kit.agent.rollout.episode import Episode
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from reward_kit.agent.base.types import Model, Role
    from reward_kit.agent.players.users import User
    from reward_kit.agent.rollout.budgets import RolloutLimits

__all__ = ["TaskBundle", "open_episode"]


def open_episode(
    bundle: TaskBundle,
    row: str | int | Task,
    *,
    rng_seed: int = 0,
    user: User | None = None,
    models: Mapping[Role, Model] | None = None,
    limits: RolloutLimits | None = None,
) -> Episode:
    """An episode of ``row`` (its id, its position in the dataset or its task), which the caller closes.

    ``rng_seed`` decides the random numbers of its tools. Without a ``user`` the first reply ends it. Raises
    ``UsageError`` if the bundle has no such row, ``BundleError`` for a faulty seed.
    """
    task = _task_of(bundle, row)
    if bundle not in _bases:
        _bases[bundle] = bases = _Bases()
        finalize(bundle, bases.close)
    base = _bases[bundle].of(task)
    episode = Episode(task, base=base, user=user, models=models, limits=limits, seed=rng_seed)
    episode.owner = bundle
    return episode


def _task_of(bundle: TaskBundle, row: str | int | Task) -> Task:
    if isinstance(row, Task):
        return row
    if isinstance(row, int):
        if -len(bundle.tasks) <= row < len(bundle.tasks):
            return bundle.tasks[row]
        raise UsageError(f"there is no row {row}: the bundle has {len(bundle.tasks)}")
    for task in bundle.tasks:
        if task.row.id == row:
            return task
    raise UsageError(f"the bundle has no row {row!r}", place=str(bundle.dataset))


class _Bases(ExitStack):
    """The bases of a bundle in a temporary folder, by the key of their seed."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="reward-kit-")))
        self._open: dict[tuple[str, str], Database] = {}

    def of(self, task: Task) -> Database:
        seed, mode = task.seed, task.registry.database
        if (seed.key, mode) not in self._open:
            path = self._folder / f"{len(self._open)}.db"
            self._open[seed.key, mode] = self.enter_context(
                Database.seed(path, seed.sql, script=seed.script, origin=seed.origin, now=seed.now, mode=mode)
            )
        return self._open[seed.key, mode]


_bases: WeakKeyDictionary[TaskBundle, _Bases] = WeakKeyDictionary()

TaskBundle.episode = open_episode  # type: ignore[method-assign, assignment]  # bundles are below rollouts
