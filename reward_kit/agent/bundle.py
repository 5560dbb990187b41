"""Task bundles: a dataset with the tools, the reward and the seed that belong to it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from reward_kit.agent.bundles.dataset import FaultyBundleError, also_in_more_rows, read_dataset
from reward_kit.agent.bundles.default_reward import end_goal_reward
from reward_kit.agent.bundles.files import BundleFiles
from reward_kit.agent.bundles.imports import BundleImports
from reward_kit.agent.bundles.row_seed import seed_source
from reward_kit.agent.bundles.seed import Seed, SeedSource
from reward_kit.agent.bundles.source import BundleSource, find_bundle
from reward_kit.agent.bundles.task import Reward, Task
from reward_kit.agent.bundles.task_selection import select_tasks
from reward_kit.agent.bundles.toolset import load_registry, load_reward, required_fields
from reward_kit.agent.bundles.user_prompts import read_user_prompts, template_fault
from reward_kit.agent.tools.arguments import did_you_mean
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path
    from types import TracebackType

    from reward_kit.agent.bundles.task_row import TaskRow
    from reward_kit.agent.tool_registry import ToolRegistry

__all__ = ["Seed", "Task", "TaskBundle"]

_T = TypeVar("_T")


class TaskBundle:
    """An open bundle: its tasks in the order of the dataset, ``warnings`` about what is odd in it.

    While it is open, its modules can be imported; ``close()`` (or leaving a ``with`` block) ends that::

        with TaskBundle.load("my_task/task.jsonl") as bundle:
            for task in bundle.tasks:
                ...
    """

    def __init__(
        self, source: BundleSource, tasks: list[Task], warnings: list[str], imports: BundleImports
    ) -> None:
        self.dataset = source.dataset
        self.folder = source.folder
        self.tasks = tasks
        self.warnings = warnings
        self._source = source
        self._imports = imports

    @classmethod
    def load(cls, source: str | Path | None, *, task_dir: str | Path | None = None) -> TaskBundle:
        """Read, check and import the bundle that ``source`` names.

        ``source`` is a ``.jsonl`` file, a folder with a ``task.jsonl``, a packed bundle (``.zip``,
        ``.tar.gz``) or the import name of an installed bundle; ``task_dir`` the bundle's folder where the
        dataset lies elsewhere. Raises ``BundleError``: all faults of all rows at once, before anything is
        imported; then all faults of what the rows name.
        """
        found = find_bundle(source, task_dir)
        try:
            files = BundleFiles(found.folder)
            dataset = read_dataset(found.dataset, files)
            seeds = _seeds(dataset.rows, files, found.folder)
            user_prompts = read_user_prompts(found.folder)
            imports = BundleImports(found.folder)
            try:
                tasks = _tasks(dataset.rows, seeds, imports, found.folder, user_prompts)
            except BaseException:
                imports.close()
                raise
        except BaseException:
            found.discard()
            raise
        return cls(found, tasks, [*dataset.warnings, *_unknown_gold_tools(tasks)], imports)

    def select(
        self,
        *,
        task_ids: str | Iterable[str | int] | None = None,
        start_index: int | None = None,
        end_index: int | None = None,
        max_tasks: int | None = None,
    ) -> list[Task]:
        """Some of the tasks; see ``task_selection.select_tasks``."""
        return select_tasks(
            self.tasks, task_ids=task_ids, start_index=start_index, end_index=end_index, max_tasks=max_tasks
        )

    def close(self) -> None:
        """End the import path and remove what was unpacked. May be called again."""
        self._imports.close()
        self._source.discard()

    def __enter__(self) -> TaskBundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class _Faults:
    """Faults of what rows share: one line each, with the first row and how many more there are."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[TaskRow]] = {}

    def add(self, row: TaskRow, field: str, fault: str) -> None:
        self._rows.setdefault((field, fault), []).append(row)

    def lines(self) -> list[str]:
        return [
            f"{rows[0].place}: row {rows[0].id!r}, field {field!r}: {fault}{also_in_more_rows(len(rows) - 1)}"
            for (field, fault), rows in self._rows.items()
        ]

    def raise_if_any(self) -> None:
        if self._rows:
            raise FaultyBundleError(self.lines())


def _seeds(rows: list[TaskRow], files: BundleFiles, folder: Path) -> list[Seed]:
    """The seed of each row; rows with the same seed share one object."""
    sources: dict[str | None, SeedSource | BundleError] = {}
    shared: dict[str, Seed] = {}
    seeds: list[Seed] = []
    faults = _Faults()
    for row in rows:
        if row.seed_sql not in sources:
            sources[row.seed_sql] = _or_error(partial(seed_source, row, files, folder))
        source = sources[row.seed_sql]
        if isinstance(source, BundleError):
            faults.add(row, "seed_sql", str(source))
        else:
            seed = source.at(row.now)
            seeds.append(shared.setdefault(seed.key, seed))
    faults.raise_if_any()
    return seeds


def _or_error(make: Callable[[], _T]) -> _T | BundleError:
    """What ``make`` gives, or the fault that it tells, kept for all rows that meet it."""
    try:
        return make()
    except BundleError as error:
        return error


def _tasks(
    rows: list[TaskRow],
    seeds: list[Seed],
    imports: BundleImports,
    folder: Path,
    user_prompts: Mapping[str, str],
) -> list[Task]:
    """The tasks of ``rows``; each toolset and each reward is imported once."""
    registries: dict[str, ToolRegistry | BundleError] = {}
    rewards: dict[tuple[str, str | None], _FoundReward | BundleError] = {}
    tasks: list[Task] = []
    faults = _Faults()
    for row, seed in zip(rows, seeds, strict=True):
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
        unusable = template_fault(row.text("sim_user_template"))
        if unusable:
            faults.add(row, "sim_user_template", unusable)
        tasks.append(Task(row, registry, found.function, seed, folder, user_prompts))
    faults.raise_if_any()
    return tasks


def _unknown_gold_tools(tasks: Iterable[Task]) -> list[str]:
    """Gold actions whose tool there is not; they are passed over, as tau-bench does, and rarely meant so."""
    faults = _Faults()
    for task in tasks:
        known = task.registry.tools
        for name in dict.fromkeys(action.name for action in task.row.actions or ()):
            if name not in known:
                hint = did_you_mean(name, list(known))
                faults.add(task.row, "actions", f"there is no tool {name!r}{hint}; the call is passed over")
    return faults.lines()


@dataclass(frozen=True, slots=True)
class _FoundReward:
    """A reward, the row fields that it needs, and the file that is ``missing`` where it is the default."""

    function: Reward
    required: frozenset[str]
    missing: str | None = None

    @classmethod
    def load(cls, imports: BundleImports, toolset: str, reward: str | None) -> _FoundReward:
        function = load_reward(imports, toolset, reward)
        if function is not None:
            return cls(function, frozenset(required_fields(function)))
        package = toolset.partition(":")[0].rpartition(".")[0] or imports.folder.name
        return cls(end_goal_reward, frozenset({"end_goal_sql"}), f"{package.replace('.', '/')}/reward.py")

    def faults(self, row: TaskRow) -> Iterator[tuple[str, str]]:
        for name in sorted(self.required - row.given_fields()):
            if self.missing is None:
                yield name, "is missing, but the reward needs it"
            else:
                yield name, f"is missing, and there is no {self.missing}: nothing says what success is"
