"""Task bundles: a dataset with the tools, the reward and the seed that belong to it."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self, TypeVar

from reward_kit.agent.base.task_row import RowFaults
from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.bundles.dataset import read_dataset
from reward_kit.agent.bundles.files import BundleFiles, placeholder_fault, read_user_prompts
from reward_kit.agent.bundles.imports import BundleImports
from reward_kit.agent.bundles.seed import Seed, SeedSource, seed_source
from reward_kit.agent.bundles.source import BundleSource, find_bundle
from reward_kit.agent.bundles.task import Task, select_tasks
from reward_kit.agent.bundles.toolset import FoundReward, load_registry, load_reward
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from reward_kit.agent.base.task_row import TaskRow
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.tools.registry import ToolRegistry

__all__ = ["BundleRows", "Seed", "Task", "TaskBundle", "read_bundle"]

_T = TypeVar("_T")


class _Closing:
    """A context manager that closes itself."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class BundleRows(_Closing):
    """The rows of a bundle, checked, and their seeds; no code of the bundle has run.

    ``rows`` are in the order of the dataset, ``seeds`` belong to them one by one (rows with the same seed
    share one object). A ``seed.py`` is read and fingerprinted here, and runs when a base is written.
    ``open()`` imports the tools and rewards that the rows name. ``close()`` removes unpacked files.
    """

    def __init__(self, source: BundleSource) -> None:
        files = BundleFiles(source.folder)
        read = read_dataset(source.dataset, files)
        self.dataset = source.dataset
        self.folder = source.folder
        self.rows = read.rows
        self.seeds = _seeds(read.rows, files, source.folder)
        self.warnings = read.warnings
        self.user_prompts = read_user_prompts(source.folder)
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


def read_bundle(source: str | Path | None, task_dir: str | Path | None = None) -> BundleRows:
    """Read and check the rows of the bundle that ``source`` names, without importing any of its code.

    ``source`` is a ``.jsonl`` file, a folder with a ``task.jsonl``, a packed bundle (``.zip``, ``.tar.gz``)
    or the import name of an installed bundle; ``task_dir`` is the bundle's folder if the dataset lies
    elsewhere. Raises ``BundleError`` with all faults of all rows.
    """
    found = find_bundle(source, task_dir)
    with ExitStack() as undo:
        undo.callback(found.discard)
        rows = BundleRows(found)
        undo.pop_all()
    return rows


class TaskBundle(_Closing):
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
            bundle = undo.enter_context(read_bundle(source, task_dir)).open()
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


def _or_error(make: Callable[..., _T], *arguments: Any, **keywords: Any) -> _T | BundleError:
    """The value that ``make`` returns, or its ``BundleError``, kept for all rows that meet it."""
    try:
        return make(*arguments, **keywords)
    except BundleError as error:
        return error


def _seeds(rows: list[TaskRow], files: BundleFiles, folder: Path) -> list[Seed]:
    """The seed of each row; rows with the same seed share one object. Also checks the users' prompts."""
    sources: dict[str | None, SeedSource | BundleError] = {}
    made: dict[tuple[str | None, str | None], Seed] = {}
    shared: dict[str, Seed] = {}
    seeds: list[Seed] = []
    faults = RowFaults()
    for row in rows:
        template = row.text("sim_user_template")
        if template is not None and (fault := placeholder_fault(template)):
            faults.add(row, "sim_user_template", fault)
        if row.seed_sql not in sources:
            sources[row.seed_sql] = _or_error(seed_source, row, files, folder)
        source = sources[row.seed_sql]
        if isinstance(source, BundleError):
            faults.add(row, "seed_sql", str(source))
            continue
        if (row.seed_sql, row.now) not in made:
            seed = source.at(row.now)
            made[row.seed_sql, row.now] = shared.setdefault(seed.key, seed)
        seeds.append(made[row.seed_sql, row.now])
    faults.raise_if_any()
    return seeds


def _tasks(read: BundleRows, imports: BundleImports) -> list[Task]:
    """The tasks of the rows; each toolset and each reward is imported once."""
    registries: dict[tuple[str, bool], ToolRegistry | BundleError] = {}
    rewards: dict[tuple[str, str | None], FoundReward | BundleError] = {}
    tasks: list[Task] = []
    faults = RowFaults()
    for row, seed in zip(read.rows, read.seeds, strict=True):
        tools = (row.toolset, bool(row.toolset_outside))
        if tools not in registries:
            registries[tools] = _or_error(load_registry, imports, row.toolset, outside=tools[1])
        registry = registries[tools]
        if isinstance(registry, BundleError):
            faults.add(row, "toolset", str(registry))
            continue
        named = (row.toolset, row.reward)
        if named not in rewards:
            rewards[named] = _or_error(load_reward, imports, *named)
        reward = rewards[named]
        if isinstance(reward, BundleError):
            faults.add(row, "reward", str(reward))
            continue
        if reward.required:
            why = (
                f"and there is no {reward.missing}: no reward is defined"
                if reward.missing
                else "but the reward needs it"
            )
            for name in sorted(reward.required - row.given_fields()):
                faults.add(row, name, f"is missing, {why}")
        tasks.append(Task(row, registry, reward.function, seed, read.folder, read.user_prompts))
    faults.raise_if_any()
    return tasks


def _unknown_gold_tools(tasks: Iterable[Task]) -> list[str]:
    """Gold actions whose tool does not exist; they are skipped, as tau-bench does, and rarely meant so."""
    faults = RowFaults()
    for task in tasks:
        known = task.registry.tools
        for name in dict.fromkeys(action.name for action in task.row.actions or ()):
            if name not in known:
                hint = did_you_mean(name, list(known))
                faults.add(task.row, "actions", f"there is no tool {name!r}{hint}; the call is skipped")
    return faults.lines()
