"""The rows of a bundle for episodes: their seeds, and their bases, which are seeded once per bundle."""

from __future__ import annotations

import hashlib
import tempfile
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, finalize

from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.task import Task
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.database import Database


def base_of(bundle: TaskBundle, task: Task) -> Database:
    """The base of a task, seeded once per bundle and closed with it; ``BundleError`` for a faulty seed."""
    if bundle not in _bases:
        _bases[bundle] = bases = _Bases()
        finalize(bundle, bases.close)
    return _bases[bundle].of(task)


def task_of(bundle: TaskBundle, row: str | int | Task) -> Task:
    """The task of ``row``: its id, its position in the dataset, or the task itself.

    Raises ``UsageError`` if the bundle has no such row.
    """
    if isinstance(row, Task):
        return row
    if isinstance(row, int):
        if -len(bundle.tasks) <= row < len(bundle.tasks):
            return bundle.tasks[row]
        raise UsageError(f"there is no row {row}: the bundle has {len(bundle.tasks)}")
    known = {task.row.id: task for task in bundle.tasks}
    if row not in known:
        raise UsageError(f"there is no row {row!r}{did_you_mean(row, known)}", place=str(bundle.dataset))
    return known[row]


def rollout_seed(seed: int, row_id: str, index: int, attempt: int = 0) -> int:
    """The seed of one rollout, from 0 to 2^31 - 1.

    It depends on nothing but these, so that a selection, another order or a resumption changes no rollout; a
    repeated attempt gets another, since the same might fail the same way.
    """
    parts = (seed, row_id, index) if attempt == 0 else (seed, row_id, index, attempt)
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") >> 1


class _Bases(ExitStack):
    """The bases of a bundle in a temporary folder, by the key of their seed."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="reward-kit-")))
        self._open: dict[tuple[str, str], Database] = {}
        self._lock = threading.Lock()

    def of(self, task: Task) -> Database:
        seed, mode = task.seed, task.registry.database
        with self._lock:  # episodes are opened in several threads
            if (seed.key, mode) not in self._open:
                path = self._folder / f"{len(self._open)}.db"
                self._open[seed.key, mode] = self.enter_context(seed.base(path, mode))
            return self._open[seed.key, mode]


_bases: WeakKeyDictionary[TaskBundle, _Bases] = WeakKeyDictionary()
