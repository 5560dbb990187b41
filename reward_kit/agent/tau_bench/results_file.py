"""Write an evaluation as a results file in tau-bench's layout.

The file is a JSON list with one object per rollout, trial by trial: ``task_id``, ``reward``, ``info``,
``traj`` and ``trial``. ``info`` holds the task, the source of the last observation, the simulated user's cost
and the parts of the reward; for a rollout without a reward, which counts as failed there, the error.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from reward_kit.agent.records.rollout_record import load_rollout
from reward_kit.agent.scoring.outputs import missing_outputs, replies
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.records.rollout_record import RolloutRecord
    from reward_kit.agent.scoring.results import EvaluationResult

CUT_OFF = frozenset({"max_steps", "timeout", "budget"})
"""Stop reasons after which tau-bench computes no reward."""
INDENT = 2


def results_parts(result: EvaluationResult, numbers: Mapping[str, int]) -> Iterator[bytes]:
    """Yield the file in pieces, with one trajectory in memory at a time.

    ``numbers`` are the task ids of the rows (``task_numbers``); rows that the dataset no longer has get the
    following numbers.
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
    """Build tau-bench's ``EnvInfo``, with ``error`` and ``traceback`` if it would have met an exception."""
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
    """Return the source of the last observation: the user, or a tool's name."""
    last = next(
        (message for message in reversed(record.messages) if message["role"] in ("user", "tool")), None
    )
    if last is None:
        return None
    return "user" if last["role"] == "user" else last.get("name")


def _reward_info(reward: float, record: RolloutRecord) -> dict[str, Any]:
    """Build the reward's parts: outputs if the task has any, otherwise the data.

    The hash of the expected data is left empty, since it could not be compared with tau-bench's own.
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
    """Return the reward's ``database`` metric, as in the retail bundle, or the reward itself."""
    metric = ((record.result or {}).get("metrics") or {}).get("database")
    score = metric.get("score") if isinstance(metric, dict) else None
    return float(score) if isinstance(score, int | float) else reward
