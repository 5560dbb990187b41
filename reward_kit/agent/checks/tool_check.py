"""Tools that no gold action calls, and tools that print to standard output."""

from __future__ import annotations

import inspect
import sys
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from reward_kit.agent.base.places import shown_line
from reward_kit.agent.base.types import SIDES, Side

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Sequence

    from reward_kit.agent.bundles.bundle import Task
    from reward_kit.agent.database import Database
    from reward_kit.agent.tools.execution import Tool

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
            given |= action.arguments
    tools = {
        tool.place: (tool, by, task, base)
        for task, base in reversed(seeded)
        for by in SIDES
        for tool in task.registry_of(by).tools.values()
    }
    for tool, by, task, base in tools.values():
        if (by, tool.name) not in called and "rollout" not in tool.needed:
            with base.fork(seed=0, now=task.row.clock()) as scratch:
                arguments = _arguments(tool, given, base)
                result = await task.registry_of(by).call(tool.name, arguments, db=scratch)
            if result.status != "ok":
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
