"""From the JSON of one row to a ``TaskRow``, or to what is wrong with it in words that name the mending."""

from __future__ import annotations

import difflib
from functools import lru_cache
from typing import Any

from pydantic import ValidationError

from reward_kit.agent.bundles.message_check import Way, show
from reward_kit.agent.bundles.task_row import INJECTED, TaskRow

FieldFault = tuple[str, str]
"""(field, what is wrong): ``("actions[2].name", "got 3 (a whole number), expected …")``."""

_KNOWN = tuple(TaskRow.model_fields)

_INSTEAD = {"messages": 'the start of the conversation is "initial_messages"'}

_EXPECTED: dict[Way, str] = {
    ("id",): 'a string of letters, digits, ".", "_" and "-"',
    ("toolset",): 'the import path of the tools module, such as "my_task.tools"',
    ("initial_messages",): "a list of messages",
    ("reward",): 'a string "module:function"',
    ("seed_sql",): 'SQL text, or "file:NAME" for a file beside the dataset',
    ("end_goal_sql",): "the text of a query whose first value is true on success",
    ("system_prompt",): 'text, or "file:NAME" for a file beside the dataset',
    ("sim_user_prompt",): 'text, or "file:NAME" for a file beside the dataset',
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


def check_row(data: Any) -> tuple[TaskRow | None, list[FieldFault]]:
    """The row that ``data`` (parsed JSON) describes, or every fault that it has.

    ``null`` counts as leaving a field out.
    """
    if not isinstance(data, dict):
        more = "; write each row on a line of its own, without [ and ]" if isinstance(data, list) else ""
        return None, [("", f"expected a JSON object, got {show(data)}{more}")]
    faults = [
        (name, f"is a name of what the rollout gives the reward; {_INSTEAD.get(name, 'choose another')}")
        for name in data
        if name in INJECTED
    ]
    try:
        row = TaskRow.model_validate(
            {name: v for name, v in data.items() if v is not None or name not in _KNOWN}
        )
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
        remedy = (
            'write "arguments"'
            if way[-1] in {"kwargs", "args", "argument", "parameters", "input"}
            else "leave it out"
        )
        return [(field_name(way), f'an action has "name" and "arguments" only; {remedy}')]
    expected = _EXPECTED.get(tuple("*" if isinstance(part, int) else part for part in way), error["msg"])
    if error["type"] in {"missing", "missing_argument"}:
        return [(field_name(way), f"is missing, expected {expected}")]
    return [(field_name(way), f"got {show(error['input'])}, expected {expected}")]


def field_name(way: Way) -> str:
    """``("actions", 2, "name")`` as it is written in messages: ``actions[2].name``."""
    text = ""
    for part in way:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@lru_cache(maxsize=1024)
def likely_misspelling(name: str) -> str | None:
    """The known field that ``name`` was probably meant to be."""
    if name in _KNOWN:
        return None
    plain = name.lower().replace("-", "_").strip("_")
    close = difflib.get_close_matches(plain, _KNOWN, n=1, cutoff=0.8)
    return close[0] if close else None
