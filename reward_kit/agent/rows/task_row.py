"""The rows of a dataset: the fields of one task, what is right in them, and faults that rows share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping  # noqa: TC003 - pydantic reads the annotations
from dataclasses import MISSING, dataclass, field, fields
from datetime import UTC, datetime
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    SkipValidation,
    Strict,
    ValidationError,
)

from reward_kit.agent.base.encoding import SCALARS, adapter_of, whole
from reward_kit.agent.base.option import MAX_ROLLOUTS
from reward_kit.agent.base.text import FILE, text_of
from reward_kit.agent.base.types import Side  # noqa: TC001 - pydantic reads the annotations
from reward_kit.agent.rows.field_checks import (
    EXPECTED,
    MAX_ID_LENGTH,
    RESERVED_IDS,
    Fault,
    Part,
    call_faults,
    check_faults,
    message_faults,
    reference_faults,
    show,
    split_opening,
)
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from reward_kit.agent.base.types import Message

MAX_FAULTS_SHOWN = 200
INJECTED = frozenset({"messages", "db", "gold_db", "rollout"})
"""Arguments that a reward gets from the rollout; a row cannot have fields of these names."""

_ID = re.compile(rf"(?!-)[A-Za-z0-9._-]{{1,{MAX_ID_LENGTH}}}")
_MODULE = r"\.?[\w-]+(\.[\w-]+)*"
_TOOLSET = re.compile(rf"(?!.*\.py$){_MODULE}(:[^\W\d]\w*)?")
_REWARD = re.compile(rf"{_MODULE}:[^\W\d]\w*")
_MEANT = {"messages": ' (the start of the conversation is "initial_messages")'}


def _if(fits: Callable[[str], object]) -> AfterValidator:
    def check(value: str) -> str:
        if not fits(value):
            raise ValueError
        return value

    return AfterValidator(check)


class _InnerFaultsError(ValueError):
    """Faults inside a value, each with its path."""

    def __init__(self, faults: list[Fault]) -> None:
        super().__init__(faults)
        self.faults = faults


def _without(find: Callable[[Any], Iterable[Fault]]) -> AfterValidator:
    def check(value: Any) -> Any:
        if faults := list(find(value)):
            raise _InnerFaultsError(faults)
        return value

    return AfterValidator(check)


def _references(actions: list[Action]) -> Iterator[Fault]:
    for position, action in enumerate(actions):
        for way, fault in reference_faults(action.arguments, position):
            yield (position, "arguments", *way), fault


_PADDED = {"actions", "setup", "checks", "required_calls", "forbidden_calls", "initial_messages"}


def _unpadded(value: Any) -> Any:
    """A copy without the nulls with which tables of objects are filled up, but for those of ``arguments``."""
    if isinstance(value, list):
        return [one if one.__class__ in SCALARS else _unpadded(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        key: one if key == "arguments" or one.__class__ in SCALARS else _unpadded(one)
        for key, one in value.items()
        if one is not None or key == "content"
    }


@dataclass(frozen=True, slots=True)
class Action:
    """One ground-truth call; ``arguments`` may hold references to earlier results (``field_checks``).

    ``refused``: the tool is meant to refuse it. ``by`` is the side that makes the call.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    name: Annotated[str, Field(min_length=1)]
    arguments: dict[str, Any] = field(default_factory=dict)
    refused: Annotated[bool, Strict()] = False
    by: Side = "agent"

    def to_json(self) -> dict[str, Any]:
        """The action as the dataset has it."""
        plain: dict[str, Any] = {"name": self.name, "arguments": self.arguments}
        if self.refused:
            plain["refused"] = True
        return plain if self.by == "agent" else {**plain, "by": self.by}


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One row of a dataset; ``more`` are the fields that are not listed here, for the reward.

    ``place`` is the line that the row was read from, ``task.jsonl:3``, else its id; ``texts`` are those of
    its ``file:`` fields.
    """

    id: Annotated[str, _if(lambda name: _ID.fullmatch(name) and name.casefold() not in RESERVED_IDS)]
    toolset: Annotated[str, _if(_TOOLSET.fullmatch)]
    initial_messages: Annotated[list[Any], _without(message_faults)] = field(default_factory=list)
    reward: Annotated[str, _if(_REWARD.fullmatch)] | None = None
    seed_sql: str | None = None
    end_goal_sql: Annotated[str, _if(lambda text: text.strip() and not text.startswith(FILE))] | None = None
    system_prompt: str | None = None
    sim_user_prompt: str | None = None
    sim_user_template: str | None = None
    n_rollouts: Annotated[int, Field(strict=True, ge=1, le=MAX_ROLLOUTS), BeforeValidator(whole)] = 1
    actions: Annotated[list[Action], _without(_references)] | None = None
    outputs: list[str] = field(default_factory=list)
    setup: list[Action] | None = None
    checks: Annotated[list[Any], _without(check_faults)] | None = None
    required_calls: Annotated[list[Any], _without(call_faults)] | None = None
    forbidden_calls: Annotated[list[Any], _without(call_faults)] | None = None
    criteria: list[Annotated[str, _if(str.strip)]] | None = None
    judge_model: Annotated[str, _if(str.strip)] | None = None
    score_by: Annotated[list[Part], Field(min_length=1)] | None = None
    not_compared: list[Annotated[str, _if(str.strip)]] | None = None
    max_steps: Annotated[int, Field(strict=True, ge=1), BeforeValidator(whole)] = 30
    now: Annotated[str, _if(lambda text: parse_time(text))] | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    ticket: Annotated[str, _if(str.strip)] | None = None
    user_toolset: Annotated[str, _if(_TOOLSET.fullmatch)] | None = None
    user_tools: list[str] | None = None
    toolset_outside: Annotated[bool, Strict()] | None = None
    more: SkipValidation[Mapping[str, Any]] = field(default_factory=dict)
    texts: SkipValidation[Mapping[str, str]] = field(default_factory=dict, compare=False, repr=False)
    place: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.place:
            object.__setattr__(self, "place", f"row {self.id!r}")

    @classmethod
    def from_json(cls, plain: Any, *, place: str = "", texts: Mapping[str, str] | None = None) -> TaskRow:
        """The row of a JSON object; ``null`` counts as leaving a field out, 2.0 as 2.

        Raises ``FaultyRowError``.
        """
        if not isinstance(plain, dict):
            more = "; write each row on a line of its own, without [ and ]" if isinstance(plain, list) else ""
            raise FaultyRowError([("", f"expected a JSON object, got {show(plain)}{more}")])
        known: dict[str, Any] = {}
        own: dict[str, Any] = {}
        for name, value in plain.items():
            if name not in KNOWN_FIELDS:
                own[name] = value
            elif value is not None:
                known[name] = _unpadded(value) if name in _PADDED else value
        faults = [
            (name, f"is a name that the rollout gives to the reward; choose another{_MEANT.get(name, '')}")
            for name in own.keys() & INJECTED
        ]
        for name in ("actions", "required_calls", "forbidden_calls"):
            calls = known.get(name)
            for at, call in enumerate(calls if isinstance(calls, list) else ()):
                if isinstance(call, dict) and isinstance(call.get("function"), dict):
                    form = f'{{"name": {json.dumps(call["function"].get("name"))}, "arguments": {{…}}}}'
                    faults.append((f"{name}[{at}]", f"is in OpenAI's form of a call; write {form}"))
                    known.pop(name, None)
        known |= {"more": own or _NOTHING, "texts": texts or _NOTHING, "place": place}
        try:
            row: TaskRow = adapter_of(TaskRow).validate_python(known)
        except ValidationError as error:
            faults += _faults_in(error)
        if faults:
            raise FaultyRowError(faults)
        return row

    def clock(self) -> datetime | None:
        """``now`` as a time in UTC; a time without an offset counts as UTC."""
        return None if self.now is None else parse_time(self.now)

    def text(self, name: str) -> str | None:
        """The field ``name``, with a ``file:`` reference replaced by that file's text."""
        value: str | None = self.texts.get(name, getattr(self, name))
        return value

    @property
    def scored_outputs(self) -> list[str]:
        """The outputs, unless ``score_by`` leaves them out."""
        return self.outputs if self.score_by is None or "outputs" in self.score_by else []

    @property
    def agent_messages(self) -> list[Message]:
        """The initial messages that the agent sees: without the user's tool calls."""
        return split_opening(self.initial_messages)[0]

    def opening_calls(self) -> Iterator[tuple[int, Action, str]]:
        """The tool calls in ``initial_messages``: the position of the answer, the call, and the answer."""
        asked: dict[str, Action] = {}
        for number, message in enumerate(self.initial_messages):
            for call in message.get("tool_calls") or ():
                side: Side = "user" if message["role"] == "user" else "agent"
                name, arguments = call["function"]["name"], json.loads(call["function"]["arguments"])
                asked[call["id"]] = Action(name, arguments, by=side)
            if message["role"] == "tool":
                yield number, asked[message["tool_call_id"]], text_of(message["content"])

    def given_fields(self) -> set[str]:
        """The names of all fields that have a value."""
        return {name for name in KNOWN_FIELDS if getattr(self, name) is not None} | self.more.keys()

    def reward_fields(self) -> dict[str, Any]:
        """The row as keyword arguments of a reward: plain JSON values, ``file:`` replaced by the text.

        Optional fields that have no value are left out; unknown fields are in.
        """
        named = zip(KNOWN_FIELDS, _known_values(self), strict=True)
        given = {name: value for name, value in named if value is not None}
        given.update(self.texts)
        for name in ("actions", "setup"):
            if name in given:
                given[name] = [action.to_json() for action in given[name]]
        given.update(self.more)
        return given


KNOWN_FIELDS: dict[str, Any] = {
    item.name: item.default if item.default_factory is MISSING else item.default_factory()
    for item in fields(TaskRow)
    if item.name not in ("more", "texts", "place")
}
"""The documented fields with their defaults, ``MISSING`` for those that a row must have."""

_known_values = attrgetter(*KNOWN_FIELDS)

_NOTHING: dict[str, Any] = {}
"""Shared by the rows that have no ``file:`` fields and none of their own."""


def parse_time(text: str) -> datetime:
    """An ISO 8601 date or time as a time in UTC; without an offset it counts as UTC.

    Raises ``ValueError`` for anything else.
    """
    moment = datetime.fromisoformat(text)
    try:
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except OverflowError as error:
        raise ValueError(str(error)) from error


class FaultyBundleError(BundleError):
    """Several faults of one bundle; ``faults`` has one line for each, the message the first of them."""

    def __init__(self, faults: list[str]) -> None:
        self.faults = faults
        shown = faults[:MAX_FAULTS_SHOWN]
        if len(faults) > len(shown):
            shown.append(f"… and {len(faults) - len(shown)} more faults")
        super().__init__("\n".join(shown))


FieldFault = tuple[str, str]
"""(field, fault): ``("actions[2].name", "got 3 (a whole number), expected …")``."""


class FaultyRowError(BundleError):
    """Faults of one row, by field; the message is the first of them."""

    def __init__(self, faults: list[FieldFault]) -> None:
        self.faults = faults
        name, fault = faults[0]
        super().__init__(f"field {name!r}: {fault}" if name else fault)


def _faults_in(error: ValidationError) -> Iterator[FieldFault]:
    for item in error.errors(include_url=False):
        way, kind = item["loc"], item["type"]
        inner = item.get("ctx", {}).get("error")
        if isinstance(inner, _InnerFaultsError):
            yield from ((field_name((*way, *within)), fault) for within, fault in inner.faults)
        elif kind == "unexpected_keyword_argument":
            yield (
                field_name(way),
                'a call has "name", "arguments", "refused" and "by" only; drop it or write "arguments"',
            )
        else:
            got = "is missing" if kind == "missing" else f"got {show(item['input'])}"
            yield field_name(way), f"{got}, expected {EXPECTED[field_name(way, '[]')]}"


def field_name(way: tuple[str | int, ...], position: str = "[{}]") -> str:
    """``("actions", 2, "name")`` as messages write it: ``actions[2].name``."""
    return "".join(position.format(step) if isinstance(step, int) else f".{step}" for step in way).lstrip(".")


def row_schema() -> dict[str, Any]:
    """The JSON schema of a row, or of the defaults of all rows, for editors."""
    schema = adapter_of(TaskRow).json_schema()
    schema |= {"required": [], "anyOf": [{"required": ["id"]}, {"required": ["defaults"]}]}
    properties = {name: one for name, one in schema["properties"].items() if name in KNOWN_FIELDS}
    for name, one in properties.items():
        one["description"] = EXPECTED[name]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **schema,
        "title": "A row of task.jsonl",
        "description": "One task. A row may have more fields; the reward gets them.",
        "properties": properties,
    }


class RowFaults:
    """Faults that rows share: one line each, with the first row and the number of others."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str], list[TaskRow]] = {}

    def add(self, row: TaskRow, name: str, fault: str) -> None:
        """Note the fault of the field ``name``."""
        self._rows.setdefault((name, fault), []).append(row)

    def lines(self) -> list[str]:
        """``task.jsonl:3: row 'a', field 'toolset': … (also in 2 more rows)``."""
        return [
            f"{rows[0].place}: row {rows[0].id!r}, field {name!r}: {fault}{also_in_more_rows(len(rows) - 1)}"
            for (name, fault), rows in self._rows.items()
        ]

    def raise_if_any(self) -> None:
        """Raise ``FaultyBundleError`` if there is a fault."""
        if self._rows:
            raise FaultyBundleError(self.lines())


def also_in_more_rows(count: int) -> str:
    """The end of a message about the first of several rows."""
    return f" (also in {count} more {'row' if count == 1 else 'rows'})" if count else ""
