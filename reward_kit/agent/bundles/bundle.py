"""Task bundles: a dataset with the tools, the reward and the seed that belong to it."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from importlib import import_module
from operator import attrgetter, methodcaller
from typing import TYPE_CHECKING, Any, TypeVar, cast

from reward_kit.agent.base.files import Closing, undone_by
from reward_kit.agent.base.text import did_you_mean, side_hint
from reward_kit.agent.base.types import check_one_of
from reward_kit.agent.bundles.files import BundleFiles, check_template, own_file, read_prompts
from reward_kit.agent.bundles.imports import (
    BundleImports,
    FoundReward,
    allowed_tools,
    load_registry,
    load_reward,
    load_user_registry,
)
from reward_kit.agent.bundles.rules import RULES, read_rules
from reward_kit.agent.bundles.seed import Seed, SetupScript, code_of, seed_source, with_setup
from reward_kit.agent.bundles.source import BundleSource, find_bundle
from reward_kit.agent.bundles.task import (
    SOLO,
    Task,
    is_default,
    no_answer,
    select_tasks,
    solo_row,
    with_joined_tools,
)
from reward_kit.agent.rows.dataset import read_dataset
from reward_kit.agent.rows.field_checks import PARTS, call_name
from reward_kit.agent.rows.task_row import RowFaults, field_name
from reward_kit.agent.tools.values import without_refused_nulls
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Iterator
    from pathlib import Path

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.rollout.episode import Episode
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.tools.registry import FunctionKind, ToolRegistry

__all__ = ["BundleRows", "Seed", "Task", "TaskBundle", "read_bundle"]

_T = TypeVar("_T")
SKIPPED = "the call is skipped"
"""The end of the warning of a gold action whose tool does not exist."""


class BundleRows(Closing):
    """The rows of a bundle, checked, and their seeds; no code of the bundle has run.

    ``rows`` are in the order of the dataset, ``defaults`` what its first line gives to all of them. ``seeds``
    belong to the rows one by one (rows with the same seed share one object). A ``seed.py`` is read and
    fingerprinted here, and runs when a base is written.
    In ``mode`` "solo" the rows are as they are played without a user. ``open()`` imports the tools and
    rewards that the rows name. ``close()`` removes unpacked files.
    """

    def __init__(self, source: BundleSource, mode: str | None = None) -> None:
        files = BundleFiles(source.folder)
        read = read_dataset(source.dataset, files)
        self.dataset = source.dataset
        self.folder = source.folder
        if mode is not None:
            check_one_of("mode", mode, (SOLO,))
        self.mode = mode
        self.rows = list(map(solo_row, read.rows)) if mode == SOLO else read.rows
        self.defaults = read.defaults
        template = methodcaller("text", "sim_user_template")
        _made_for(read.rows, "sim_user_template", template, lambda row: check_template(template(row)))
        self.seeds = _seeds(read.rows, files, source.folder)
        self.warnings = read.warnings
        self.prompts = read_prompts(source.folder)
        rules = own_file(source.folder, RULES)
        self.rules = () if rules is None else read_rules(rules)
        self.is_unpacked = source.temporary is not None
        self._source = source

    def open(self, *, unanswered: bool = False) -> TaskBundle:
        """Import the modules that the rows name; raises ``BundleError`` with all their faults.

        With ``unanswered``, rows may lack what their reward needs; they are then not judged.
        """
        imports = BundleImports(self.folder)
        with undone_by(imports.close):
            tasks = _tasks(self, imports, unanswered=unanswered)
            return TaskBundle(self, _joined(tasks) if self.mode == SOLO else tasks, imports)

    def close(self) -> None:
        """Remove unpacked files. May be called again."""
        self._source.discard()


def read_bundle(
    source: str | Path | None, task_dir: str | Path | None = None, *, mode: str | None = None
) -> BundleRows:
    """Read and check the rows of the bundle that ``source`` names, without importing any of its code.

    ``source`` is a ``.jsonl`` file, a folder with a ``task.jsonl``, a packed bundle (``.zip``, ``.tar.gz``)
    or the import name of an installed bundle; ``task_dir`` is the bundle's folder if the dataset lies
    elsewhere. ``mode`` may be "solo". Raises ``BundleError`` with all faults of all rows.
    """
    found = find_bundle(source, task_dir)
    with undone_by(found.discard):
        return BundleRows(found, mode)


class TaskBundle(Closing):
    """An open bundle: its tasks in the order of the dataset, ``read`` the rows as they were read, and
    ``warnings`` about oddities in it.

    While it is open, its modules can be imported; ``close()`` (or leaving a ``with`` block) ends that::

        with TaskBundle.load("my_task/task.jsonl") as bundle:
            for task in bundle.tasks:
                ...
    """

    def __init__(self, read: BundleRows, tasks: list[Task], imports: BundleImports) -> None:
        self.dataset = read.dataset
        self.folder = read.folder
        self.rules = read.rules
        padded = RowFaults()
        self.tasks = [_without_padding(task, padded) for task in tasks]
        self.warnings = [*read.warnings, *_unknown_gold_tools(tasks), *padded.lines()]
        self.read = read
        self._imports = imports

    @classmethod
    def load(
        cls,
        source: str | Path | None,
        *,
        task_dir: str | Path | None = None,
        unanswered: bool = False,
        mode: str | None = None,
    ) -> TaskBundle:
        """Read, check and import the bundle that ``source`` names; see ``read_bundle``.

        With ``unanswered``, rows may lack what their reward needs; their tools can be called.

        Raises ``BundleError``: all faults of all rows at once, before anything is imported; then all faults
        of the modules that the rows name.
        """
        rows = read_bundle(source, task_dir, mode=mode)
        with undone_by(rows.close):
            return rows.open(unanswered=unanswered)

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

    def episode(self, row: str | int | Task, *, rng_seed: int = 0, **options: Any) -> Episode:
        """As ``Episode.of``, the function of a room above this one."""
        above: Any = import_module("reward_kit.agent.rollout.episode")
        return cast("Episode", above.Episode.of(self, row, rng_seed=rng_seed, **options))

    def close(self) -> None:
        """Forget the imported modules and remove unpacked files. May be called again."""
        self._imports.close()
        self.read.close()


def _made_for(
    rows: list[TaskRow], field: str, key_of: Callable[[TaskRow], Hashable], make: Callable[[TaskRow], _T]
) -> list[_T]:
    """The value of ``make`` for each row, shared by rows with the same key.

    Raises ``BundleError``: a value that cannot be made is a fault of the ``field`` in all its rows.
    """
    made: dict[Hashable, _T | BundleError] = {}
    faults = RowFaults()
    for row in rows:
        key = key_of(row)
        if key not in made:
            try:
                made[key] = make(row)
            except BundleError as error:
                made[key] = error
        if isinstance(fault := made[key], BundleError):
            faults.add(row, field, str(fault))
    faults.raise_if_any()
    return [cast("_T", made[key_of(row)]) for row in rows]


def _seeds(rows: list[TaskRow], files: BundleFiles, folder: Path) -> list[Seed]:
    """The seed of each row; rows with the same seed share one object."""
    texts = attrgetter("seed_sql")
    sources = _made_for(rows, "seed_sql", texts, lambda row: seed_source(row, files, folder))
    code = cache(partial(code_of, folder))
    pairs = zip(rows, sources, strict=True)
    seeds = [with_setup(source.at(row.now), row, folder, code) for row, source in pairs]
    shared = {seed.key: seed for seed in reversed(seeds)}
    return [shared[seed.key] for seed in seeds]


def _tasks(read: BundleRows, imports: BundleImports, *, unanswered: bool) -> list[Task]:
    """The tasks of the rows; each toolset and each reward is imported once."""
    rows = read.rows

    def registries(field: str, load: Callable[..., ToolRegistry]) -> list[ToolRegistry]:
        named = attrgetter(field, "toolset_outside")
        return _made_for(rows, field, named, lambda row: load(imports, *named(row)))

    agents, whole = registries("toolset", load_registry), registries("user_toolset", load_user_registry)
    of_row = {row.id: registry for row, registry in zip(rows, whole, strict=True)}
    users = _made_for(
        rows,
        "user_tools",
        lambda row: (id(of_row[row.id]), str(row.user_tools)),
        lambda row: allowed_tools(of_row[row.id], row.user_tools),
    )
    named = attrgetter("toolset", "reward")
    rewards = _made_for(rows, "reward", named, lambda row: load_reward(imports, *named(row)))
    faults, tasks = RowFaults(), []
    for row, registry, user, reward, seed in zip(rows, agents, users, rewards, read.seeds, strict=True):
        missing = list(_missing_fields(row, reward))
        judge = no_answer if missing and unanswered else reward.function
        bundled = read.folder, read.prompts, read.rules
        tasks.append(Task(row, registry, judge, _bound(seed, registry, user), *bundled, user))
        if user.database == "file" != registry.database:
            faults.add(row, "user_toolset", f"needs database='file', which {registry.name!r} does not have")
        for name, fault in (*_function_faults(tasks[-1]), *(() if unanswered else missing)):
            faults.add(row, name, fault)
    faults.raise_if_any()
    return tasks


def _joined(tasks: list[Task]) -> list[Task]:
    """The tasks with the tools of both sides; tasks with the same registries share the joined one."""
    sides = {task.row.id: (id(task.registry), id(task.user_registry)) for task in tasks}
    by_row = {task.row.id: task for task in tasks}
    key, made = (lambda row: sides[row.id]), (lambda row: with_joined_tools(by_row[row.id]))
    pairs = zip(_made_for([task.row for task in tasks], "user_toolset", key, made), tasks, strict=True)
    return [replace(one, row=task.row, reward=task.reward, seed=task.seed) for one, task in pairs]


def _missing_fields(row: TaskRow, reward: FoundReward) -> Iterator[tuple[str, str]]:
    """The fields that the reward needs and the row lacks; of ``score_by``, the parts without their fields."""
    given = row.given_fields() if reward.required else set()
    if not (row.score_by and is_default(reward.function)):
        missing = () if reward.instead & given else sorted(reward.required - given)
        yield from ((name, f"is missing, {reward.why}") for name in missing)
        return
    for part in row.score_by:
        fields = PARTS[part]
        if not any(getattr(row, name) or (name == "actions" and row.actions == []) for name in fields):
            yield "score_by", f"names {part!r}, but the row has no {' or '.join(fields)}"


def _function_faults(task: Task) -> Iterator[tuple[str, str]]:
    """The faults of a row's calls of functions that are registered for ``setup`` and ``checks``."""
    row = task.row
    setup = enumerate(row.setup or ())
    calls: list[tuple[str, FunctionKind, str, Any, Side]]
    calls = [(f"setup[{at}]", "setup", one.name, one.arguments, one.by) for at, one in setup]
    for at, one in enumerate(row.checks or ()):
        if isinstance(one, dict):
            of = one.get("arguments", {}), one.get("by", "agent")
            calls.append((f"checks[{at}]", "check", one["name"], *of))
    for field, kind, name, arguments, by in calls:
        own, other = _sides(task, by)
        try:
            own.check_arguments(kind, name, arguments)
        except BundleError as error:
            hint = "" if name in own.functions[kind] else side_hint(name, by, other.functions[kind])
            yield field, f"there is no {kind} {name!r}{hint}" if hint else str(error)


def _sides(task: Task, by: Side) -> tuple[ToolRegistry, ToolRegistry]:
    """The registry of a side, and that of the other."""
    sides = task.registry, task.user_registry
    return sides if by == "agent" else sides[::-1]


def _bound(seed: Seed, registry: ToolRegistry, user_registry: ToolRegistry) -> Seed:
    """The seed, whose setup is found in these registries."""
    if not isinstance(seed.script, SetupScript):
        return seed
    script = replace(seed.script, registries={"agent": registry, "user": user_registry})
    return replace(seed, script=script, opening=seed.opening and script.replay)


def _without_padding(task: Task, padded: RowFaults) -> Task:
    """The task without null gold arguments that its tools refuse: tables fill up all calls alike."""
    actions = list(task.row.actions or ())
    changed = False
    for place, action in enumerate(actions):
        if (tool := task.registry_of(action.by).tools.get(action.name)) is None:
            continue
        arguments, dropped = without_refused_nulls(action.arguments, tool.check)
        if dropped:
            actions[place], changed = replace(action, arguments=arguments), True
        for way in dropped:
            fault = f"is null, which tool {action.name!r} does not take: it is left out"
            padded.add(task.row, field_name(("actions", place, "arguments", *way)), fault)
    return replace(task, row=replace(task.row, actions=actions)) if changed else task


def _unknown_gold_tools(tasks: Iterable[Task]) -> list[str]:
    """Calls in rows whose tool does not exist; gold actions are then skipped, as tau-bench does."""
    faults = RowFaults()
    for task in tasks:
        actions = task.row.actions or ()
        calls: list[tuple[str, Any, Side]] = [("actions", one.name, one.by) for one in actions]
        for field in ("required_calls", "forbidden_calls"):
            for call in getattr(task.row, field) or ():
                by = call.get("by") if isinstance(call, dict) else None
                calls += [(field, call_name(call), by or "agent")]
        for field, name, by in dict.fromkeys(calls):
            own, other = _sides(task, by)
            if name not in own.tools:
                effect = SKIPPED if field == "actions" else "nothing can call it"
                hint = side_hint(name, by, other.tools) or did_you_mean(name, own.tools)
                kind = "tool" if by == "agent" else "tool of the user"
                faults.add(task.row, field, f"there is no {kind} {name!r}{hint}; {effect}")
    return faults.lines()
