"""The fields of a row that its reward does not read, found in the source of the reward."""

from __future__ import annotations

import ast
import inspect
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.rows.expected import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.bundles.task import Reward, Task

READ_BY_REWARDS = (
    "end_goal_sql",
    "checks",
    "required_calls",
    "forbidden_calls",
    "criteria",
    "not_compared",
    "score_by",
)
"""Fields that do nothing unless the reward reads them."""


def idle_fields(task: Task) -> Iterator[tuple[str, str]]:
    """The fields of the row that have a value and no effect, each with the reason."""
    scored = task.row.score_by
    if not task.has_default_reward:
        unread, why = _unread(task.reward), f"{_file_of(task.reward)} does not take it"
    elif scored is None:
        return
    else:
        read = {field for word in scored for field in PARTS[word]} | {"score_by"}
        read |= {"not_compared"} if "data" in scored else set()
        unread = frozenset({*READ_BY_REWARDS, "outputs"} - read)
        why = f'"score_by" is {", ".join(scored)}'
    for name in (*READ_BY_REWARDS, "outputs"):
        if name in unread and _value(task, name):
            yield name, why


def _value(task: Task, name: str) -> object:
    return getattr(task.row, name, None) or task.row.more.get(name)


@lru_cache(maxsize=256)
def _file_of(reward: Reward) -> str:
    """``my_task/reward.py``."""
    path = Path(inspect.getsourcefile(inspect.unwrap(reward)) or "the reward")
    return f"{path.parent.name}/{path.name}"


@lru_cache(maxsize=256)
def _unread(reward: Reward) -> frozenset[str]:
    """The fields that are no parameter of ``reward`` and are named nowhere in its module.

    None if its source is not there, or if it passes ``**kwargs`` on as a whole.
    """
    inner = inspect.unwrap(reward)
    try:
        tree = ast.parse(Path(inspect.getsourcefile(inner) or "").read_text(encoding="utf-8"))
        line = inner.__code__.co_firstlineno
    except (OSError, TypeError, SyntaxError, AttributeError):
        return frozenset()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            if first == line and not _passes_on(node):
                return frozenset(READ_BY_REWARDS) - _names(tree)
    return frozenset()


def _names(tree: ast.Module) -> set[str]:
    """All parameters, keyword arguments, attributes and texts that are one word."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.keyword):
            names.add(node.arg or "")
        elif isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            names.add(node.value)
    return names


def _passes_on(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """True if ``**kwargs`` is used otherwise than by ``kwargs["name"]`` or ``kwargs.get("name")``."""
    if function.args.kwarg is None:
        return False
    name, plain = function.args.kwarg.arg, set[int]()
    for node in ast.walk(function):
        key: ast.expr | None = None
        if isinstance(node, ast.Subscript):
            used, key = node.value, node.slice
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            used, key = node.func.value, node.args[0]
        elif isinstance(node, ast.Compare) and len(node.comparators) == 1:
            used, key = node.comparators[0], node.left
        if isinstance(key, ast.Constant):
            plain.add(id(used))
    return any(
        isinstance(node, ast.Name) and node.id == name and id(node) not in plain
        for node in ast.walk(function)
    )
