"""The text protocol of ``act`` and ``react``: an answer is a tool call, or words for the user.

The form that is asked for is a thought (``Thought:``), then ``Action:`` and one JSON object with ``name`` and
``arguments``; the action ``respond`` speaks to the user. docs/agents.md lists the deviations that are read as
well.
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
MOST_ACTIONS = 30
"""Actions of one answer that are looked at; each costs a pass over the text behind it."""

# A label begins a line, perhaps as a heading, list item or in bold, perhaps numbered.
_BEGIN = r"^[ \t>#*_`-]*"
_END = r"(?:[ \t]+\d+)?[*_` \t]*:[*_`]*"
_FLAGS = re.IGNORECASE | re.MULTILINE
_OBJECT = r"\{\s*(?:\}|[\"']?\w[\w-]*[\"']?\s*:)"

OBJECT = re.compile(_OBJECT)
ACTION = re.compile(rf"{_BEGIN}action{_END}|\baction{_END}(?=\s*(?:```\w*\s*)?{_OBJECT})", _FLAGS)
ACTION_INPUT = re.compile(rf"{_BEGIN}action[ _]input{_END}", _FLAGS)
THOUGHT = re.compile(rf"{_BEGIN}thoughts?{_END}|(?-i:\bThoughts?:)", _FLAGS)
MADE_UP = re.compile(rf"{_BEGIN}(?:api output|observation|user){_END}", _FLAGS)
SPEECH = re.compile(rf"{_BEGIN}(?:(?:final |user )?(?:answer|response|reply)|respond){_END}", _FLAGS)
_LABEL = re.compile(rf"{THOUGHT.pattern}|{ACTION.pattern}|{MADE_UP.pattern}", _FLAGS)
_THOUGHT_OR_SPEECH = re.compile(rf"({THOUGHT.pattern}|{SPEECH.pattern})", _FLAGS)
_FENCE = re.compile(r"```\w*")
_LIST = re.compile(r"\s*(?:```\w*\s*)?\[")
_NOTHING = frozenset({"", "null", "none", "{}", "[]"})
_MARKS = " \t\r\n*`#>(:\"'"


class UnusableAnswerError(AgentError):
    """Nothing can be made of an answer; ``fault`` is written for the model that gave it."""


@dataclass(frozen=True, slots=True)
class TextReply:
    """``said`` is for the user, ``thought`` hidden; ``text`` is the answer as the model should see it."""

    thought: str
    said: str
    text: str


@dataclass(frozen=True, slots=True)
class TextCall:
    """A tool call; ``arguments`` is JSON text, or the text that the model wrote instead."""

    thought: str
    name: str
    arguments: str
    text: str


@dataclass(frozen=True, slots=True)
class _Action:
    """An action, and its place in the answer."""

    name: str
    arguments: Any
    start: int
    end: int


def read_answer(text: str, tools: Collection[str]) -> TextReply | TextCall:
    """Return the step that ``text`` asks for; ``tools`` are the names of those that there are.

    Without any action it is a reply as a whole. Raises ``UnusableAnswerError``.
    """
    visible, hidden = split_thoughts(text)
    action = _last_action(visible, tools)
    if action is None:
        said, thought = _without_thought(visible)
        if said.lower() in _NOTHING:
            raise UnusableAnswerError("it holds only a thought" if thought or hidden else "it is empty")
        return TextReply(joined(hidden, thought), said, visible.strip())
    made_up = MADE_UP.search(visible, action.end)
    kept = visible[: made_up.start() if made_up else len(visible)].strip()
    before = THOUGHT.sub("", visible[: action.start]).strip(_MARKS).removesuffix("```json")
    thought = joined(hidden, before.strip(_MARKS))
    return step_of(action.name, action.arguments, tools, thought=thought, text=kept)


def step_of(
    name: str, arguments: Any, tools: Collection[str], *, thought: str, text: str
) -> TextReply | TextCall:
    """Return the reply or call that an action is; ``arguments`` is a JSON value, or JSON text.

    Raises ``UnusableAnswerError`` for a reply that says nothing.
    """
    if name in tools or name.lower() != RESPOND:
        given = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        return TextCall(thought, encodable(name), encodable(given), text)
    said, inner = _without_thought(split_thoughts(_said_in(arguments))[0])
    if said.lower() in _NOTHING:
        raise UnusableAnswerError('the action "respond" has no "content" that could be said')
    return TextReply(joined(thought, inner), encodable(said), text)


_CALLS = re.compile("arguments|parameters")


def _last_action(text: str, tools: Collection[str]) -> _Action | None:
    """Return the last usable action before any made-up result; None without ``Action:`` and JSON."""
    begins = ACTION if ACTION.search(text) else OBJECT
    if begins is OBJECT and _LIST.match(text) and text.rstrip(" \t\r\n`").endswith("]"):
        raise UnusableAnswerError("it is a list, not one JSON object")
    found: _Action | None = None
    fault: UnusableAnswerError | None = None
    position = 0
    for _ in range(MOST_ACTIONS):
        begin = begins.search(text, position)
        if begin is None or (found and MADE_UP.search(text, found.end, begin.start())):
            break
        try:
            start = begin.end() if begins is ACTION else begin.start()
            found = _action_at(text, begin.start(), start, tools)
            position = found.end
        except UnusableAnswerError as error:
            fault = error
            position = begin.end()
    if found is None and fault is not None:
        raise fault
    if found is not None and begins is OBJECT and not _CALLS.search(text):
        return found if found.name in (*tools, RESPOND) else None  # else it is data in a reply
    return found


def _action_at(text: str, start: int, begin: int, tools: Collection[str]) -> _Action:
    """Read ``{"name": ..., "arguments": ...}``, or a tool's name with its arguments behind it."""
    if _LIST.match(text, begin):
        raise UnusableAnswerError('there is a list after "Action:", not one JSON object')
    label = _LABEL.search(text, begin)
    stop = label.start() if label else len(text)
    brace = OBJECT.search(text, begin, stop)
    before = text[begin : brace.start() if brace else stop]
    named, *with_input = ACTION_INPUT.split(before)
    name = _FENCE.sub("", named).strip(_MARKS).removesuffix("()").strip(_MARKS)
    is_named = name in tools or name.lower() == RESPOND or (bool(with_input) and len(name.split()) == 1)
    if brace is None:
        if name in tools:
            return _Action(name, {}, start, stop)
        raise UnusableAnswerError('there is no JSON object after "Action:"')
    try:
        value, end = read_object(text, brace.start())
    except ValueError as error:
        raise UnusableAnswerError(str(error)) from None
    inner = value.get("name")
    if is_named and inner != name:
        return _Action(name, value, start, end)
    if not isinstance(inner, str) or not inner.strip():
        raise UnusableAnswerError('the JSON object has no "name"')
    return _Action(inner.strip(), _arguments(value), start, end)


def _arguments(value: dict[str, Any]) -> Any:
    for key in ("arguments", "parameters"):
        if key in value:
            return {} if value[key] is None else value[key]
    return {key: inner for key, inner in value.items() if key != "name"}


def _without_thought(text: str) -> tuple[str, str]:
    """Return the words for the user, and the thoughts: from ``Thought:`` to ``Response:`` or the end."""
    text = text.strip()
    if not THOUGHT.search(text) and not SPEECH.match(text):
        return text, ""
    first, *labelled = _THOUGHT_OR_SPEECH.split(text)
    said = [first.strip()]
    thoughts: list[str] = []
    for label, part in zip(labelled[::2], labelled[1::2], strict=True):
        (thoughts if THOUGHT.match(label) else said).append(part.strip())
    return "\n".join(filter(None, said)), joined(*thoughts)


def _said_in(arguments: Any) -> str:
    """Return the text of ``respond``: its ``content``, else its first argument, or plain text."""
    if isinstance(arguments, str):
        text = arguments.strip()
        if not text.startswith("{"):
            return text
        try:
            arguments, _ = read_object(text, 0)
        except ValueError:
            return ""
    if isinstance(arguments, dict):
        arguments = arguments.get("content", next(iter(arguments.values()), None))
    return str(arguments) if isinstance(arguments, int | float) else text_of(arguments)
