"""A domain of the benchmark: its toolkits, and the registries of both sides with their tools and schemas."""

from __future__ import annotations

import inspect
import json
import re
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import BaseModel, Field, create_model

from reward_kit.agent.base.text import foreign_name
from reward_kit.agent.tau.tau2.environment import UPDATE_DATA, checking_environment, environment_on
from reward_kit.agent.tau.tau2.models import fields_of, is_model, models_in
from reward_kit.agent.tau.tau2.state import STATE
from reward_kit.agent.tau.tau2.toolkit import DISCOVERABLE_ATTR, ToolKitBase
from reward_kit.agent.tools.execution import Tool, ToolResult
from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.tau.tau2.knowledge import Documents

STOP = "###STOP###"
NO_ARGUMENTS: dict[str, Any] = {"properties": {}, "title": "parameters", "type": "object"}
_ANY: dict[str, Any] = {"type": "object", "properties": {}}
_SECTIONS = (
    "Arguments|Args|Parameters|Params|Raises|Exceptions|Except|Attributes|Example|Examples|Returns|Yields"
)
_SECTION = re.compile(rf"^({_SECTIONS}):[ \t\r\f\v]*$", re.MULTILINE)
_ARGUMENTS = ("Arguments", "Args", "Parameters", "Params")
_TYPED = re.compile(r"(\w+)\s*\((\S.*?)\)")


class Domain:
    """A domain: the toolkit of the agent, that of the user, and ``sync``, called after each call of a tool.

    ``sync`` takes an ``Environment``, which has the toolkits as ``tools`` and ``user_tools``. ``search`` are
    the retrievers that the agent's toolkit gets beside the database.
    """

    def __init__(
        self,
        name: str,
        tools: type[ToolKitBase],
        user_tools: type[ToolKitBase] | None = None,
        sync: Callable[[Any], None] | None = None,
        search: Sequence[Documents] = (),
    ) -> None:
        self.name = name
        self.search = search
        self.toolkits: dict[Side, type[ToolKitBase]] = {"agent": tools}
        self.toolkits |= {"user": user_tools} if user_tools is not None else {}
        self.sync = sync
        self.databases: dict[Side, type[BaseModel]] = {
            side: get_type_hints(kit)["db"] for side, kit in self.toolkits.items()
        }
        self.classes = {kind.__name__: kind for kind in self._classes()}
        """The models and enumerations of the benchmark's code, by name."""
        self.held: dict[Side, list[tuple[str, BaseModel]]] = {
            side: [
                (name, value.model_copy(deep=True))
                for base in kit.__mro__
                for name, value in vars(base).items()
                if isinstance(value, BaseModel)
            ]
            for side, kit in self.toolkits.items()
        }
        """Models that the classes of the toolkits hold, where they would outlive a rollout."""
        self.one_database = self.databases.get("user") is self.databases["agent"]
        self.fields = {
            side: fields_of(database, self.prefix(side)) for side, database in self.databases.items()
        }

    def prefix(self, side: Side) -> str:
        """The beginning of the kinds of a side's objects."""
        return "user." if side == "user" and not self.one_database else ""

    @property
    def folder(self) -> Path:
        return Path(inspect.getfile(self.toolkits["agent"])).parent.parent

    def text(self, name: str) -> str:
        """A text of the benchmark's, without the line break at the end of the file."""
        return (self.folder / "theirs" / name).read_text(encoding="utf-8").removesuffix("\n")

    def _classes(self) -> Iterator[type]:
        for function in (one for kit in self.toolkits.values() for one in kit.tool_functions().values()):
            yield from (value for value in function.__globals__.values() if is_model(value))
        for database in self.databases.values():
            yield from models_in(database)

    def registry(self, side: Side, *, done: str | None = None) -> Tau2Registry:
        """The registry of a side; with ``done``, also the tool of that description, which ends a rollout."""
        registry = Tau2Registry(self, side)
        if done is not None:
            registry.tools["done"] = Tool(
                "done", done, NO_ARGUMENTS, lambda: STOP, False, frozenset(), frozenset(), json.loads, True
            )
        return registry


def _call(domain: Domain, side: Side, name: str, mutates: bool, arguments: dict[str, Any], db: Any) -> str:
    """A tool call, as the benchmark's environment answers it."""
    with environment_on(domain, db, writes=mutates) as environment:
        answer, failed = environment.respond(name, side, arguments)
    if failed:
        raise ToolError(answer)
    return answer


def _set_up(domain: Domain, side: Side, name: str, arguments: dict[str, Any], db: Any) -> None:
    """A function for ``setup`` of a row."""
    with environment_on(domain, db, writes=True) as environment:
        environment.set_up(name, side, arguments)


def _check(domain: Domain, side: Side, name: str, arguments: dict[str, Any], db: Any) -> Any:
    """A function for ``checks`` of a row, on data that are only read."""
    return checking_environment(domain, db).run(name, side, arguments)


def _arguments(text: str) -> dict[str, Any]:
    return {"arguments": json.loads(text)}


class Tau2Registry(ToolRegistry):
    """The tools of a side, with the benchmark's own schemas, answers and errors.

    Arguments are not checked: what is wrong with them the tool says itself. Tools that are not offered can
    be called all the same.
    """

    def __init__(self, domain: Domain, side: Side) -> None:
        super().__init__(f"{domain.name} ({side})", hidden=[STATE], rollback=False)
        self.folder = domain.folder
        self.domain = domain
        kit = self._kit = domain.toolkits.get(side)
        if kit is None:
            return
        for name, function in kit.tool_functions().items():
            first = next(one for one in domain.toolkits.values() if one.has_tool(name))
            mutates = domain.sync is not None or first.tool_mutates_state(name)
            tool = _tool(name, partial(_call, domain, side, name, mutates), function)
            self.unlisted[name] = tool
            if not hasattr(function, DISCOVERABLE_ATTR):
                self.tools[name] = tool
        for name in dir(kit):
            if not name.startswith("_") and name not in vars(ToolKitBase) and callable(getattr(kit, name)):
                self.functions["setup"][name] = _tool(name, partial(_set_up, domain, side, name))
                self.functions["check"][name] = _tool(name, partial(_check, domain, side, name))
        self.functions["setup"][UPDATE_DATA] = _tool(UPDATE_DATA, partial(_set_up, domain, side, UPDATE_DATA))

    async def unknown(self, name: str, *_: Any) -> ToolResult:
        """The benchmark's answer to a call of a tool that there is not."""
        fault = "User tools not available" if self._kit is None else f"Tool '{foreign_name(name)}' not found."
        return ToolResult(f"Error: {fault}", "unknown_tool")


def _tool(name: str, function: Callable[..., Any], described: Callable[..., Any] | None = None) -> Tool:
    """A tool whose arguments are not checked."""
    description, schema = _described(name, described) if described is not None else (name, _ANY)
    return Tool(
        name=name,
        description=description,
        schema=schema,
        function=function,
        is_async=False,
        injected=frozenset({"db"}),
        needed=frozenset({"db"}),
        check=_arguments,
    )


# --- description and schema of a tool, as the benchmark makes them of a function


def _described(name: str, function: Callable[..., Any]) -> tuple[str, dict[str, Any]]:
    """The description of a method, and the JSON schema of its arguments."""
    lead, documented = _read(function.__doc__ or "")
    first, _, rest = lead.partition("\n")
    rest = rest.strip()
    description = (f"{first}\n\n{rest}" if rest else first) or name
    _, *parameters = inspect.signature(function, eval_str=True).parameters.values()  # without self
    fields: dict[str, Any] = {}
    for one in parameters:
        default = ... if one.default is one.empty else one.default
        if one.name in documented:
            default = Field(default, description=documented[one.name])
        fields[one.name] = (Any if one.annotation is one.empty else one.annotation, default)
    model: type[BaseModel] = create_model("parameters", **fields)
    return description, model.model_json_schema()


def _read(docstring: str) -> tuple[str, dict[str, str]]:
    """The text before the first section, and the descriptions of the parameters."""
    text = inspect.cleandoc(docstring)
    marks = list(_SECTION.finditer(text))
    found: dict[str, str] = {}
    for place, mark in enumerate(marks, 1):
        if mark[1] in _ARGUMENTS:
            end = marks[place].start() if place < len(marks) else len(text)
            found |= _parameters(text[mark.end() : end].strip("\n"))
    return (text[: marks[0].start()] if marks else text).strip(), found


def _parameters(section: str) -> dict[str, str]:
    """The parameters of a section; deeper lines continue a text and lose their indentation."""
    lines = section.splitlines()
    indent = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    found: dict[str, list[str]] = {}
    last: list[str] = []
    for line in lines:
        if line[:indent].strip() == "" and line[indent : indent + 1].strip() and ":" in line:
            before, _, after = line.strip().partition(":")
            typed = _TYPED.match(before)
            last = found[typed[1] if typed else before.strip()] = [after.strip()]
        else:
            last.append(line)
    return {
        name: "\n".join([first, *inspect.cleandoc("\n".join(more)).splitlines()]).strip()
        for name, (first, *more) in found.items()
    }
