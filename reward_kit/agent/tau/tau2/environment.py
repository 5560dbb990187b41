"""The benchmark's environment on a database: its toolkits, made anew on the state of the database.

A call runs the tool, then the synchronisation of both sides, and writes what has changed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from reward_kit.agent.tau.tau2.knowledge import Documents
from reward_kit.agent.tau.tau2.models import exact_text, exact_value, restore
from reward_kit.agent.tau.tau2.state import SHARED, View, WorldState, name_of
from reward_kit.agent.tau.tau2.toolkit import DATABASE, merged

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.tau.tau2.domain import Domain

UPDATE_DATA = "update_data"
"""The function of ``setup`` that merges data into the database."""


class Environment:
    """The toolkits of a domain on a database, as the benchmark's tools and its ``sync_tools`` know them."""

    def __init__(self, domain: Domain, db: Any, *, writes: bool) -> None:
        self.domain = domain
        self.db = db
        self.state = WorldState(db, domain.classes, writes=writes)
        self.tools = self._toolkit("agent")
        self.user_tools = self._toolkit("user")
        self.is_shared = False
        if self.state.note(SHARED):
            self.share()

    def _toolkit(self, side: Side) -> Any:
        kind = self.domain.toolkits.get(side)
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
        return self.user_tools if side == "user" else self.tools

    def sync(self) -> None:
        """Bring the data of both sides in line."""
        if self.domain.sync is not None:
            self.domain.sync(self)

    def make_tool_call(self, tool_name: str, requestor: Side = "agent", **kwargs: Any) -> Any:
        """Call a tool; raises all exceptions of the benchmark's code."""
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
        """Write the changed objects."""
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
            for part in self.state.parts:
                part.write()
        self.state.rename()


@contextmanager
def environment_on(domain: Domain, db: Any, *, writes: bool) -> Iterator[Environment]:
    """The environment of a database; its changed objects are written at the end.

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


def checking_environment(domain: Domain, db: Any) -> Environment:
    """The environment in which all checks of a state run; nothing is written."""
    key = domain, f"checks of {name_of(db)}"
    if (environment := _KEPT.get(key)) is None:
        _keep(key, environment := Environment(domain, db, writes=True))
        environment.sync()
    environment.state.db = db
    return environment


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
