"""tau-bench's layout of a results file: a JSON list of ``{task_id, reward, info, traj, trial}``.

``info`` holds the task, the source of the last observation, the simulated user's cost and the parts of the
reward; for a rollout without a reward, which counts as failed there, the error.
"""

from __future__ import annotations

import json
import logging
import re
from itertools import chain, count, repeat, takewhile
from textwrap import indent
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field, NonNegativeInt

from reward_kit.agent.base.history import NOT_RUN, calls_in
from reward_kit.agent.base.text import text_of
from reward_kit.agent.base.types import openai_call
from reward_kit.agent.rewards.checks import missing_outputs, said_to_user
from reward_kit.agent.tau.results.trial import NOTHING_SAID, Expected, Trial
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.results import EvaluationResult

logger = logging.getLogger(__name__)

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


class FileEntry(BaseModel):
    """One trial in the file; only ``task_id`` and ``reward`` are required."""

    task_id: NonNegativeInt
    trial: NonNegativeInt = 0
    reward: float = Field(allow_inf_nan=False)
    info: _Info | None = None
    traj: list[_Message] | None = None


def trials_of(entries: Iterable[FileEntry]) -> Iterator[Trial]:
    """The trials of a file as recordings, in its order."""
    for position, entry in enumerate(entries):
        info = entry.info or _Info()
        messages = messages_of([message.model_dump(exclude_unset=True) for message in entry.traj or ()])
        reason, detail = "agent_done" if info.reward_info else "max_steps", None
        if (error := info.error) is not None:
            reason, detail = "agent_error", str(error) or "an error without a text"
            raised = str(info.traceback).strip().rpartition("\n")[2]
            if not (info.reward_info or _AGENT_ERROR.match(raised)):  # a reward: the agent's fault
                reason, detail = "infrastructure_error", f"the recorded run failed: {detail}"
        yield Trial(
            place=f"$[{position}]",
            task_id=entry.task_id,
            index=entry.trial,
            reward=entry.reward,
            messages=messages,
            tool_calls=list(calls_in(messages)),
            stop_reason=reason,
            stop_detail=detail,
            expected=_expected(info.task),
        )


def _expected(task: dict[str, Any] | None) -> Expected | None:
    if not task:
        return None
    actions, outputs = task.get("actions"), task.get("outputs")
    fields: dict[str, Any] = {}
    if isinstance(actions, list):
        calls = (one for one in actions if isinstance(one, dict))
        fields["actions"] = [{"name": one.get("name"), "arguments": one.get("kwargs")} for one in calls]
    if isinstance(outputs, list):
        fields["outputs"] = outputs
    return Expected(fields, str(task.get("instruction") or ""), str(task.get("user_id") or "") or None)


def results_parts(result: EvaluationResult, numbers: Mapping[str, int]) -> Iterator[bytes]:
    """Yield the file of an evaluation in pieces, trial by trial, with one trajectory in memory at a time.

    A rollout that is damaged keeps its reward and has no messages; a warning names it.
    ``numbers`` are the task ids of the rows (``task_numbers``); rows that the dataset no longer has get the
    following numbers.
    """
    others = [row.row_id for row in result.rows if row.row_id not in numbers]
    known = {**dict(zip(others, count(max(numbers.values(), default=-1) + 1), strict=False)), **numbers}
    has_told = False
    yield b"["
    for place, outcome in enumerate(sorted(result.outcomes, key=lambda outcome: outcome.index)):
        try:
            record = result.record(outcome)
            info, traj = _info(outcome, record), record.messages
            if not has_told and any(call.by == "user" for call in record.tool_calls):
                has_told = True
                logger.warning("warning: the users' own calls are left out: the format has no place for them")
        except StorageError as error:
            logger.warning("warning: a rollout is written without its conversation: %s", error)
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
        "user_cost": usage.known_cost if usage is not None else None,
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


# --- trajectories as messages with native tool calls


API_OUTPUT = "API output:"
ACTION = "Action:"
TOOL_ROLES = ("tool", "function")


def messages_of(traj: Sequence[Message]) -> list[Message]:
    """The trajectory with native tool calls and their results, without the system prompt and empty lines.

    Calls that were not run have the result ``NOT_RUN``; the last ones have none if the trajectory ends there.
    """
    traj = [message for message in traj if message["role"] not in ("system", "developer")]
    native = any(_functions(message) or message["role"] in TOOL_ROLES for message in traj)
    is_text = not native and any(_is_output(message) or _action(message) for message in traj)
    messages: list[Message] = []
    for at, message in enumerate(traj):
        if message["role"] == "assistant":
            step = _text_step if is_text else _native_step
            messages += step(f"call_{at}", message, traj[at + 1 :])
        elif message["role"] == "user" and not (is_text and _is_output(message)):
            line = text_of(message.get("content"))
            messages += [{"role": "user", "content": line}] if line.strip() else []
    return messages


def _native_step(name: str, message: Message, rest: Sequence[Message]) -> list[Message]:
    functions = _functions(message)
    text = text_of(message.get("content"))
    answers = takewhile(lambda answer: answer["role"] in TOOL_ROLES, rest)
    results = [text_of(answer.get("content")) for answer in answers]
    if not functions or (rest and not results):  # if no call was run, the text beside them went to the user
        return _reply(text)
    return _called(name, text, functions, results if rest else None)


def _functions(message: Message) -> list[dict[str, Any]]:
    """The functions that a message calls, also by the older ``function_call``."""
    functions = [call["function"] for call in message.get("tool_calls") or ()]
    return functions or [function for function in [message.get("function_call")] if function]


def _text_step(name: str, message: Message, rest: Sequence[Message]) -> list[Message]:
    thought, _, said = text_of(message.get("content")).rpartition(ACTION)
    action = _action(message)
    answered = bool(rest) and _is_output(rest[0])
    if action is None:
        return _reply(said.strip())
    arguments = action["arguments"]
    if action["name"] == "respond" and not answered:
        content = arguments.get("content") if isinstance(arguments, dict) else arguments
        return _reply(content if isinstance(content, str) else json.dumps(content))
    output = [text_of(rest[0].get("content")).removeprefix(API_OUTPUT).removeprefix(" ")] if answered else []
    return _called(name, thought.strip(), [action], output if rest else None)


def _called(
    name: str, text: str, functions: Sequence[dict[str, Any]], results: Sequence[str] | None
) -> list[Message]:
    calls = []
    for number, function in enumerate(functions):
        arguments = function.get("arguments")
        written = arguments if isinstance(arguments, str) else json.dumps(arguments)
        calls.append(openai_call(f"{name}_{number}", function["name"], written))
    answers = [] if results is None else zip(calls, chain(results, repeat(NOT_RUN)), strict=False)
    return [
        {"role": "assistant", "content": text or None, "tool_calls": calls},
        *({"role": "tool", "tool_call_id": call["id"], "content": content} for call, content in answers),
    ]


def _reply(text: str) -> list[Message]:
    return [{"role": "assistant", "content": text if text.strip() else NOTHING_SAID}]


def _action(message: Message) -> dict[str, Any] | None:
    """The action that tau-bench read from an answer: the JSON after the last ``Action:``."""
    if message["role"] != "assistant":
        return None
    try:
        action = json.loads(text_of(message.get("content")).rpartition(ACTION)[2])
    except (ValueError, RecursionError):
        return None
    is_call = isinstance(action, dict) and isinstance(action.get("name"), str) and "arguments" in action
    return action if is_call else None


def _is_output(message: Message) -> bool:
    return message["role"] == "user" and text_of(message.get("content")).startswith(API_OUTPUT)
