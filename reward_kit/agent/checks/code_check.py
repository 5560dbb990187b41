"""A bundle's code: tools that never run, or print to standard output, and fields that no reward reads."""

from __future__ import annotations

import ast
import inspect
import sys
from contextlib import contextmanager, redirect_stdout
from functools import lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.types import SIDES, Side
from reward_kit.agent.rows.field_checks import PARTS, is_reference

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from reward_kit.agent.bundles.task import Reward, Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.tools.execution import Tool

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
LONGEST = 200
"""Characters of a printed line that are kept."""
_EXAMPLES: dict[str, Any] = {
    "integer": 1, "number": 1.0, "boolean": True, "array": [], "object": {}, "null": None,
}  # fmt: skip


async def untried_tools(seeded: Sequence[tuple[Task, Database]]) -> AsyncIterator[tuple[str, str]]:
    """Each tool that no gold action calls and that refuses or fails a call with examples: place and fault.

    The arguments are those of gold actions with the same name, else values of a column of this name.
    """
    given: dict[str, Any] = {}
    called: set[tuple[Side, str]] = set()
    for task, _ in seeded:
        for action in task.row.actions or ():
            called.add((action.by, action.name))
            given |= {name: one for name, one in action.arguments.items() if not is_reference(one)}
    tools = {
        (tool.place, tool.name): (tool, by, task, base)
        for task, base in reversed(seeded)
        for by in SIDES
        for tool in task.registry_of(by).tools.values()
    }
    for tool, by, task, base in tools.values():
        if (by, tool.name) not in called and "rollout" not in tool.needed:
            with base.fork(seed=0, now=task.row.clock()) as scratch:
                arguments = _arguments(tool, given, base)
                result = await task.registry_of(by).call(tool.name, arguments, db=scratch)
            if result.status not in ("ok", "invalid_arguments"):
                path, _, line = tool.place.rpartition(":")
                answer = result.raised or result.content
                text = (
                    f"has never run: no gold action calls it, and an example answers {shown_line(answer)!r}"
                )
                yield f"{Path(path).name}:{line} {tool.name}" if path else tool.name, text


def _arguments(tool: Tool, given: dict[str, Any], base: Database) -> dict[str, Any]:
    properties = tool.schema.get("properties", {})
    return {
        name: given[name] if name in given else _example(name, properties.get(name, {}), base)
        for name in tool.schema.get("required", ())
    }


def _example(name: str, schema: dict[str, Any], base: Database) -> Any:
    if schema.get("enum"):
        return schema["enum"][0]
    sql = (
        "SELECT m.name, c.name FROM sqlite_schema m, pragma_table_xinfo(m.name) c "
        "WHERE m.type = 'table' AND c.name = :name COLLATE NOCASE"
    )
    for row in base.read_only().fetch_all(sql, {"name": name}):
        table, column = ('"' + str(one).replace('"', '""') + '"' for one in row)
        value = base.read_only().fetch_val(f"SELECT {column} FROM {table} LIMIT 1")  # noqa: S608
        if value is not None:
            return value
    return _EXAMPLES.get(str(schema.get("type")), "example")


@contextmanager
def noting_prints(folder: Path) -> Iterator[dict[str, str]]:
    """The first line, by place, that code in ``folder`` prints; it does not reach standard output."""
    printed: dict[str, str] = {}
    with redirect_stdout(_Prints(sys.stdout, str(folder), printed)):
        yield printed


class _Prints:
    """Standard output, but for what code of a bundle prints."""

    def __init__(self, stream: IO[str], folder: str, printed: dict[str, str]) -> None:
        self._stream, self._folder, self._printed = stream, folder, printed

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Note the text of a bundle's code at the line that calls ``print``."""
        here = inspect.currentframe()
        frame = here.f_back if here else None
        if frame is None or not frame.f_code.co_filename.startswith(self._folder):
            return self._stream.write(text)
        place = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_name}"
        noted = self._printed.setdefault(place, "")
        if len(noted) < LONGEST and "\n" not in noted:
            self._printed[place] += text
        return len(text)


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
        if name in unread and (getattr(task.row, name, None) or task.row.more.get(name)):
            yield name, why


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
