"""The names that the benchmark's code of a domain imports: base classes, decorators, small utilities."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from pydantic import BaseModel

if TYPE_CHECKING:
    from collections.abc import Callable

    from reward_kit.agent.database.database import SyncDatabase

logger = logging.getLogger("reward_kit.tau2")
logger.addHandler(logging.NullHandler())

TOOL_ATTR = "__tool__"
MUTATES_STATE_ATTR = "__mutates_state__"
DISCOVERABLE_ATTR = "__discoverable__"

DATABASE: ContextVar[SyncDatabase] = ContextVar("database")
"""The database of the call that runs."""

ToolKitType = type
M = TypeVar("M", bound=BaseModel)

DATA_DIR = Path("data")
"""The benchmark's folder of data, which no code of a ported bundle reads."""


class ToolType(str, Enum):  # noqa: UP042 - as the benchmark's, which formats its members
    READ = "read"
    WRITE = "write"
    THINK = "think"
    GENERIC = "generic"


def is_tool(
    tool_type: ToolType = ToolType.READ, mutates_state: bool | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a method as a tool; by default, tools of the type ``WRITE`` change the state."""
    mutates = tool_type == ToolType.WRITE if mutates_state is None else mutates_state

    def mark(function: Callable[..., Any]) -> Callable[..., Any]:
        vars(function).update({TOOL_ATTR: True, MUTATES_STATE_ATTR: mutates})
        return function

    return mark


def is_discoverable_tool(
    tool_type: ToolType = ToolType.READ, mutates_state: bool | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Mark a method as a tool that is offered to no model, and can be called all the same."""
    mark = is_tool(tool_type, mutates_state)

    def mark_both(function: Callable[..., Any]) -> Callable[..., Any]:
        setattr(function, DISCOVERABLE_ATTR, True)
        return mark(function)

    return mark_both


class ToolKitBase:
    """A set of tools on a database."""

    def __init__(self, db: Any = None) -> None:
        self.db = db

    @classmethod
    @cache
    def tool_functions(cls) -> dict[str, Callable[..., Any]]:
        """The functions of the tools by name: those of the class first, then those of its bases."""
        found: dict[str, Callable[..., Any]] = {}
        for base in cls.__mro__:
            for name, value in vars(base).items():
                if hasattr(value, TOOL_ATTR):
                    found.setdefault(name, value)
        return found

    @property
    def tools(self) -> dict[str, Callable[..., Any]]:
        return {name: getattr(self, name) for name in self.tool_functions()}

    def use_tool(self, tool_name: str, **kwargs: Any) -> Any:
        if not self.has_tool(tool_name):
            raise ValueError(f"Tool '{tool_name}' not found.")
        return getattr(self, tool_name)(**kwargs)

    @classmethod
    def has_tool(cls, tool_name: str) -> bool:
        return tool_name in cls.tool_functions()

    def get_discoverable_tools(self) -> dict[str, Callable[..., Any]]:
        """The tools that are offered to no model."""
        return {name: tool for name, tool in self.tools.items() if hasattr(tool, DISCOVERABLE_ATTR)}

    def has_discoverable_tool(self, tool_name: str) -> bool:
        """True if there is such a tool and it is offered to no model."""
        return tool_name in self.get_discoverable_tools()

    @classmethod
    def tool_mutates_state(cls, tool_name: str) -> bool:
        """True if the tool changes the state, also for a tool that says nothing about it."""
        return bool(getattr(getattr(cls, tool_name), MUTATES_STATE_ATTR, True))


class _RepeatableUuid:
    """Stands for the module ``uuid``: made-up ids come from the random numbers of the rollout."""

    @staticmethod
    def uuid4() -> UUID:
        return UUID(bytes=DATABASE.get().fetch_val("SELECT randomblob(16)"), version=4)


uuid = _RepeatableUuid()


# --- data models


class BaseModelNoExtra(BaseModel, extra="forbid"):
    """A model that refuses unknown fields."""


class DB(BaseModelNoExtra):
    """The base of a domain's database."""


def update_pydantic_model_with_dict(model_instance: M, update_data: dict[str, Any]) -> M:
    """The model with the values of ``update_data``, objects within objects merged, validated anew."""
    return type(model_instance).model_validate(merged(model_instance.model_dump(), update_data))


def merged(data: dict[str, Any], update: dict[str, Any]) -> dict[str, Any]:
    """``data`` with the values of ``update``; a dict is merged into a dict, anything else replaces."""
    result = dict(data)
    for key, value in update.items():
        old = result.get(key)
        both = isinstance(old, dict) and isinstance(value, dict)
        result[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return result
