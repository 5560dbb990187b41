"""The rows of a dataset: what one task says about itself."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictInt,
    StrictStr,
)
from pydantic_core import PydanticCustomError

from reward_kit.agent.bundles.gold_reference import reference_faults
from reward_kit.agent.bundles.message_check import Fault, message_faults
from reward_kit.agent.option_values import MAX_ROLLOUTS
from reward_kit.agent.strict_json import copied

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FILE_FIELDS = frozenset({"seed_sql", "system_prompt", "sim_user_prompt", "sim_user_template"})
"""Fields whose text may be ``file:NAME``, a file beside the dataset."""

INJECTED = frozenset({"messages", "db", "gold_db", "rollout"})
"""What a reward gets from the rollout; a row cannot have fields of these names."""

RESERVED_IDS = frozenset({"evals", ".bases", ".cache"})
"""Folders of the output directory that do not belong to a row."""

MAX_ID_LENGTH = 128

_ID = re.compile(r"[A-Za-z0-9._-]+")
_DOTTED = re.compile(r"[\w-]+(\.[\w-]+)*")
_TIME = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)"
    r"(?:[T ](?P<clock>\d\d:\d\d(?::\d\d)?)(?:\.(?P<fraction>\d{1,9}))?(?P<offset>[Zz]|[+-]\d\d:\d\d)?)?"
)


@dataclass(frozen=True, slots=True)
class Action:
    """One ground-truth call; ``arguments`` may hold references to earlier results (``gold_reference``)."""

    name: StrictStr
    arguments: dict[str, Any] = field(default_factory=dict)

    __pydantic_config__ = ConfigDict(extra="forbid")

    def to_json(self) -> dict[str, Any]:
        """The action as it stands in the dataset."""
        return {"name": self.name, "arguments": self.arguments}


def _checked(faults: Callable[[Any], Iterable[Fault]]) -> Callable[[Any], Any]:
    """A pydantic validator that reports every fault that ``faults`` finds in a value."""

    def check(value: Any) -> Any:
        found = list(faults(value))
        if found:
            text = "; ".join(fault for _, fault in found)
            raise PydanticCustomError("faults", "{text}", {"text": text, "faults": found})
        return value

    return check


def _text(fault: Callable[[str], str | None]) -> AfterValidator:
    """The validator of a text field, from a function that tells what is wrong with a text."""

    def faults(value: str) -> Iterable[Fault]:
        found = fault(value)
        return [((), found)] if found else []

    return AfterValidator(_checked(faults))


def _id_fault(value: str) -> str | None:
    if len(value) > MAX_ID_LENGTH:
        return f"has {len(value)} characters, at most {MAX_ID_LENGTH} fit into a folder name"
    if not _ID.fullmatch(value) or value in {".", ".."}:
        return (
            f'{value!r} cannot be a folder name; use letters, digits, ".", "_" and "-" (but not "." or "..")'
        )
    if value.casefold() in RESERVED_IDS:
        return f"{value!r} is a folder that the output directory uses itself; choose another id"
    return None


def _toolset_fault(value: str) -> str | None:
    module, _, attribute = value.partition(":")
    if "/" in value or "\\" in value or value.endswith(".py"):
        stem = re.sub(r"\.py$", "", value).replace("\\", "/").strip("./").replace("/", ".")
        example = stem if "." in stem else f"my_task.{stem}"
        return f"{value!r} is a path; write the import path of the tools module, such as {example!r}"
    if not _DOTTED.fullmatch(module) or (":" in value and not attribute.isidentifier()):
        fault = f'{value!r} is not an import path; write one such as "my_task.tools" or "my_task.tools:R"'
        folder = module.rpartition(".")[0]
        importable = re.sub(r"[^\w.-]", "_", folder)
        if importable != folder:
            fault += f" (rename the folder: {importable!r} can be imported)"
        return fault
    return None


def _reward_fault(value: str) -> str | None:
    module, _, function = value.partition(":")
    if _DOTTED.fullmatch(module) and function.isidentifier():
        return None
    return f'{value!r} does not name a reward; write "module:function", such as "my_task.reward:evaluate"'


def _goal_fault(value: str) -> str | None:
    if value.startswith("file:"):
        return "is the SQL itself, not a file"
    return None if value.strip() else "is empty; write a query whose first value is true on success"


def _time_fault(value: str) -> str | None:
    try:
        parse_time(value)
    except (ValueError, OverflowError):
        return f'{value!r} is not an ISO 8601 time such as "2025-05-19T09:00:00"'
    return None


def _too_many(value: int) -> Iterable[Fault]:
    if value > MAX_ROLLOUTS:
        yield (), f"is more than {MAX_ROLLOUTS} rollouts"


def _conversation_faults(value: Any) -> Iterable[Fault]:
    return message_faults(value) if isinstance(value, list) else ()


def _action_faults(actions: list[Action]) -> Iterable[Fault]:
    for index, action in enumerate(actions):
        if not action.name:
            yield (index, "name"), "is empty"
        for way, fault in reference_faults(action.arguments, index):
            yield (index, "arguments", *way), fault


class TaskRow(BaseModel):
    """One row of a dataset. Fields that are not listed here are kept and handed to the reward."""

    model_config = ConfigDict(frozen=True, extra="allow")

    id: Annotated[StrictStr, _text(_id_fault)]
    toolset: Annotated[StrictStr, _text(_toolset_fault)]
    initial_messages: Annotated[list[dict[str, Any]], BeforeValidator(_checked(_conversation_faults))] = []
    reward: Annotated[StrictStr, _text(_reward_fault)] | None = None
    seed_sql: StrictStr | None = None
    end_goal_sql: Annotated[StrictStr, _text(_goal_fault)] | None = None
    system_prompt: StrictStr | None = None
    sim_user_prompt: StrictStr | None = None
    sim_user_template: StrictStr | None = None
    n_rollouts: Annotated[StrictInt, Field(ge=1), AfterValidator(_checked(_too_many))] = 1
    actions: Annotated[list[Action], AfterValidator(_checked(_action_faults))] | None = None
    outputs: list[StrictStr] = []
    max_steps: Annotated[StrictInt, Field(ge=1)] = 30
    now: Annotated[StrictStr, _text(_time_fault)] | None = None
    metadata: dict[str, Any] = {}

    _place: str | None = PrivateAttr(default=None)
    _texts: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def place(self) -> str:
        """Where the row stands, ``task.jsonl:3``; its id where it was not read from a file."""
        return self._place or f"row {self.id!r}"

    def located(self, place: str, texts: Mapping[str, str]) -> TaskRow:
        """This row, told the place that it was read from and the texts of its ``file:`` fields."""
        self._place = place
        self._texts = texts
        return self

    def copied(self) -> TaskRow:
        """A copy that has nothing in common with this row that could be changed."""
        copy = self.model_copy()
        copy.__dict__.update({name: copied(getattr(self, name)) for name in _CHANGEABLE})
        if self.actions is not None:
            copy.__dict__["actions"] = [Action(one.name, copied(one.arguments)) for one in self.actions]
        object.__setattr__(copy, "__pydantic_extra__", copied(self.__pydantic_extra__))
        return copy

    def clock(self) -> datetime | None:
        """``now`` as a time in UTC; a time without an offset counts as UTC."""
        return None if self.now is None else parse_time(self.now)

    def text(self, name: str) -> str | None:
        """The field ``name``, with a ``file:`` reference replaced by that file's text."""
        value: str | None = self._texts.get(name, getattr(self, name))
        return value

    def given_fields(self) -> set[str]:
        """The names of all fields that have a value."""
        return {name for name in TaskRow.model_fields if getattr(self, name) is not None} | set(
            self.model_extra or ()
        )

    def reward_fields(self) -> dict[str, Any]:
        """The row as keyword arguments of a reward: plain JSON values, ``file:`` replaced by the text.

        Optional fields that have no value are left out; unknown fields are in.
        """
        read = {**self.__dict__, **self._texts}
        fields: dict[str, Any] = {name: value for name, value in read.items() if value is not None}
        if self.actions is not None:
            fields["actions"] = [action.to_json() for action in self.actions]
        fields.update(self.__pydantic_extra__ or {})
        return fields


_CHANGEABLE = ("initial_messages", "outputs", "metadata")


def parse_time(text: str) -> datetime:
    """An ISO 8601 date (``2025-05-19``) or time (``2025-05-19T09:00:00+02:00``) as a time in UTC.

    A time without an offset counts as UTC. Raises ``ValueError`` for anything else.
    """
    match = _TIME.fullmatch(text)
    if match is None:
        raise ValueError(text)
    # datetime.fromisoformat reads more forms, but not the same ones on every Python.
    offset = match["offset"] or "Z"
    moment = datetime.fromisoformat(
        f"{match['date']}T{match['clock'] or '00:00'}" + ("+00:00" if offset in "Zz" else offset)
    )
    fraction = (match["fraction"] or "0")[:6].ljust(6, "0")
    return moment.astimezone(timezone.utc).replace(microsecond=int(fraction))
