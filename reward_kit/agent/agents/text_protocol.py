"""The text protocol of ``act`` and ``react``: an answer is a tool call, or words for the user.

The form that is asked for is a thought (``Thought:``), then ``Action:`` and one JSON object with ``name`` and
``arguments``; the action ``respond`` speaks to the user. Deviations whose meaning is beyond doubt are read as
well: fences, text around the object, ``Action: NAME`` with ``Action Input: {...}``, and what ``lenient_json``
reads. Of several actions the last counts, as long as the model has not made up a result.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.lenient_json import read_object
from reward_kit.agent.base.text import encodable, text_of
from reward_kit.agent.models.answer_parts import joined, split_thoughts
from reward_kit.errors import AgentError

if TYPE_CHECKING:
    from collections.abc import Collection

RESPOND = "respond"
"""The action that is no tool: it says something to the user."""

_NAMES = ("name", "action", "tool", "tool_name", "function")
_ARGUMENTS = ("arguments", "parameters", "args", "action_input", "tool_input", "input")
_CONTENTS = ("content", "text", "message", "response", "reply")
_ASIDES = frozenset({"thought", "thoughts", "reasoning"})

MOST_ACTIONS = 30
"""Actions of one answer that are looked at; each costs a pass over the text behind it."""

# A label is at the beginning of a line, perhaps as a heading, list item or in bold, perhaps numbered.
_BEGIN = r"^[ \t>#*_`-]*"
_END = r"(?:[ \t]+\d+)?[*_` \t]*:[*_`]*"
_FLAGS = re.IGNORECASE | re.MULTILINE
_OBJECT = r"\{\s*(?:\}|[\"']?\w[\w-]*[\"']?\s*:)"

OBJECT = re.compile(_OBJECT)
ACTION = re.compile(rf"{_BEGIN}action{_END}|\baction{_END}(?=\s*(?:```\w*\s*)?{_OBJECT})", _FLAGS)
ACTION_INPUT = re.compile(rf"{_BEGIN}action[ _]input{_END}", _FLAGS)
THOUGHT = re.compile(rf"{_BEGIN}thoughts?{_END}|(?-i:\bThoughts?:)", _FLAGS)
MADE_UP = re.compile(
    rf"{_BEGIN}(?:(?:api|tool|function) (?:output|result|response)|observation|user|customer|human){_END}",
    _FLAGS,
)
SPEECH = re.compile(rf"{_BEGIN}(?:(?:final |user )?(?:answer|response|reply)|respond){_END}", _FLAGS)
_LABEL = re.compile(rf"{THOUGHT.pattern}|{ACTION.pattern}|{MADE_UP.pattern}", _FLAGS)
_THOUGHT_OR_SPEECH = re.compile(rf"{THOUGHT.pattern}|{SPEECH.pattern}", _FLAGS)
_LIST = re.compile(r"\s*(?:```\w*\s*)?\[")
_LIST_ENDS = re.compile(r"\](?:\s*```)?\s*$")
_FENCE = re.compile(r"\s*(?:```\w*\s*)?")
_OPEN_FENCE = re.compile(r"```\w*")
_NOTHING = frozenset({"", "null", "none", "{}", "[]"})
_EDGES = " \t\r\n*`#>"
_MARKS = f"{_EDGES}(:\"'"


@dataclass(frozen=True, slots=True)
class Action:
    """``arguments`` is JSON text, or the plain text that stands in its place."""

    name: str
    arguments: str

    def __init__(self, name: str, arguments: Any) -> None:
        text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        object.__setattr__(self, "name", encodable(name))
        object.__setattr__(self, "arguments", encodable(text))


class UnusableAnswerError(AgentError):
    """Nothing can be made of an answer; ``fault`` is written for the model that gave it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """``said`` is for the user, ``thought`` for nobody; ``text`` is the answer as the model should see it."""

    thought: str
    said: str
    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call; ``arguments`` is JSON text, or the text that the model wrote instead."""

    thought: str
    name: str
    arguments: str
    text: str


@dataclass(frozen=True, slots=True)
class _Found:
    """An action, and where in the answer it stands."""

    action: Action
    start: int
    end: int


def read_answer(text: str, tools: Collection[str]) -> Reply | Call:
    """The step that ``text`` asks for; ``tools`` are the names of those that there are.

    Without any action it is a reply as a whole. Raises ``UnusableAnswerError``.
    """
    visible, hidden = split_thoughts(text)
    found = _marked(visible, tools) or _unmarked(visible)
    if found is None:
        said, thought = _without_thought(visible)
        if said.lower() in _NOTHING:
            raise UnusableAnswerError("it holds only a thought" if thought or hidden else "it is empty")
        return Reply(joined(hidden, thought), said, visible.strip())
    made_up = MADE_UP.search(visible, found.end)
    kept = visible[: made_up.start() if made_up else len(visible)].strip()
    thought = joined(hidden, _thought_in(visible[: found.start]))
    return step_of(found.action, tools, thought=thought, text=kept)


def step_of(action: Action, tools: Collection[str], *, thought: str, text: str) -> Reply | Call:
    """The reply or call that an action is; raises ``UnusableAnswerError`` for a reply that says nothing."""
    if action.name in tools or action.name.lower() != RESPOND:
        return Call(thought, action.name, action.arguments, text)
    said, inner = _without_thought(split_thoughts(said_in(action.arguments))[0])
    if said.lower() in _NOTHING:
        raise UnusableAnswerError('the action "respond" has no "content" that could be said')
    return Reply(joined(thought, inner), said, text)


def _marked(text: str, tools: Collection[str]) -> _Found | None:
    """The last usable action after an ``Action:``, before any made-up result."""
    found: _Found | None = None
    fault: UnusableAnswerError | None = None
    position = 0
    for _ in range(MOST_ACTIONS):
        marker = ACTION.search(text, position)
        if marker is None or (found and MADE_UP.search(text, found.end, marker.start())):
            break
        try:
            found = _action_at(text, marker, tools)
            position = found.end
        except UnusableAnswerError as error:
            fault = error
            position = marker.end()
    if found is None and fault is not None:
        raise fault
    return found


def _action_at(text: str, marker: re.Match[str], tools: Collection[str]) -> _Found:
    begin = marker.end()
    label = _LABEL.search(text, begin)
    stop = label.start() if label else len(text)
    brace = OBJECT.search(text, begin, stop)
    given = ACTION_INPUT.search(text, begin, brace.start() if brace else stop)
    if given:
        named, end = _named_with_input(text, text[begin : given.start()], given.end(), stop)
        return _Found(named, marker.start(), end)
    if _LIST.match(text, begin):
        raise UnusableAnswerError('there is a list after "Action:", not one JSON object')
    before = text[begin : brace.start() if brace else stop]
    name = _OPEN_FENCE.sub("", before).removesuffix("()").strip(_MARKS)
    known = name in tools or name.lower() == RESPOND
    if brace is None:
        if name in tools:
            return _Found(Action(name, "{}"), marker.start(), stop)
        raise UnusableAnswerError('there is no JSON object after "Action:"')
    value, end = _object(text, brace.start())
    action = action_of(value)
    if known and (action is None or action.name != name):
        action = Action(name, value)
    if action is None:
        raise UnusableAnswerError('the JSON object has no "name"')
    return _Found(action, marker.start(), end)


def _named_with_input(text: str, name: str, begin: int, stop: int) -> tuple[Action, int]:
    """An action in two parts: its name, and its arguments as an object or as plain text."""
    name = name.strip(_EDGES + "\"'()")
    if not name or len(name.split()) > 1:
        raise UnusableAnswerError('there is no name of a tool after "Action:"')
    fence = _FENCE.match(text, begin)
    start = fence.end() if fence else begin
    if text[start : start + 1] == "{":
        value, end = _object(text, start)
        return Action(name, value), end
    return Action(name, text[begin:stop].strip(_EDGES) or "{}"), stop


def _unmarked(text: str) -> _Found | None:
    """The action in an answer that has no ``Action:``; None where it has no JSON either."""
    if _LIST.match(text) and _LIST_ENDS.search(text[-20:]):
        raise UnusableAnswerError("it is a list, not one JSON object")
    found: _Found | None = None
    position = 0
    for _ in range(MOST_ACTIONS):
        brace = OBJECT.search(text, position)
        if brace is None or (found and MADE_UP.search(text, found.end, brace.start())):
            break
        value, position = _object(text, brace.start())
        action = action_of(value)
        if action is not None:
            found = _Found(action, brace.start(), position)
    if found is None and position > 0:
        raise UnusableAnswerError('the JSON object has no "name"')
    return found


def _object(text: str, start: int) -> tuple[dict[str, Any], int]:
    try:
        return read_object(text, start)
    except ValueError as error:
        raise UnusableAnswerError(str(error)) from None


def _thought_in(text: str) -> str:
    """The text before an action, without its labels and a fence that was opened for the action."""
    return THOUGHT.sub("", text).strip(_EDGES).removesuffix("```json").strip(_EDGES)


def _without_thought(text: str) -> tuple[str, str]:
    """The words for the user in ``text``, and the thoughts: from ``Thought:`` to ``Response:`` or the end."""
    text = text.strip()
    if not THOUGHT.search(text) and not SPEECH.match(text):
        return text, ""
    said: list[str] = []
    thoughts: list[str] = []
    position = 0
    part = said
    for label in _THOUGHT_OR_SPEECH.finditer(text):
        part.append(text[position : label.start()])
        part = thoughts if THOUGHT.match(label[0]) else said
        position = label.end()
    part.append(text[position:])
    return "\n".join(filter(None, (piece.strip() for piece in said))), joined(*thoughts)


def action_of(value: dict[str, Any]) -> Action | None:
    """The action that ``value`` is; None if it names none.

    Besides ``{"name", "arguments"}`` it may be the object of a native tool call (``{"function": {...}}``) or
    have the arguments beside the name.
    """
    for name in _NAMES:
        inner = value.get(name)
        if isinstance(inner, dict) and isinstance(inner.get("name"), str):
            return action_of(inner)
    named = next((key for key in _NAMES if isinstance(value.get(key), str) and value[key].strip()), None)
    if named is None:
        return None
    return Action(value[named].strip(), _arguments(value, named))


def _arguments(value: dict[str, Any], named: str) -> Any:
    if "arguments" in value:
        return {} if value["arguments"] is None else value["arguments"]
    for key in _ARGUMENTS:
        if isinstance(value.get(key), dict):
            return value[key]
    return {key: inner for key, inner in value.items() if key != named and key not in _ASIDES}


def said_in(arguments: str) -> str:
    """The text of the action ``respond``: its ``content``, another name for it, or the whole text.

    Empty if that cannot be known.
    """
    text = arguments.strip()
    if not text.startswith("{"):
        return text
    try:
        value, _ = read_object(text, 0)
    except ValueError:
        return ""
    key = next((key for key in _CONTENTS if value.get(key)), None)
    if key is None and len(value) == 1:
        key = next(iter(value))
    content = value.get(key) if key is not None else None
    return str(content) if isinstance(content, int | float) else text_of(content)
