"""The rows of a dataset: the fields of one task, checked."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PrivateAttr,
    StrictBool,
    StrictInt,
    StrictStr,
    ValidationError,
)
from pydantic_core import PydanticCustomError

from reward_kit.agent.base.option_values import MAX_ROLLOUTS
from reward_kit.agent.base.strict_json import copied
from reward_kit.agent.bundles.gold_reference import reference_faults
from reward_kit.agent.bundles.message_check import Fault, Way, message_faults, show

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

FILE_FIELDS = ("seed_sql", "system_prompt", "sim_user_prompt", "sim_user_template")
"""Fields whose text may be ``file:NAME``, a file beside the dataset."""

INJECTED = frozenset({"messages", "db", "gold_db", "rollout"})
"""Arguments that a reward gets from the rollout; a row cannot have fields of these names."""

RESERVED_IDS = frozenset({"evals", ".bases", ".cache"})
"""Folders of the output directory that do not belong to a row."""

MAX_ID_LENGTH = 128

FieldFault = tuple[str, str]
"""(field, fault): ``("actions[2].name", "got 3 (a whole number), expected …")``."""

_ID = re.compile(r"[A-Za-z0-9._-]+")
_DOTTED = re.compile(r"\.?[\w-]+(\.[\w-]+)*")
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
        """The action as the dataset has it."""
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
    """The validator of a text field, from a function that gives the fault of a text or None."""

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


@lru_cache(maxsize=1024)
def _toolset_fault(value: str) -> str | None:
    module, _, attribute = value.partition(":")
    if "/" in value or "\\" in value or value.endswith(".py"):
        stem = re.sub(r"\.py$", "", value).replace("\\", "/").strip("./").replace("/", ".")
        example = stem if "." in stem else f".{stem}"
        return f"{value!r} is a path; write the import path of the tools module, such as {example!r}"
    if not _DOTTED.fullmatch(module) or (":" in value and not attribute.isidentifier()):
        fault = f'{value!r} is not an import path; write one such as ".tools" or "my_task.tools:R"'
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
    return f'{value!r} does not name a reward; write "module:function", such as ".reward:evaluate"'


def _goal_fault(value: str) -> str | None:
    if value.startswith("file:"):
        return "is the SQL itself, not a file"
    return None if value.strip() else "is empty; write a query whose first value is true on success"


@lru_cache(maxsize=1024)
def _time_fault(value: str) -> str | None:
    try:
        parse_time(value)
    except (ValueError, OverflowError):
        return f'{value!r} is not an ISO 8601 time such as "2025-05-19T09:00:00"'
    return None


def _too_many(value: int) -> Iterable[Fault]:
    return [((), f"is more than {MAX_ROLLOUTS} rollouts")] if value > MAX_ROLLOUTS else []


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
    initial_messages: Annotated[list[dict[str, Any]], BeforeValidator(_checked(_conversation_faults))] = (
        Field(default_factory=list)
    )
    reward: Annotated[StrictStr, _text(_reward_fault)] | None = None
    seed_sql: StrictStr | None = None
    end_goal_sql: Annotated[StrictStr, _text(_goal_fault)] | None = None
    system_prompt: StrictStr | None = None
    sim_user_prompt: StrictStr | None = None
    sim_user_template: StrictStr | None = None
    n_rollouts: Annotated[StrictInt, Field(ge=1), AfterValidator(_checked(_too_many))] = 1
    actions: Annotated[list[Action], AfterValidator(_checked(_action_faults))] | None = None
    outputs: list[StrictStr] = Field(default_factory=list)
    max_steps: Annotated[StrictInt, Field(ge=1)] = 30
    now: Annotated[StrictStr, _text(_time_fault)] | None = None
    metadata: dict[str, Any] = Field(default_factory=dict)
    toolset_outside: StrictBool | None = None

    _place: str | None = PrivateAttr(default=None)
    _texts: Mapping[str, str] = PrivateAttr(default_factory=dict)

    @property
    def place(self) -> str:
        """The line that the row was read from, ``task.jsonl:3``; its id if it was not read from a file."""
        return self._place or f"row {self.id!r}"

    def located(self, place: str, texts: Mapping[str, str]) -> TaskRow:
        """This row, with the place that it was read from and the texts of its ``file:`` fields."""
        self._place = place
        self._texts = texts
        self.model_fields_set.clear()  # nothing asks for it, and in many rows it is a fifth of the memory
        return self

    def copied(self) -> TaskRow:
        """A copy that shares no mutable value with this row."""
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
        return {name for name in _KNOWN if getattr(self, name) is not None} | set(self.model_extra or ())

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
_KNOWN = tuple(TaskRow.model_fields)


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
    return moment.astimezone(UTC).replace(microsecond=int(fraction))


_FILE_TEXT = 'text, or "file:NAME" for a file beside the dataset'
_EXPECTED: dict[Way, str] = {
    ("id",): 'a string of letters, digits, ".", "_" and "-"',
    ("toolset",): 'the import path of the tools module, such as "my_task.tools" or ".tools"',
    ("toolset_outside",): "true if the tools lie outside of the bundle's folder",
    ("initial_messages",): "a list of messages",
    ("reward",): 'a string "module:function"',
    ("seed_sql",): 'SQL text, or "file:NAME" for a file beside the dataset',
    ("end_goal_sql",): "the text of a query whose first value is true on success",
    ("system_prompt",): _FILE_TEXT,
    ("sim_user_prompt",): _FILE_TEXT,
    ("sim_user_template",): 'text with {instruction} in it, or "file:NAME" for a file beside the dataset',
    ("n_rollouts",): "a whole number >= 1",
    ("max_steps",): "a whole number >= 1",
    ("now",): 'an ISO 8601 time such as "2025-05-19T09:00:00"',
    ("metadata",): "an object",
    ("outputs",): "a list of strings",
    ("outputs", "*"): "a string",
    ("actions",): 'a list of {"name", "arguments"} objects',
    ("actions", "*"): 'an object {"name": "…", "arguments": {…}}',
    ("actions", "*", "name"): "the name of a tool",
    ("actions", "*", "arguments"): "an object with the tool's arguments",
}
_INSTEAD = {"messages": 'the start of the conversation is "initial_messages"'}


def check_row(data: Any) -> tuple[TaskRow | None, list[FieldFault]]:
    """The row that ``data`` (parsed JSON) describes, or every fault that it has.

    ``null`` counts as leaving a field out.
    """
    if not isinstance(data, dict):
        more = "; write each row on a line of its own, without [ and ]" if isinstance(data, list) else ""
        return None, [("", f"expected a JSON object, got {show(data)}{more}")]
    faults = [
        (name, f"is a name that the rollout gives to the reward; {_INSTEAD.get(name, 'choose another')}")
        for name in data
        if name in INJECTED
    ]
    given = {name: value for name, value in data.items() if value is not None or name not in _KNOWN}
    try:
        row = TaskRow.model_validate(given)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            faults.extend(_explain(dict(item)))
        return None, faults
    return (None, faults) if faults else (row, [])


def _explain(error: dict[str, Any]) -> list[FieldFault]:
    way: Way = tuple(error["loc"])
    if error["type"] == "faults":
        return [(field_name((*way, *inner)), fault) for inner, fault in error["ctx"]["faults"]]
    if error["type"] == "unexpected_keyword_argument":
        is_arguments = way[-1] in {"kwargs", "args", "argument", "parameters", "input"}
        remedy = 'write "arguments"' if is_arguments else "leave it out"
        return [(field_name(way), f'an action has "name" and "arguments" only; {remedy}')]
    expected = _EXPECTED.get(tuple("*" if isinstance(step, int) else step for step in way), error["msg"])
    if error["type"] in {"missing", "missing_argument"}:
        return [(field_name(way), f"is missing, expected {expected}")]
    return [(field_name(way), f"got {show(error['input'])}, expected {expected}")]


def field_name(way: Way) -> str:
    """``("actions", 2, "name")`` as messages write it: ``actions[2].name``."""
    text = ""
    for step in way:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


@lru_cache(maxsize=1024)
def likely_misspelling(name: str) -> str | None:
    """The known field that ``name`` was probably meant to be."""
    if name in _KNOWN:
        return None
    plain = name.lower().replace("-", "_").strip("_")
    close = difflib.get_close_matches(plain, _KNOWN, n=1, cutoff=0.8)
    return close[0] if close else None
