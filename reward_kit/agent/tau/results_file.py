"""Results files of tau-bench, read and written: a JSON list of ``{task_id, reward, info, traj, trial}``.

``info`` holds the task, the source of the last observation, the simulated user's cost and the parts of the
reward; for a rollout without a reward, which counts as failed there, the error.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt, TypeAdapter, ValidationError, field_validator

from reward_kit.agent.base.text import cut
from reward_kit.agent.rewards.checks import missing_outputs, said_to_user
from reward_kit.agent.store.loading import load_rollout
from reward_kit.errors import BundleError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.rows.task_row import TaskRow
    from reward_kit.agent.store.results import EvaluationResult

CUT_OFF = frozenset({"max_steps", "timeout", "budget"})
"""Stop reasons after which tau-bench computes no reward."""
INDENT = 2
_AGENT_ERROR = re.compile(
    r"^(?:json\.decoder\.JSONDecodeError|JSONDecodeError|AssertionError|KeyError: 'content')"
)
"""Exceptions that tau-bench's own agents raise for an unusable model answer."""


class _Function(BaseModel, extra="allow"):
    name: str
    arguments: str | dict[str, Any] | None = None


class _Call(BaseModel, extra="allow"):
    function: _Function


class _Message(BaseModel, extra="allow"):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[Any] | None = None
    tool_calls: list[_Call] | None = None
    function_call: _Function | None = None


class _Info(BaseModel):
    task: dict[str, Any] | None = None
    error: Any = None
    traceback: Any = None
    reward_info: Any = None


class Trial(BaseModel):
    """One entry of the file; only ``task_id`` and ``reward`` are required."""

    task_id: NonNegativeInt
    trial: NonNegativeInt = 0
    reward: float = Field(allow_inf_nan=False)
    info: _Info = _Info()
    traj: list[_Message] = []

    @field_validator("info", "traj", mode="before")
    @classmethod
    def _default_for_null(cls, value: Any, info: Any) -> Any:
        return value if value is not None else cls.model_fields[info.field_name].default

    @property
    def messages(self) -> list[Message]:
        """The trajectory as it stands in the file."""
        return [message.model_dump(exclude_unset=True) for message in self.traj]

    @property
    def error(self) -> str | None:
        """The exception that ended the trial, if one did."""
        return None if self.info.error is None else str(self.info.error) or "an error without a text"

    @property
    def is_agents_fault(self) -> bool:
        """True if an unusable answer of the agent's model caused the error."""
        return _AGENT_ERROR.match(str(self.info.traceback).strip().rpartition("\n")[2]) is not None

    @property
    def judged(self) -> bool:
        """True if tau-bench computed a reward, which it does not after the last step."""
        return bool(self.info.reward_info)


def read_results(path: str | Path) -> list[Trial]:
    """Read the entries of a results file, in its order.

    Raises ``BundleError`` with the JSON path of the first fault.
    """
    try:
        trials = TypeAdapter(list[Trial]).validate_json(Path(path).read_bytes())
    except FileNotFoundError:
        raise BundleError("there is no such file", place=str(path)) from None
    except OSError as error:
        raise BundleError(f"cannot be read: {error.strerror or error}", place=str(path)) from error
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise BundleError(f"is not JSON: {first['msg']}", place=str(path)) from None
        steps = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
        got = "" if first["type"] == "missing" else f", got {cut(repr(first['input']), 60)}"
        raise BundleError(f"{first['msg']}{got}", place=f"{path}: ${steps}") from None
    if not trials:
        raise BundleError("holds no results", place=str(path))
    return trials


def task_numbers(rows: Sequence[TaskRow]) -> dict[str, int]:
    """Return tau-bench's ``task_id`` of each row, by row id.

    It is ``metadata.index`` if every row has a distinct one, as in the retail bundle; otherwise the row's
    position in the dataset, from 0.
    """
    numbers = [row.metadata.get("index") for row in rows]
    valid = [number for number in numbers if type(number) is int and number >= 0]
    if len(set(valid)) < len(rows):
        valid = list(range(len(rows)))
    return {row.id: number for row, number in zip(rows, valid, strict=True)}


def results_parts(result: EvaluationResult, numbers: Mapping[str, int]) -> Iterator[bytes]:
    """Yield the file of an evaluation in pieces, trial by trial, with one trajectory in memory at a time.

    ``numbers`` are the task ids of the rows (``task_numbers``); rows that the dataset no longer has get the
    following numbers.
    """
    known = dict(numbers)
    for row in result.rows:
        known.setdefault(row.row_id, max(known.values(), default=-1) + 1)
    yield b"["
    for place, outcome in enumerate(sorted(result.outcomes, key=lambda outcome: outcome.index)):
        try:
            record = load_rollout(result.folder / outcome.file)
            info, traj = _info(outcome, record), record.messages
        except StorageError as error:
            info, traj = {"error": str(error), "traceback": ""}, []
        entry = {
            "task_id": known[outcome.row_id],
            "reward": outcome.reward or 0.0,
            "info": info,
            "traj": traj,
            "trial": outcome.index,
        }
        indented = indent(json.dumps(entry, indent=INDENT, default=str), " " * INDENT)
        yield f"{',' if place else ''}\n{indented}".encode()
    yield b"\n]\n"


def _info(outcome: Outcome, record: Trace) -> dict[str, Any]:
    """Build tau-bench's ``EnvInfo``, with ``error`` and ``traceback`` if it would have met an exception."""
    user_id = (record.fields.get("metadata") or {}).get("user_id")
    usage = record.usage.get("user")
    heard = [message for message in record.messages if message["role"] in ("user", "tool")]
    computed = outcome.reward is not None and record.stop_reason not in CUT_OFF
    info: dict[str, Any] = {
        "task": {
            "user_id": user_id if isinstance(user_id, str) else "",
            "actions": _actions(record),
            "instruction": record.fields.get("sim_user_prompt") or "",
            "outputs": record.outputs,
        },
        "source": None if not heard else "user" if heard[-1]["role"] == "user" else heard[-1].get("name"),
        "user_cost": usage.cost if usage is not None else None,
        "reward_info": _reward_info(outcome.reward, record) if computed else None,
    }
    if outcome.reward is None or record.stop_reason == "agent_error":
        fault = record.error or record.stop_detail or record.stop_reason
        return {"error": fault, "traceback": "", **info}
    return info


def _actions(record: Trace) -> list[dict[str, Any]]:
    return [
        {"name": action["name"], "kwargs": action.get("arguments", {})}
        for action in record.fields.get("actions") or ()
    ]


def _reward_info(reward: float | None, record: Trace) -> dict[str, Any]:
    """Build the reward's parts: outputs if the task has any, otherwise the data.

    The data's score is the reward's ``database`` metric, as in the retail bundle, or the reward itself. The
    hash of the expected data is left empty, since it could not be compared with tau-bench's own.
    """
    info: dict[str, Any]
    if record.outputs:
        missing = missing_outputs(record.outputs, said_to_user(record.messages), anywhere=True)
        said = {output: output not in missing for output in record.outputs}
        info = {"r_outputs": float(all(said.values())), "outputs": said}
    else:
        data = (record.metric_scores or {}).get("database", reward)
        info = {"r_actions": data, "gt_data_hash": ""}
    return {"reward": reward, "info": info, "actions": _actions(record)}
