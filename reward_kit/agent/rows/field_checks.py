"""Checks of fields of a row: right values in words, messages, and references in gold actions.

Messages are those that the strictest providers take. A reference in a gold action (docs/bundle.md) is an
object whose only key is ``$result``: the position of an earlier action (from 0), then the path into its JSON
result. The position alone refers to the whole result as the model sees it, a text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from reward_kit.agent.base.encoding import equal_values
from reward_kit.agent.base.option import MAX_ROLLOUTS
from reward_kit.agent.base.text import FILE, cut, tamed
from reward_kit.agent.base.types import SIDES
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import Message

Fault = tuple[tuple[str | int, ...], str]
"""A fault, and the path to it inside the value that was checked: object keys and list positions."""

ROLES = ("system", "user", "assistant", "tool")
CALLERS = ("assistant", "user")
"""Roles of messages with tool calls: the agent's and the user's own."""
_CALL = '{"id": "…", "type": "function", "function": {"name": "…", "arguments": "text of a JSON object"}}'
_KINDS: dict[type, str] = {
    str: "a string",
    bool: "a boolean",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
}


def message_faults(messages: Sequence[Any]) -> Iterator[Fault]:
    """The faults of a conversation: of its messages first, then of the order of tool calls and results."""
    single = [
        ((index, *way), fault)
        for index, message in enumerate(messages)
        for way, fault in _single_faults(message)
    ]
    yield from single or _order_faults(messages)


def split_opening(messages: Iterable[Message]) -> tuple[list[Message], dict[int, list[Message]]]:
    """The messages that the agent sees; and the user's calls with their answers, by the number before them.

    The latter are as in ``Trace.user_messages``: those of the user's model, whose role is the assistant.
    """
    seen: list[Message] = []
    own: dict[int, list[Message]] = {}
    calls: set[str] = set()
    for message in messages:
        if message["role"] == "user" and message.get("tool_calls"):
            calls = {call["id"] for call in message["tool_calls"]}
            own.setdefault(len(seen), []).append({**message, "role": "assistant"})
        elif message["role"] == "tool" and message["tool_call_id"] in calls:
            own[len(seen)].append(message)
        else:
            seen.append(message)
            calls = set()
    return seen, own


def show(value: Any, limit: int = 60) -> str:
    """A JSON value for a message: ``"four" (a string)``; long ones are cut."""
    if value is None:
        return "null"
    text = tamed(cut(json.dumps(value, ensure_ascii=False, default=repr), limit))
    kind = _KINDS.get(type(value))
    return f"{text} ({kind})" if kind else text


def _single_faults(message: Any) -> Iterator[Fault]:
    role = message.get("role") if isinstance(message, dict) else None
    if role not in ROLES:
        expected = f'a message such as {{"role": "user", "content": "…"}} with a role of {", ".join(ROLES)}'
        yield (), f"expected {expected}; got {show(message)}"
        return
    content, calls = message.get("content"), message.get("tool_calls")
    if content is None and (role not in CALLERS or not calls):
        yield ("content",), "there is none; only a message with tool calls can do without"
    elif content is not None and not isinstance(content, str) and not _are_parts(content):
        expected = 'text or a list of parts such as {"type": "text", "text": "…"}'
        yield ("content",), f"expected {expected}, got {show(content)}"
    if role == "tool" and not _is_name(message.get("tool_call_id")):
        yield ("tool_call_id",), "a tool message names the call it answers, as text"
    if role not in CALLERS and calls:
        yield ("tool_calls",), f"only agent (assistant) and user can call tools, this is from {role!r}"
    elif calls is not None and (not isinstance(calls, list) or not calls or not all(map(_is_call, calls))):
        yield ("tool_calls",), f"expected a list of tool calls of the form {_CALL}, got {show(calls)}"


def _are_parts(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(part, dict)
        and _is_name(part.get("type"))
        and (part["type"] != "text" or isinstance(part.get("text"), str))
        for part in value
    )


def _is_call(value: Any) -> bool:
    function = value.get("function") if isinstance(value, dict) else None
    return (
        isinstance(function, dict)
        and _is_name(value.get("id"))
        and _is_name(function.get("name"))
        and _is_json_object(function.get("arguments"))
    )


def _order_faults(messages: Sequence[dict[str, Any]]) -> Iterator[Fault]:
    open_calls: list[str] = []
    for index, message in enumerate(messages):
        if message["role"] == "tool":
            call = message["tool_call_id"]
            if call in open_calls:
                open_calls.remove(call)
            else:
                yield (index, "tool_call_id"), f"no tool call {call!r} is waiting for an answer here"
            continue
        if open_calls:
            yield (index,), f"the tool call {open_calls[0]!r} before it has no answer"
        open_calls = [call["id"] for call in message.get("tool_calls") or ()]
        if len(set(open_calls)) < len(open_calls):
            yield (index, "tool_calls"), "two tool calls have the same id"
    if open_calls:
        yield (len(messages) - 1,), f"the tool call {open_calls[0]!r} has no answer"


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_json_object(value: Any) -> bool:
    try:
        return isinstance(value, str) and isinstance(json.loads(value), dict)
    except (ValueError, RecursionError):
        return False


# -- references in gold actions

REFERENCE = "$result"


class ToNothing(dict[str, Any]):
    """A reference to the result of an action that was not done: no value equals it."""


def is_reference(value: Any) -> bool:
    """True if ``value`` is meant as a reference (it may still be faulty)."""
    return isinstance(value, dict) and REFERENCE in value


def resolve_references(value: Any, results: Sequence[str]) -> Any:
    """A copy of ``value``, the arguments of an action, with every reference replaced by its value.

    ``results`` are the texts with which the tools answered the earlier actions. Raises ``BundleError`` for a
    reference to no value.
    """
    if is_reference(value):
        return _look_up(value[REFERENCE], results)
    if isinstance(value, dict):
        return {key: resolve_references(item, results) for key, item in value.items()}
    if isinstance(value, list):
        return [resolve_references(item, results) for item in value]
    return value


def arguments_match(gold: Any, actual: Any) -> bool:
    """True for ``equal_values``; a reference in ``gold`` equals any value, a ``ToNothing`` none."""
    if is_reference(gold):
        return not isinstance(gold, ToNothing)
    if isinstance(gold, dict) and isinstance(actual, dict):
        return gold.keys() == actual.keys() and all(arguments_match(gold[key], actual[key]) for key in gold)
    if isinstance(gold, list) and isinstance(actual, list):
        return len(gold) == len(actual) and all(map(arguments_match, gold, actual))
    return equal_values(gold, actual)


def reference_faults(arguments: Any, position: int, way: tuple[str | int, ...] = ()) -> Iterator[Fault]:
    """The faults of references in the arguments of action ``position``: (path, fault)."""
    if is_reference(arguments):
        if fault := _reference_fault(arguments, position):
            yield way, fault
    elif isinstance(arguments, dict | list):
        for key, value in arguments.items() if isinstance(arguments, dict) else enumerate(arguments):
            if isinstance(value, dict | list):
                yield from reference_faults(value, position, (*way, key))


def _reference_fault(value: Mapping[str, Any], position: int) -> str | None:
    path = value[REFERENCE]
    if len(value) > 1:
        return f'a "{REFERENCE}" object has no other keys'
    if not isinstance(path, list) or not path:
        return f'expected "{REFERENCE}" to be a list such as [0, "booking_id"]'
    if type(path[0]) is not int or not 0 <= path[0] < position:
        which = f"0 to {position - 1}" if position else "there is none before the first"
        return f'"{REFERENCE}" begins with an earlier action\'s position ({which}), got {json.dumps(path[0])}'
    for step in path[1:]:
        if not isinstance(step, str) and (type(step) is not int or step < 0):
            return f'"{REFERENCE}" continues with object keys and array positions, got {json.dumps(step)}'
    return None


def _look_up(path: list[Any], results: Sequence[str]) -> Any:
    position, *way = path
    if position >= len(results):
        raise BundleError(f"gold reference {json.dumps(path)}: actions[{position}] has no result yet")
    text = results[position]
    if not way:
        return text
    try:
        value: Any = json.loads(text)
    except ValueError:
        value = None
    for step in way:
        try:
            value = value[step] if isinstance(value, dict | list) else {}[step]
        except (LookupError, TypeError):
            answered = f"answered {cut(text, 200)!r}"
            if isinstance(value, dict):
                answered = f"answers no {json.dumps(step)} (it has {cut(', '.join(value), 200)})"
            fault = f"gold reference {json.dumps(path)}: actions[{position}] {answered}"
            raise BundleError(fault) from None
    return value


# -- values in words

MAX_ID_LENGTH = 128
RESERVED_IDS = frozenset({".", "..", "evals", ".bases", ".cache", ".gitignore"})
"""Folders of the output directory that cannot belong to a row."""
_RESERVED = f"{', '.join(sorted(RESERVED_IDS))} are taken in the output directory"
Part = Literal["data", "checks", "calls", "outputs", "criteria"]
PARTS: dict[Part, tuple[str, ...]] = {
    "data": ("actions",),
    "checks": ("checks",),
    "calls": ("required_calls", "forbidden_calls", "actions"),
    "outputs": ("outputs",),
    "criteria": ("criteria",),
}
"""The words of ``score_by``, and the fields of which each needs one."""
_FILE_TEXT = f'text, or "{FILE}NAME" for a file beside the dataset'
EXPECTED = {
    "id": f'a folder name of at most {MAX_ID_LENGTH} letters, digits, ".", "_", "-" (not first); {_RESERVED}',
    "toolset": 'the import path of the tools module, such as "my_task.tools" or ".tools"',
    "initial_messages": "a list of messages",
    "reward": 'a string "module:function"',
    "seed_sql": f"SQL {_FILE_TEXT}",
    "end_goal_sql": "the SQL itself of a query whose first value is true on success",
    "system_prompt": _FILE_TEXT,
    "sim_user_prompt": _FILE_TEXT,
    "sim_user_template": f"text with {{instruction}} in it: {_FILE_TEXT}",
    "n_rollouts": f"a whole number >= 1, at most {MAX_ROLLOUTS}",
    "actions": 'a list of {"name", "arguments"} objects',
    "actions[]": 'an object {"name": "…", "arguments": {…}}',
    "actions[].name": "the name of a tool",
    "actions[].arguments": "an object with the tool's arguments",
    "actions[].refused": "true if the tool is meant to refuse the call",
    "actions[].by": '"agent" or "user"',
    "setup": 'a list of {"name", "arguments", "by"} objects',
    "setup[]": 'an object {"name": "…", "arguments": {…}}',
    "setup[].name": "the name of a function registered with @R.setup",
    "setup[].arguments": "an object with the function's arguments",
    "setup[].refused": "true or false; it has no effect",
    "setup[].by": '"agent" or "user"',
    "checks": "a list of checks",
    "checks[]": 'the text of a query, or {"name", "arguments", "by", "is"} for a function',
    "outputs": "a list of strings",
    "outputs[]": "a string",
    "required_calls": "a list of tool calls",
    "forbidden_calls": "a list of tool calls",
    "criteria": "a list of sentences",
    "criteria[]": "a sentence",
    "judge_model": "the name of a model, such as openai/gpt-4o",
    "score_by": f"a list of at least one of {', '.join(PARTS)}",
    "score_by[]": f"one of {', '.join(PARTS)}",
    "not_compared": 'a list of "table.column", "*.column" or "table"',
    "not_compared[]": '"table.column", "*.column" or "table"',
    "max_steps": "a whole number >= 1",
    "now": 'an ISO 8601 time such as "2025-05-19T09:00:00"',
    "metadata": "an object",
    "ticket": _FILE_TEXT,
    "user_toolset": 'the import path of the module with the user\'s tools, such as ".user_tools"',
    "user_tools": "a list of names of the user's tools that the user has in this row",
    "user_tools[]": "the name of a tool of the user",
    "toolset_outside": "true if the tools lie outside of the bundle's folder",
}
"""The right value of each field, in words."""


# -- checks and calls that a row names


def check_faults(checks: list[Any]) -> Iterator[Fault]:
    """The faults of a row's ``checks``."""
    for position, check in enumerate(checks):
        given = check if isinstance(check, dict) else {}
        if isinstance(check, str) and check.strip():
            continue
        if (
            not given.keys() <= {"name", "arguments", "by", "is"}
            or not isinstance(given.get("name"), str)
            or not isinstance(given.get("arguments", {}), dict)
            or given.get("by", "agent") not in SIDES
        ):
            yield (position,), f"got {show(check)}, expected {EXPECTED['checks[]']}"


def call_name(call: Any) -> Any:
    """The tool of a call in a row: ``"name"`` or ``{"name": …, "arguments": …}``."""
    return call.get("name") if isinstance(call, dict) and call.keys() <= {"name", "arguments", "by"} else call


def call_faults(calls: list[Any]) -> Iterator[Fault]:
    """The faults of calls that a row requires or forbids."""
    for position, call in enumerate(calls):
        given = call if isinstance(call, dict) else {}
        name, arguments, by = call_name(call), given.get("arguments", {}), given.get("by", "agent")
        if not isinstance(name, str) or not name or not isinstance(arguments, dict) or by not in SIDES:
            yield (position,), f"got {show(call)}, expected the name of a tool or {EXPECTED['actions[]']}"
