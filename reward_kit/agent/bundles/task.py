"""Tasks: rows with their tools, reward and seed; the choice of some of them, and solo mode."""

from __future__ import annotations

import hashlib
import inspect
import re
import tempfile
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from weakref import WeakKeyDictionary, finalize

from reward_kit.agent.base.text import did_you_mean
from reward_kit.agent.base.types import SIDES, STOP_TOKEN, check_one_of
from reward_kit.agent.rows.task_row import TaskRow
from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import BundleError, RewardError, UsageError

if TYPE_CHECKING:
    from collections.abc import Coroutine, Iterable, Sequence

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.bundles.bundle import TaskBundle
    from reward_kit.agent.bundles.rules import Rule
    from reward_kit.agent.bundles.seed import Seed
    from reward_kit.agent.database import Database
    from reward_kit.agent.database.database import Mode
    from reward_kit.agent.tools.execution import Tool, ToolResult

Reward = Callable[..., Any]

DEFAULT_REWARD = "reward_kit.agent.rewards.default:evaluate"
"""The reward of rows that have none."""


def is_default(reward: Reward) -> bool:
    """True for the reward that judges by the fields of the row."""
    return f"{getattr(reward, '__module__', '')}:{getattr(reward, '__name__', '')}" == DEFAULT_REWARD


def no_answer(**_: Any) -> NoReturn:
    """The reward of a row without the fields that its reward needs: it raises ``RewardError``."""
    raise RewardError("the row has no answer yet, so there is no reward")


@cache
def no_tools() -> ToolRegistry:
    """The registry of a user without tools."""
    return ToolRegistry("user")


@dataclass(frozen=True, slots=True)
class Task:
    """A row with everything that it names, ready to run. ``folder`` is the bundle's.

    ``prompts`` are the bundle's own prompts, by name (``prompts/*.txt``), ``rules`` those of ``rules.sql``.
    ``user_registry`` has the tools that the simulated user may call, ``registry`` those of the agent.
    """

    row: TaskRow
    registry: ToolRegistry
    reward: Reward
    seed: Seed
    folder: Path
    prompts: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    user_registry: ToolRegistry = field(default_factory=no_tools)

    def registry_of(self, by: Side) -> ToolRegistry:
        """The tools of one side; raises ``ValueError`` for another word."""
        if by == "agent":
            return self.registry
        check_one_of("by", by, SIDES)
        return self.user_registry

    @property
    def hidden(self) -> tuple[str, ...]:
        """Tables that are neither compared nor shown."""
        return (*self.registry.hidden, *self.user_registry.hidden)

    @property
    def after_call(self) -> tuple[Tool, ...]:
        """The functions that run after each call of either side."""
        sides = (self.registry, self.user_registry)
        return tuple(one for side in sides for one in side.functions["after_call"].values())

    @property
    def stop_tokens(self) -> list[str]:
        """Texts by which the user ends a rollout: ``###STOP###``, and the lines of ``prompts/stop.txt``."""
        return [STOP_TOKEN, *filter(None, map(str.strip, self.prompts.get("stop", "").splitlines()))]

    @property
    def has_default_reward(self) -> bool:
        """True if the fields of the row decide."""
        return is_default(self.reward)

    @property
    def judge(self) -> str | None:
        """The model that judges ``criteria`` unless another is named: ``JUDGE`` of the reward's module."""
        model: str | None = getattr(inspect.unwrap(self.reward), "__globals__", {}).get("JUDGE")
        return model

    @property
    def asks_judge(self) -> bool:
        """True if the reward, the default one or one with a ``JUDGE``, asks a model about ``criteria``."""
        scored = self.row.score_by
        asks = self.row.criteria and (not scored or "criteria" in scored)
        return bool(asks and (self.has_default_reward or self.judge))

    @property
    def system_prompt(self) -> str | None:
        return self.row.text("system_prompt")

    @property
    def sim_user_prompt(self) -> str | None:
        """The instruction of the simulated user."""
        return self.row.text("sim_user_prompt")


_T = TypeVar("_T", Task, TaskRow)
GLOB = re.compile(r"[*?\[]")
"""Signs of a pattern of row ids, none of which an id can have."""


def select_tasks(
    tasks: Sequence[_T],
    *,
    task_ids: str | Iterable[str | int] | None = None,
    start_index: int | None = None,
    end_index: int | None = None,
    max_tasks: int | None = None,
    called: Callable[[str], str] = str,
) -> list[_T]:
    """The tasks (or rows) named by ``task_ids``, or those of a range of positions; at most ``max_tasks``.

    ``task_ids`` are row ids, patterns of these (``book.*``) or positions from 0 (also as text, separated by
    commas); an id wins over a position that looks the same. They come in the order given, each once. A range
    excludes ``end_index``; None or -1 there means the end. ``called`` gives the name of a parameter in
    messages. Raises ``BundleError`` for a task that does not exist, and if none is left.
    """
    if max_tasks is not None and max_tasks < 1:
        raise BundleError(f"got {max_tasks}, expected a whole number >= 1", place=called("max_tasks"))
    if task_ids is None:
        first = start_index or 0
        last = len(tasks) if end_index in (None, -1) else end_index
        if not 0 <= first < len(tasks):
            raise BundleError(f"got {first}, expected 0 to {len(tasks) - 1}", place=called("start_index"))
        if last <= first:
            fault = f"got {last}, expected more than {called('start_index')} ({first})"
            raise BundleError(fault, place=called("end_index"))
        return list(tasks[first:last])[:max_tasks]
    if start_index is not None or end_index is not None:
        ids, start, end = map(called, ("task_ids", "start_index", "end_index"))
        raise BundleError(f"{ids} cannot be given together with {start} or {end}")
    names = task_ids.split(",") if isinstance(task_ids, str) else task_ids
    row_ids = [task.id if isinstance(task, TaskRow) else task.row.id for task in tasks]
    return [tasks[position] for position in positions_of(row_ids, names, called("task_ids"))[:max_tasks]]


def positions_of(row_ids: Sequence[str], names: Iterable[str | int], called: str) -> list[int]:
    """The positions of the rows that ``names`` mean, as in ``select_tasks``, which calls them ``called``."""
    positions = {row_id: position for position, row_id in enumerate(row_ids)}
    chosen: dict[int, None] = {}
    unknown: list[str] = []
    for item in names:
        name = str(item).strip()
        if isinstance(item, str) and name in positions:
            found = [positions[name]]
        elif isinstance(item, str) and GLOB.search(name):
            found = [position for row_id, position in positions.items() if fnmatchcase(row_id, name)]
        else:
            is_position = name.isascii() and name.isdigit() and int(name) < len(positions)
            found = [int(name)] if is_position else []
        chosen |= dict.fromkeys(found)
        if name and not found:
            unknown.append(f"{name!r}{did_you_mean(name, positions)}")
    if unknown:
        rows = "1 row" if len(positions) == 1 else f"{len(positions)} rows"
        remedy = f"The dataset has {rows}; give ids or positions from 0 to {len(positions) - 1}."
        raise BundleError(f"there is no row {', '.join(unknown)}", place=called, remedy=remedy)
    if not chosen:
        raise BundleError("names no row", place=called)
    return list(chosen)


# -- the tasks of a bundle for episodes: seeds, and bases, which are seeded once per bundle


def base_of(bundle: TaskBundle, task: Task) -> Database:
    """The base of a task, seeded once per bundle and closed with it; ``BundleError`` for a faulty seed."""
    if bundle not in _bases:
        _bases[bundle] = bases = Bases()
        finalize(bundle, bases.close)
    return _bases[bundle].of(task.seed, task.registry.database)


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
        raise UsageError(f"there is no row {row!r}{did_you_mean(str(row), known)}", place=str(bundle.dataset))
    return known[row]


def rollout_seed(seed: int, row_id: str, index: int, attempt: int = 0) -> int:
    """The seed of one rollout, from 0 to 2^31 - 1.

    It depends on nothing but these, so that a selection, another order or a resumption changes no rollout; a
    repeated attempt gets another, since the same might fail the same way.
    """
    parts = (seed, row_id, index) if attempt == 0 else (seed, row_id, index, attempt)
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4], "big") >> 1


IS_BASE = re.compile(r"(base|[0-9a-f]{64})\.")
"""The beginning of the names of bases, which no other database has: a seed may give other data each time."""


class Bases(ExitStack):
    """Bases in a temporary folder, by the key of their seed; ``close()`` removes them."""

    def __init__(self) -> None:
        super().__init__()
        self._folder = Path(self.enter_context(tempfile.TemporaryDirectory(prefix="reward-kit-")))
        self._open: dict[tuple[str, str], Database] = {}
        self._lock = threading.Lock()

    def of(self, seed: Seed, mode: Mode) -> Database:
        """The base of a seed; raises ``BundleError`` for a faulty one."""
        with self._lock:  # episodes are opened in several threads
            if (seed.key, mode) not in self._open:
                path = self._folder / f"{seed.key}.{mode}.db"
                self._open[seed.key, mode] = self.enter_context(seed.base(path, mode))
            return self._open[seed.key, mode]


_bases: WeakKeyDictionary[TaskBundle, Bases] = WeakKeyDictionary()


SOLO = "solo"
"""The value of ``mode``."""
DONE = "done"
PLACE = "{ticket}"
NO_TICKET = "is missing, but in solo mode the agent gets its task from it"


def solo_row(row: TaskRow) -> TaskRow:
    """The row as it is played in solo mode; one without a ticket as it is."""
    ticket = row.text("ticket")
    if ticket is None:
        return row
    prompt = row.text("system_prompt") or ""
    if PLACE in prompt:
        prompt = prompt.replace(PLACE, ticket)
    else:
        prompt = f"{prompt.rstrip()}\n\n<ticket>\n{ticket.strip()}\n</ticket>".lstrip()

    def by_agent(calls: list[Any] | None) -> list[Any] | None:
        return calls and [{**call, "by": "agent"} if isinstance(call, dict) else call for call in calls]

    return replace(
        row,
        initial_messages=[
            {**one, "role": "assistant"} if one.get("tool_calls") else one
            for one in row.initial_messages
            if one.get("tool_calls") or one["role"] in ("system", "tool")
        ],
        system_prompt=prompt,
        sim_user_prompt=None,
        sim_user_template=None,
        actions=row.actions and [replace(action, by="agent") for action in row.actions],
        texts={name: text for name, text in row.texts.items() if name == "seed_sql"},
        required_calls=by_agent(row.required_calls),
        forbidden_calls=by_agent(row.forbidden_calls),
        ticket=ticket,
    )


def with_joined_tools(task: Task) -> Task:
    """The task with the user's tools among the agent's; raises ``BundleError`` for a name that both have."""
    user = task.user_registry
    return replace(task, registry=_JoinedTools(task.registry, user), user_registry=user.only(()))


def solo_task(task: Task) -> Task:
    """The task as it is played in solo mode; raises ``BundleError`` without a ticket."""
    if task.row.ticket is None:
        raise BundleError(f"field 'ticket' {NO_TICKET}", place=f"{task.row.place} {task.row.id}")
    if isinstance(task.registry, _JoinedTools):
        return task
    return with_joined_tools(replace(task, row=solo_row(task.row)))


class _JoinedTools(ToolRegistry):
    """The tools of several registries, each of which runs its own; the first decides everything else."""

    def __init__(self, agent: ToolRegistry, user: ToolRegistry) -> None:
        vars(self).update(vars(agent.only(())))
        self._both = agent, user
        self._owners: dict[str, ToolRegistry] = {}
        for registry in (agent, user):
            for name, tool in registry.tools.items():
                if name in self.tools:
                    places = f"{self.tools[name].place} and {tool.place}"
                    fault = f"in solo mode the agent has the tools of both sides, and both have {name!r}"
                    raise BundleError(f"{fault} ({places})", remedy="Give one of them name=...")
                self._owners[name], self.tools[name] = registry, tool
        own = self.tools.get(DONE)
        if own is None:
            self._owners[DONE], self.tools[DONE] = _ending(), _ending().tools[DONE]
        elif not own.terminal:
            fault = f"in solo mode the tool {DONE!r} ends a rollout, and that of {own.place} does not"
            raise BundleError(fault, remedy="Give it terminal=True, or name=...")
        self.tools[DONE] = self.tools.pop(DONE)  # the last one

    def unknown(self, name: str, *more: Any) -> Coroutine[Any, Any, ToolResult]:
        return self._both[0].unknown(name, *more)

    def call(
        self, name: str, arguments: dict[str, Any] | str | bytes | None, **options: Any
    ) -> Coroutine[Any, Any, ToolResult]:
        owner = self._owners.get(name) or next((one for one in self._both if name in one.unlisted), None)
        if owner is None:
            return super().call(name, arguments, **options)
        return owner.call(name, arguments, **options)


@cache
def _ending() -> ToolRegistry:
    registry = ToolRegistry(SOLO)

    @registry.tool(terminal=True, name=DONE)
    def done() -> str:
        """End the task, when everything is done that can be done."""
        return "done"

    return registry
