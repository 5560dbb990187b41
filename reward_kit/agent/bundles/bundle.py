"""Task bundles: a dataset with the tools, the reward and the seed that belong to it."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.dataset import RowFaults, read_dataset
from reward_kit.agent.bundles.files import BundleFiles, placeholder_fault, read_user_prompts
from reward_kit.agent.bundles.imports import BundleImports, absolute
from reward_kit.agent.bundles.seed import Seed, SeedSource, seed_source
from reward_kit.agent.bundles.source import BundleSource, find_bundle
from reward_kit.agent.bundles.task import Reward, Task, select_tasks
from reward_kit.agent.bundles.toolset import (
    end_goal_reward,
    load_registry,
    load_reward,
    outside_fault,
    required_fields,
)
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path
    from types import TracebackType

    from reward_kit.agent.bundles.task_row import TaskRow
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.tools.registry import ToolRegistry

__all__ = ["BundleRows", "Seed", "Task", "TaskBundle", "read_bundle"]

_T = TypeVar("_T")


class BundleRows:
    """The rows of a bundle, checked, and their seeds; no code of the bundle has run.

    ``rows`` are in the order of the dataset, ``seeds`` belong to them one by one (rows with the same seed
    share one object). A ``seed.py`` is read and fingerprinted here, and runs when a base is written.
    ``open()`` imports the tools and rewards that the rows name. ``close()`` removes unpacked files.
    """

    def __init__(
        self,
        source: BundleSource,
        rows: list[TaskRow],
        seeds: list[Seed],
        warnings: list[str],
        user_prompts: dict[str, str],
    ) -> None:
        self.dataset = source.dataset
        self.folder = source.folder
        self.rows = rows
        self.seeds = seeds
        self.warnings = warnings
        self.user_prompts = user_prompts
        self._source = source

    def open(self) -> TaskBundle:
        """Import the modules that the rows name; raises ``BundleError`` with all their faults."""
        with ExitStack() as undo:
            imports = BundleImports(self.folder)
            undo.callback(imports.close)
            bundle = TaskBundle(self, _tasks(self, imports), imports)
            undo.pop_all()
        return bundle

    def close(self) -> None:
        """Remove unpacked files. May be called again."""
        self._source.discard()

    def __enter__(self) -> BundleRows:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_bundle(source: str | Path | None, task_dir: str | Path | None = None) -> BundleRows:
    """Read and check the rows of the bundle that ``source`` names, without importing any of its code.

    ``source`` is a ``.jsonl`` file, a folder with a ``task.jsonl``, a packed bundle (``.zip``, ``.tar.gz``)
    or the import name of an installed bundle; ``task_dir`` is the bundle's folder if the dataset lies
    elsewhere. Raises ``BundleError`` with all faults of all rows.
    """
    found = find_bundle(source, task_dir)
    with ExitStack() as undo:
        undo.callback(found.discard)
        files = BundleFiles(found.folder)
        dataset = read_dataset(found.dataset, files)
        seeds = _seeds(dataset.rows, files, found.folder)
        prompts = read_user_prompts(found.folder)
        undo.pop_all()
    return BundleRows(found, dataset.rows, seeds, dataset.warnings, prompts)


class TaskBundle:
    """An open bundle: its tasks in the order of the dataset, and ``warnings`` about oddities in it.

    While it is open, its modules can be imported; ``close()`` (or leaving a ``with`` block) ends that::

        with TaskBundle.load("my_task/task.jsonl") as bundle:
            for task in bundle.tasks:
                ...
    """

    if TYPE_CHECKING:  # set by rollout.opening, which is above this module

        def episode(self, row: str | int | Task, *, rng_seed: int = 0, **options: Any) -> Episode:
            """See ``rollout.opening.open_episode``."""

    def __init__(self, read: BundleRows, tasks: list[Task], imports: BundleImports) -> None:
        self.dataset = read.dataset
        self.folder = read.folder
        self.tasks = tasks
        self.warnings = [*read.warnings, *_unknown_gold_tools(tasks)]
        self._read = read
        self._imports = imports

    @classmethod
    def load(cls, source: str | Path | None, *, task_dir: str | Path | None = None) -> TaskBundle:
        """Read, check and import the bundle that ``source`` names; see ``read_bundle``.

        Raises ``BundleError``: all faults of all rows at once, before anything is imported; then all faults
        of the modules that the rows name.
        """
        with ExitStack() as undo:
            read = undo.enter_context(read_bundle(source, task_dir))
            bundle = read.open()
            undo.pop_all()
        return bundle

    def task(self, row: str | int) -> Task:
        """The task with this row id, or at this position (from 0); raises ``BundleError``."""
        (found,) = select_tasks(self.tasks, task_ids=[row])
        return found

    def select(
        self,
        *,
        task_ids: str | Iterable[str | int] | None = None,
        start_index: int | None = None,
        end_index: int | None = None,
        max_tasks: int | None = None,
    ) -> list[Task]:
        """Some of the tasks; see ``select_tasks``."""
        return select_tasks(
            self.tasks, task_ids=task_ids, start_index=start_index, end_index=end_index, max_tasks=max_tasks
        )

    def close(self) -> None:
        """Forget the imported modules and remove unpacked files. May be called again."""
        self._imports.close()
        self._read.close()

    def __enter__(self) -> TaskBundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _seeds(rows: list[TaskRow], files: BundleFiles, folder: Path) -> list[Seed]:
    """The seed of each row; rows with the same seed share one object. Also checks the other references."""
    sources: dict[str | None, SeedSource | BundleError] = {}
    made: dict[tuple[str | None, str | None], Seed] = {}
    shared: dict[str, Seed] = {}
    outside: dict[str, str | None] = {}
    seeds: list[Seed] = []
    faults = RowFaults()
    for row in rows:
        if row.toolset not in outside:
            outside[row.toolset] = outside_fault(folder, row.toolset)
        if (fault := outside[row.toolset]) and not row.toolset_outside:
            faults.add(row, "toolset", fault)
        template = row.text("sim_user_template")
        if template is not None and (unusable := placeholder_fault(template)):
            faults.add(row, "sim_user_template", unusable)
        if row.seed_sql not in sources:
            sources[row.seed_sql] = _or_error(partial(seed_source, row, files, folder))
        source = sources[row.seed_sql]
        if isinstance(source, BundleError):
            faults.add(row, "seed_sql", str(source))
            continue
        seed = made.get((row.seed_sql, row.now))
        if seed is None:
            seed = source.at(row.now)
            seed = made[row.seed_sql, row.now] = shared.setdefault(seed.key, seed)
        seeds.append(seed)
    faults.raise_if_any()
    return seeds


def _or_error(make: Callable[[], _T]) -> _T | BundleError:
    """The value that ``make`` returns, or its ``BundleError``, kept for all rows that meet it."""
    try:
        return make()
    except BundleError as error:
        return error


def _tasks(read: BundleRows, imports: BundleImports) -> list[Task]:
    """The tasks of the rows; each toolset and each reward is imported once."""
    registries: dict[str, ToolRegistry | BundleError] = {}
    rewards: dict[tuple[str, str | None], _FoundReward | BundleError] = {}
    tasks: list[Task] = []
    faults = RowFaults()
    for row, seed in zip(read.rows, read.seeds, strict=True):
        if row.toolset not in registries:
            registries[row.toolset] = _or_error(partial(load_registry, imports, row.toolset))
        registry = registries[row.toolset]
        if isinstance(registry, BundleError):
            faults.add(row, "toolset", str(registry))
            continue
        what = (row.toolset, row.reward)
        if what not in rewards:
            rewards[what] = _or_error(partial(_FoundReward.load, imports, *what))
        found = rewards[what]
        if isinstance(found, BundleError):
            faults.add(row, "reward", str(found))
            continue
        for name, fault in found.faults(row):
            faults.add(row, name, fault)
        tasks.append(Task(row, registry, found.function, seed, read.folder, read.user_prompts))
    faults.raise_if_any()
    return tasks


def _unknown_gold_tools(tasks: Iterable[Task]) -> list[str]:
    """Gold actions whose tool does not exist; they are skipped, as tau-bench does, and rarely meant so."""
    faults = RowFaults()
    for task in tasks:
        known = task.registry.tools
        for name in {action.name: None for action in task.row.actions or ()}:
            if name not in known:
                hint = did_you_mean(name, list(known))
                fault = f"there is no tool {name!r}{hint}; the call is skipped"
                faults.add(task.row, "actions", fault)
    return faults.lines()


@dataclass(frozen=True, slots=True)
class _FoundReward:
    """A reward, the row fields that it needs, and the ``missing`` file that the default stands in for."""

    function: Reward
    required: frozenset[str]
    missing: str | None = None

    @classmethod
    def load(cls, imports: BundleImports, toolset: str, reward: str | None) -> _FoundReward:
        function = load_reward(imports, toolset, reward)
        if function is not None:
            return cls(function, frozenset(required_fields(function)))
        module = absolute(imports.folder, toolset.partition(":")[0])
        package = module.rpartition(".")[0] or imports.folder.name
        return cls(end_goal_reward, frozenset({"end_goal_sql"}), f"{package.replace('.', '/')}/reward.py")

    def faults(self, row: TaskRow) -> Iterator[tuple[str, str]]:
        if not self.required:
            return
        for name in sorted(self.required - row.given_fields()):
            if self.missing is None:
                yield name, "is missing, but the reward needs it"
            else:
                yield name, f"is missing, and there is no {self.missing}: no reward is defined"
