"""The tasks of tau2-bench as rows; checkout and Inspect's wheel have the same JSON."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

from .source import Row, SourceError

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_STEPS = 100
"""The benchmark's limit is 200 messages of agent, user and tools; the agent writes about half of them."""

_ID = re.compile(r"[A-Za-z0-9_-]{1,60}")


def tau2_rows(
    tasks: list[Any], splits: Mapping[str, Any] | None, place: str, greeting: str | None = None
) -> dict[str, list[Row]]:
    """Return the rows by file: ``task.jsonl`` has the split ``base``, or all tasks without splits.

    ``greeting`` is the agent's first line, if the agent speaks first.
    """
    opening = [{"role": "assistant", "content": greeting}] if greeting else []
    rows: dict[str, Row] = {}
    for index, task in enumerate(tasks):
        where = f"{place}: task {index}"
        try:
            key, row = _row(task, where)
        except (KeyError, TypeError, AttributeError) as error:
            raise SourceError(
                f"{where} cannot be read ({type(error).__name__}: {error}). Expected there: a task with "
                "id, user_scenario and evaluation_criteria"
            ) from error
        if key in rows:
            raise SourceError(f"{where} has the id {key!r} of an earlier task")
        rows[key] = {**row, "initial_messages": opening}
    if not rows:
        raise SourceError(f"{place} has no tasks")
    if splits is None:
        return {"task.jsonl": list(rows.values())}
    return {
        "task.jsonl" if name == "base" else f"task_{name}.jsonl": _chosen(rows, ids, name, place)
        for name, ids in {"base": list(rows), **splits}.items()
    }


def _chosen(rows: Mapping[str, Row], ids: Any, split: str, place: str) -> list[Row]:
    if not _ID.fullmatch(split) or not isinstance(ids, list):
        raise SourceError(f"the splits beside {place} are wrong. Expected: a list of ids for each split")
    chosen = {str(key) for key in ids}
    absent = sorted(chosen - rows.keys())
    if absent:
        raise SourceError(f"the split {split!r} names the task {absent[0]!r}, which {place} lacks")
    return [row for key, row in rows.items() if key in chosen]


def _row(task: dict[str, Any], where: str) -> tuple[str, Row]:
    key = str(task["id"])
    if not _ID.fullmatch(key):
        raise SourceError(f"{where} has the id {key!r}. Expected there: letters, digits, _ and -")
    if task.get("initial_state"):
        raise SourceError(f"{where} has an initial state, which a row of this bundle cannot express")
    criteria = task["evaluation_criteria"]
    basis = criteria.get("reward_basis")
    told, assertions = criteria.get("communicate_info") or [], criteria.get("nl_assertions") or []
    return key, {
        "id": f"retail.tau2.{int(key):03}" if key.isdecimal() else f"retail.tau2.{key}",
        "system_prompt": "file:system_prompt.md",
        "sim_user_prompt": scenario_text(task["user_scenario"]),
        "actions": [_action(action, where) for action in criteria["actions"] or []],
        "outputs": told if _counts(basis, assertions) else [],
        "max_steps": MAX_STEPS,
        "metadata": {
            "tau2_id": key,
            "reward_basis": basis,
            "communicate_info": told,
            "nl_assertions": assertions,
            "description": task.get("description"),
            "issues": task.get("issues"),
        },
    }


def _counts(basis: list[str] | None, assertions: list[Any]) -> bool:
    """Return True if the reward counts ``communicate_info``.

    Early tasks have no basis, which means both data and texts. In later ones a model judges sentences with
    about the same content: the texts replace the sentences.
    """
    return basis is None or "COMMUNICATE" in basis or ("NL_ASSERTION" in basis and bool(assertions))


def _action(action: dict[str, Any], where: str) -> dict[str, Any]:
    if action.get("requestor", "assistant") != "assistant":
        raise SourceError(f"{where} has an action of the user, which a row of this bundle cannot express")
    return {"name": action["name"], "arguments": dict(action["arguments"])}


def scenario_text(scenario: dict[str, Any]) -> str:
    """Return the scenario as the benchmark shows it to its simulated user."""
    persona, instructions = scenario.get("persona"), scenario["instructions"]
    lines = [] if persona is None else ["Persona:", _indented(persona)]
    words = instructions if isinstance(instructions, str) else _instructions(instructions)
    return "\n".join([*lines, "Instructions:", _indented(words)])


def _instructions(parts: dict[str, Any]) -> str:
    titles = {
        "reason_for_call": "Reason for call",
        "known_info": "Known info",
        "unknown_info": "Unknown info",
        "task_instructions": "Task instructions",
    }
    optional = ("known_info", "unknown_info")
    lines = [f"Domain: {parts['domain']}"]
    for name, title in titles.items():
        words = parts.get(name) if name in optional else parts[name]
        if words is not None:
            lines.append(f"{title}:\n{_indented(words)}")
    return "\n".join(lines)


def _indented(text: str) -> str:
    return textwrap.indent(text, "\t")
