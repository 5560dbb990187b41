"""The right value of each field of a row, in words for messages and for editors."""

from __future__ import annotations

from typing import Literal

from reward_kit.agent.base.option import MAX_ROLLOUTS
from reward_kit.agent.base.text import FILE

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
