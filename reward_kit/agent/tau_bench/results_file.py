"""An evaluation as a results file in tau-bench's layout, which that benchmark's scripts read.

The file is a JSON list with an object for each rollout: ``task_id``, ``reward``, ``info``, ``traj`` and
``trial``, trial by trial. ``info`` holds the task, where the last observation came from, the simulated user's
cost and how the reward came about; for a rollout without a reward, which counts as failed there, the error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.failures import missing_outputs
from reward_kit.agent.outcome import replies
from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.results import EvaluationResult
    from reward_kit.agent.runs.rollout_record import RolloutRecord

CUT_OFF = frozenset({"max_steps", "timeout", "budget"})
"""Where a conversation is cut off, tau-bench does not come to computing a reward."""
INDENT = 2


def results_parts(result: EvaluationResult, numbers: Mapping[str, int]) -> Iterator[bytes]:
    """The file piece by piece, one trajectory in memory at a time.

    ``numbers`` are the task ids of the rows (``task_numbers``); rows that are not among them, because the
    dataset has them no more, get those that follow.
    """
    numbers = _all_numbered(result, numbers)
    outcomes = sorted(result.outcomes, key=lambda outcome: outcome.index)
    yield b"["
    for place, outcome in enumerate(outcomes):
        entry = json.dumps(_entry(result, outcome, numbers[outcome.row_id]), indent=INDENT, default=str)
        indented = "\n".join(" " * INDENT + line for line in entry.splitlines())
        yield (",\n" if place else "\n").encode() + indented.encode("utf-8", "replace")
    yield b"\n]\n"


def _all_numbered(result: EvaluationResult, numbers: Mapping[str, int]) -> dict[str, int]:
    known = dict(numbers)
    for row in result.rows:
        known.setdefault(row.row_id, max(known.values(), default=-1) + 1)
    return known


def _entry(result: EvaluationResult, outcome: RolloutOutcome, number: int) -> dict[str, Any]:
    try:
        record = load_rollout(result.folder / outcome.file)
    except StorageError as error:
        return _without_record(outcome, number, str(error))
    return {
        "task_id": number,
        "reward": outcome.reward if outcome.reward is not None else 0.0,
        "info": _info(outcome, record),
        "traj": record.messages,
        "trial": outcome.index,
    }


def _without_record(outcome: RolloutOutcome, number: int, error: str) -> dict[str, Any]:
    info = {"error": error, "traceback": ""}
    return {
        "task_id": number,
        "reward": outcome.reward or 0.0,
        "info": info,
        "traj": [],
        "trial": outcome.index,
    }


def _info(outcome: RolloutOutcome, record: RolloutRecord) -> dict[str, Any]:
    """``EnvInfo`` of tau-bench; with ``error`` and ``traceback`` where it would have met an exception."""
    usage = record.usage.get("user")
    info: dict[str, Any] = {
        "task": _task(record),
        "source": _source(record),
        "user_cost": usage.cost if usage is not None else None,
        "reward_info": None,
    }
    fault = record.error or record.stop_detail or record.stop_reason
    if outcome.reward is None:
        return {"error": fault, "traceback": "", **info}
    if record.stop_reason not in CUT_OFF:
        info["reward_info"] = _reward_info(outcome.reward, record)
    if record.stop_reason == "agent_error":
        return {"error": fault, "traceback": "", **info}
    return info


def _task(record: RolloutRecord) -> dict[str, Any]:
    metadata = record.fields.get("metadata") or {}
    user_id = metadata.get("user_id")
    return {
        "user_id": user_id if isinstance(user_id, str) else "",
        "actions": _actions(record),
        "instruction": record.fields.get("sim_user_prompt") or "",
        "outputs": record.outputs,
    }


def _actions(record: RolloutRecord) -> list[dict[str, Any]]:
    return [
        {"name": action["name"], "kwargs": action.get("arguments", {})}
        for action in record.fields.get("actions") or ()
    ]


def _source(record: RolloutRecord) -> str | None:
    """Where the last observation came from: the user, or a tool."""
    last = next(
        (message for message in reversed(record.messages) if message["role"] in ("user", "tool")), None
    )
    if last is None:
        return None
    return "user" if last["role"] == "user" else last.get("name")


def _reward_info(reward: float, record: RolloutRecord) -> dict[str, Any]:
    """As there, about what had to be said if the task has outputs, otherwise about the data.

    The hash of the expected data is not written: it could not be compared with tau-bench's own.
    """
    info: dict[str, Any]
    if record.outputs:
        missing = missing_outputs(record.outputs, replies(record.messages, 0))
        said = {output: output not in missing for output in record.outputs}
        info = {"r_outputs": float(all(said.values())), "outputs": said}
    else:
        info = {"r_actions": _data_score(record, reward), "gt_data_hash": ""}
    return {"reward": reward, "info": info, "actions": _actions(record)}


def _data_score(record: RolloutRecord, reward: float) -> float:
    """The reward's metric about the data, as the retail bundle's has one; else the reward itself."""
    metric = ((record.result or {}).get("metrics") or {}).get("database")
    score = metric.get("score") if isinstance(metric, dict) else None
    return float(score) if isinstance(score, int | float) else reward
