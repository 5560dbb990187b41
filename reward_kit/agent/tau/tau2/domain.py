"""A domain of the benchmark: its toolkits on the rows of a bundle, and the registries of both sides.

A call makes the toolkits anew on the state of the database, as the benchmark's environment has them in
memory: the tool runs, then the synchronisation of both sides, and what has changed is written.
"""

from __future__ import annotations

import inspect
import json
from collections import OrderedDict
from contextlib import contextmanager
from dataclasses import replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

from pydantic import BaseModel

from reward_kit.agent.base.text import foreign_name
from reward_kit.agent.tau.tau2.exact import exact_text, exact_value, restore
from reward_kit.agent.tau.tau2.knowledge import Documents
from reward_kit.agent.tau.tau2.models import merged
from reward_kit.agent.tau.tau2.schema import describe
from reward_kit.agent.tau.tau2.shape import fields_of, is_model, models_in
from reward_kit.agent.tau.tau2.state import SHARED, STATE, State, name_of
from reward_kit.agent.tau.tau2.toolkit import DATABASE, DISCOVERABLE_ATTR, ToolKitBase
from reward_kit.agent.tau.tau2.view import View
from reward_kit.agent.tools.execution import Tool, ToolResult
from reward_kit.agent.tools.registry import ToolRegistry
from reward_kit.errors import ToolError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from reward_kit.agent.base.types import Side

STOP = "###STOP###"
NO_ARGUMENTS: dict[str, Any] = {"properties": {}, "title": "parameters", "type": "object"}
_ANY: dict[str, Any] = {"type": "object", "properties": {}}


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
        self.toolkits: dict[Side, type[ToolKitBase] | None] = {"agent": tools, "user": user_tools}
        self.sync = sync
        self.databases: dict[Side, type[BaseModel]] = {
            side: get_type_hints(kit)["db"] for side, kit in self.toolkits.items() if kit is not None
        }
        self.classes = {kind.__name__: kind for kind in self._classes()}
        """The models and enumerations of the benchmark's code, by name."""
        self.held: dict[Side, list[tuple[str, BaseModel]]] = {
            side: [
                (name, value.model_copy(deep=True))
                for base in getattr(kit, "__mro__", ())
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
        """The folder of the bundle."""
        kit = self.toolkits["agent"]
        assert kit is not None
        return Path(inspect.getfile(kit)).parent.parent

    def text(self, name: str) -> str:
        """A text of the benchmark's, without the line break at the end of the file."""
        return (self.folder / "theirs" / name).read_text(encoding="utf-8").removesuffix("\n")

    def _classes(self) -> Iterator[type]:
        kits = [kit for kit in self.toolkits.values() if kit is not None]
        for function in (one for kit in kits for one in kit.tool_functions().values()):
            yield from (value for value in function.__globals__.values() if is_model(value))
        for database in self.databases.values():
            yield from models_in(database)

    def mutates(self, name: str) -> bool:
        """True if a call of this name can change the state; of a name that both have, as the agent's."""
        kits = [kit for kit in self.toolkits.values() if kit is not None and kit.has_tool(name)]
        return kits[0].tool_mutates_state(name) if kits else False

    def registry(self, side: Side, *, done: str | None = None) -> Tau2Registry:
        """The registry of a side; with ``done``, also the tool of that description, which ends a rollout."""
        registry = Tau2Registry(self, side)
        if done is not None:
            ending = Tool(
                "done", done, NO_ARGUMENTS, lambda: STOP, False, frozenset(), frozenset(), json.loads
            )
            registry.tools["done"] = replace(ending, terminal=True)
        return registry


class Environment:
    """The toolkits of a domain on a database, as the benchmark's tools and its ``sync_tools`` know them."""

    def __init__(self, domain: Domain, db: Any, *, writes: bool) -> None:
        self.domain = domain
        self.db = db
        self.state = State(db, domain.classes, writes=writes)
        self.tools = self._toolkit("agent")
        self.user_tools = self._toolkit("user")
        self.is_shared = False
        if self.state.note(SHARED):
            self.share()

    def _toolkit(self, side: Side) -> Any:
        kind = self.domain.toolkits[side]
        if kind is None:
            return None
        database = self.domain.databases[side]
        if side == "user" and self.domain.one_database:
            view = self.tools.db
        else:
            view = View(self.state, database, self.domain.fields[side], self.domain.prefix(side))
        kit = kind(view, *(self.domain.search if side == "agent" else ()))
        for name, value in self.domain.held[side]:
            if name not in vars(kit):
                setattr(kit, name, value.model_copy(deep=True))
        if (stored := self.state.note(f"@{side}")) is not None:
            restore(vars(kit), exact_value(stored, self.domain.classes))
        return kit

    def share(self) -> None:
        """Let the user's tools work on the agent's data."""
        self.is_shared = True
        self.user_tools.db = self.tools.db

    def kit(self, side: Side) -> Any:
        """The toolkit of a side."""
        return self.user_tools if side == "user" else self.tools

    def sync(self) -> None:
        """Bring the data of both sides in line."""
        if self.domain.sync is not None:
            self.domain.sync(self)

    def make_tool_call(self, tool_name: str, requestor: Side = "agent", **kwargs: Any) -> Any:
        """Call a tool; raises whatever the benchmark's code raises."""
        kit = self.kit(requestor)
        if kit is None:
            raise ValueError("User tools not available")
        return kit.use_tool(tool_name=tool_name, **kwargs)

    def respond(self, name: str, side: Side, arguments: dict[str, Any]) -> tuple[str, bool]:
        """The answer to a call of a tool, and True if it failed; the sync is part of the call."""
        try:
            value = self.make_tool_call(name, side, **arguments)
            self.sync()
        except Exception as error:  # noqa: BLE001 - the border to the benchmark's code: its errors are answers
            return f"Error: {error}", True
        return answer_of(value), False

    def run(self, name: str, side: Side, arguments: dict[str, Any]) -> Any:
        """Call any function of a toolkit."""
        result = getattr(self.kit(side), name)(**arguments)
        self.sync()
        return result

    def set_up(self, name: str, side: Side, arguments: dict[str, Any]) -> None:
        """Call a function for ``setup``: one of a toolkit, or the update of a side's data."""
        if name != UPDATE_DATA:
            self.run(name, side, arguments)
            return
        view = self.kit(side).db
        view.update(self.domain.databases[side].model_validate(merged(view.dump(), arguments)))
        if side == "agent" and self.user_tools is not None and not self.domain.one_database:
            self.share()

    def write(self) -> None:
        """Write what has changed."""
        for side, kit in (("agent", self.tools), ("user", self.user_tools)):
            if kit is not None:
                own = {
                    name: value
                    for name, value in vars(kit).items()
                    if name != "db" and not isinstance(value, Documents)
                }
                if text := exact_text(own) if own else "":
                    self.state.set_note(f"@{side}", text)
        if self.is_shared:
            self.state.set_note(SHARED, "true")
        if self.state.writes:
            self.state.write()
        self.state.rename()


@contextmanager
def environment_on(domain: Domain, db: Any, *, writes: bool) -> Iterator[Environment]:
    """The environment of a database; what has changed in it is written at the end.

    One that has been written stays in memory under the name of its state, for the next call on that state.
    """
    environment = _KEPT.pop((domain, name_of(db)), None) if writes else None
    if environment is None:
        environment = Environment(domain, db, writes=writes)
    environment.state.db = db
    reset = DATABASE.set(db)
    try:
        yield environment
    finally:
        DATABASE.reset(reset)
        environment.write()
        if writes:
            _keep((domain, environment.state.name), environment)


_KEPT: OrderedDict[tuple[Domain, str | None], Environment] = OrderedDict()
_MOST_KEPT = 256


def _keep(key: tuple[Domain, str | None], environment: Environment) -> None:
    _KEPT[key] = environment
    while len(_KEPT) > _MOST_KEPT:
        _KEPT.popitem(last=False)


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
    key = domain, f"checks of {name_of(db)}"
    if (environment := _KEPT.get(key)) is None:
        _keep(key, environment := Environment(domain, db, writes=True))
        environment.sync()
    environment.state.db = db
    return environment.run(name, side, arguments)


UPDATE_DATA = "update_data"
"""The function of ``setup`` that merges data into the database."""


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
        self._all: dict[str, Tool] = {}
        kit = self._kit = domain.toolkits[side]
        if kit is None:
            return
        for name, function in kit.tool_functions().items():
            mutates = domain.sync is not None or domain.mutates(name)
            tool = _tool(name, partial(_call, domain, side, name, mutates), function)
            self._all[name] = tool
            if not hasattr(function, DISCOVERABLE_ATTR):
                self.tools[name] = tool
        for name in dir(kit):
            if not name.startswith("_") and name not in vars(ToolKitBase) and callable(getattr(kit, name)):
                self.functions["setup"][name] = _tool(name, partial(_set_up, domain, side, name))
                self.functions["check"][name] = _tool(name, partial(_check, domain, side, name))
        self.functions["setup"][UPDATE_DATA] = _tool(UPDATE_DATA, partial(_set_up, domain, side, UPDATE_DATA))

    def find(self, name: str) -> Tool | None:
        """The tool of a name, also one that is not offered."""
        return self._all.get(name) or self.tools.get(name)

    async def unknown(self, name: str, *_: Any) -> ToolResult:
        """The benchmark's answer to a call of a tool that there is not."""
        fault = "User tools not available" if self._kit is None else f"Tool '{foreign_name(name)}' not found."
        return ToolResult(f"Error: {fault}", "unknown_tool")


def _tool(name: str, function: Callable[..., Any], described: Callable[..., Any] | None = None) -> Tool:
    """A tool whose arguments are not checked."""
    description, schema = describe(name, described) if described is not None else (name, _ANY)
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


def answer_of(value: Any) -> str:
    """The text with which the benchmark answers a call."""
    return value if isinstance(value, str) else json.dumps(_answer(value), default=str)


def _answer(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(warnings=False)
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, list | tuple):
        return [_answer(one) for one in value]
    if isinstance(value, dict):
        return {key: _answer(one) for key, one in value.items()}
    if isinstance(value, date):
        return value.isoformat()
    raise ValueError(f"Unsupported type: {type(value)}")
