"""The benchmark's tasks as rows."""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
import textwrap
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.types import openai_call
from reward_kit.agent.database import Database
from reward_kit.agent.rows.field_checks import MAX_ID_LENGTH
from reward_kit.agent.tau import PARTS, SIDES
from reward_kit.agent.tau.source import SourceError
from reward_kit.agent.tau.tau2.environment import UPDATE_DATA, Environment
from reward_kit.agent.tau.tau2.toolkit import DATABASE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from reward_kit.agent.base.types import Side
    from reward_kit.agent.tau.tau2.domain import Domain

Row = dict[str, Any]

MAX_STEPS = 100
"""Messages of the agent. The benchmark's limit, 200 of all sides, is kept by the reward."""
_ODD = re.compile(r"[^A-Za-z0-9._-]+")


def row_of(task: dict[str, Any], system_prompt: str, greeting: str, *, has_user_tools: bool) -> Row:
    """The row of a task; raises ``KeyError``, ``TypeError``, ``ValueError``, … for what is no task."""
    criteria = task.get("evaluation_criteria") or {}
    state = task.get("initial_state") or {}
    history = state.get("message_history") or []
    basis = criteria.get("reward_basis") or (("DB", "COMMUNICATE") if criteria else ())
    user_tools = task.get("user_tools")
    with_tools = has_user_tools and user_tools != []
    actions = criteria.get("actions")
    compared = [one.get("compare_args") for one in actions or ()]
    row: Row = {
        "id": row_id(str(task["id"])),
        "toolset": ".tools",
        "system_prompt": system_prompt,
        "sim_user_prompt": scenario_text(task["user_scenario"]),
        "sim_user_template": "file:user_with_tools.txt" if with_tools else None,
        "user_tools": user_tools if has_user_tools else None,
        "initial_messages": [*map(_message, history)] or [{"role": "assistant", "content": greeting}],
        "setup": [
            *_reads_to_log(actions or ()),
            *_data(state),
            *map(_function, state.get("initialization_actions") or ()),
        ],
        "actions": None if actions is None else [_call(one) for one in actions],
        "checks": _checks(criteria.get("env_assertions")),
        "outputs": criteria.get("communicate_info"),
        "criteria": criteria.get("nl_assertions"),
        "score_by": [PARTS[name] for name in basis],
        "ticket": task.get("ticket"),
        "max_steps": MAX_STEPS,
        "metadata": {
            "tau2_id": str(task["id"]),
            "compare_args": compared if any(one is not None for one in compared) else None,
            "required_documents": task.get("required_documents"),
        },
    }
    row["metadata"] = {key: value for key, value in row["metadata"].items() if value is not None}
    kept = ("actions", "checks", "user_tools")  # empty is not the same as absent
    return {key: value for key, value in row.items() if value or (value is not None and key in kept)}


def row_id(name: str) -> str:
    """A task's id as the id of a row: as it is where that is allowed, else a readable spelling."""
    spelled = _ODD.sub(".", name).strip(".-")
    if spelled == name and len(name) <= MAX_ID_LENGTH:
        return name
    if len(spelled) <= MAX_ID_LENGTH - 9 and "." in spelled:
        return spelled
    return f"{spelled[: MAX_ID_LENGTH - 9]}.{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def rows_by_file(
    rows: Mapping[str, Row], splits: Mapping[str, Any] | None, place: str, only: str | None
) -> dict[str, list[Row]]:
    """The rows by dataset: ``task.jsonl`` has the split ``base``, or ``only`` that one.

    ``rows`` are by the benchmark's id.
    """
    known = {"base": list(rows), **(splits or {})}
    if only is not None:
        if only not in known:
            raise SourceError(f"{place} has no split {only!r}. It has: {', '.join(known)}")
        known = {"base": known[only]}
    found = {}
    for split, ids in known.items():
        if not isinstance(ids, list) or not re.fullmatch(r"\w+", split):
            raise SourceError(f"the splits beside {place} are wrong. Expected: a list of ids for each split")
        chosen = {str(key) for key in ids}
        if absent := sorted(chosen - rows.keys()):
            raise SourceError(f"the split {split!r} names the task {absent[0]!r}, which {place} lacks")
        name = "task.jsonl" if split == "base" else f"task_{split}.jsonl"
        found[name] = [row for key, row in rows.items() if key in chosen]
    return found


def scenario_text(scenario: dict[str, Any]) -> str:
    """The scenario as the benchmark shows it to its simulated user."""
    persona, instructions = scenario.get("persona"), scenario["instructions"]
    lines = [] if persona is None else ["Persona:", _indented(persona)]
    words = instructions if isinstance(instructions, str) else _instructions(instructions)
    return "\n".join([*lines, "Instructions:", _indented(words)])


def _instructions(parts: dict[str, Any]) -> str:
    lines = [f"Domain: {parts['domain']}"]
    for name in ("reason_for_call", "known_info", "unknown_info", "task_instructions"):
        words = parts.get(name) if name.endswith("known_info") else parts[name]
        if words is not None:
            lines.append(f"{name.replace('_', ' ').capitalize()}:\n{_indented(words)}")
    return "\n".join(lines)


def _indented(text: str) -> str:
    return textwrap.indent(text, "\t")


def _call(call: dict[str, Any], name: str = "name", side: str = "requestor") -> dict[str, Any]:
    """A call as rows have it, in which ``by`` is left out for the agent."""
    by = {} if SIDES[call.get(side, "assistant")] == "agent" else {"by": "user"}
    return {"name": call[name], "arguments": call["arguments"], **by}


_function = partial(_call, name="func_name", side="env_type")


def _data(state: dict[str, Any]) -> list[dict[str, Any]]:
    data = state.get("initialization_data") or {}
    return [
        _call({"name": UPDATE_DATA, "arguments": data[name], "requestor": side})
        for name, side in (("agent_data", "assistant"), ("user_data", "user"))
        if data.get(name) is not None
    ]


def _reads_to_log(actions: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The tools that only read and are logged in banking_knowledge all the same: those of the gold calls."""
    called = [one["arguments"] for one in actions if one["name"] == "call_discoverable_agent_tool"]
    names = {str(one["agent_tool_name"]) for one in called if one.get("agent_tool_name")}
    return [{"name": "set_read_log_allowlist", "arguments": {"allowlist": sorted(names)}}] if names else []


def _checks(assertions: list[dict[str, Any]] | None) -> list[dict[str, Any]] | None:
    if assertions is None:
        return None
    return [
        {**_function(one), **({} if one.get("assert_value", True) else {"is": False})} for one in assertions
    ]


def _message(message: dict[str, Any]) -> dict[str, Any]:
    if message["role"] == "tool":
        return {"role": "tool", "tool_call_id": message["id"], "content": message["content"]}
    calls = [
        openai_call(call["id"], call["name"], json.dumps(call["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    said = {"role": message["role"], "content": message.get("content")}
    return {**said, "tool_calls": calls} if calls else said


# --- gold calls that fail


def mark_refused(domain: Domain, seed: str, rows: Iterable[dict[str, Any]]) -> None:
    """Mark the gold calls that fail with ``"refused": true``; they are made in memory.

    The benchmark's tasks have some, and ignore it.
    """
    with (
        tempfile.TemporaryDirectory() as folder,
        Database.seed(Path(folder) / "base.db", seed, origin="seed.sql") as base,
    ):
        db: Any = base.read_only()
        DATABASE.set(db)
        for row in rows:
            environment = Environment(domain, db, writes=True)
            for call in row.get("setup") or ():
                environment.set_up(call["name"], call.get("by", "agent"), call["arguments"])
            for message in row["initial_messages"]:
                side: Side = "user" if message["role"] == "user" else "agent"
                for call in message.get("tool_calls") or ():
                    function = call["function"]
                    environment.respond(function["name"], side, json.loads(function["arguments"]))
            for action in row.get("actions") or ():
                by = action.get("by", "agent")
                if environment.respond(action["name"], by, action["arguments"])[1]:
                    action["refused"] = True
