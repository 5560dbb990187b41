"""References in gold actions to the result of an earlier action.

Some tools answer with an identifier that they make up (``hex(randomblob(4))``), so a ground-truth call that
needs it cannot write it down. Instead it refers to it::

    "actions": [
        {"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Alice"}},
        {"name": "pay_booking", "arguments": {"booking_id": {"$result": [0, "booking_id"]}}}
    ]

A reference is an object whose only key is ``$result``. Its value is a list: the position of an earlier action
(from 0), then the path into that action's JSON result: object keys and array positions. The position alone
refers to the whole result as the model sees it, a text.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.strict_json import equal_values
from reward_kit.agent.base.text import cut
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

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


def reference_faults(
    arguments: Any, position: int, way: tuple[str | int, ...] = ()
) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """The faults of references in the arguments of action ``position``: (path, fault)."""
    if is_reference(arguments):
        fault = _reference_fault(arguments, position)
        if fault:
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
