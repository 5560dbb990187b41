"""tau2-bench's layout of a results file: ``{timestamp, info, tasks, simulations}``.

The messages of a simulation are those of agent, user and environment in one list; a tool call names the side
that made it (``requestor``).
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, NonNegativeInt, PositiveInt

from reward_kit.agent.base.history import NOT_RUN
from reward_kit.agent.base.types import ToolCall, openai_call
from reward_kit.agent.tau import PARTS, SIDES
from reward_kit.agent.tau.results.trial import NOTHING_SAID, Expected, Trial
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from reward_kit.agent.base.types import Message, Side

STOPS = {
    "user_stop": "user_stop",
    "agent_stop": "agent_done",
    "max_steps": "max_steps",
    "timeout": "timeout",
    "too_many_errors": "agent_error",
    "agent_error": "agent_error",
    "context_window_exceeded": "agent_error",
    "user_error": "user_error",
    "infrastructure_error": "infrastructure_error",
    "unexpected_error": "infrastructure_error",
}
"""Reasons for the end of a simulation, each with the stop reason of a rollout."""

_Id = Annotated[str, BeforeValidator(lambda value: str(value) if isinstance(value, int) else value)]


class _FileCall(BaseModel):
    name: str
    arguments: dict[str, Any] = {}
    requestor: Literal["assistant", "user"] = "assistant"


class _FileMessage(BaseModel):
    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    tool_calls: list[_FileCall] | None = None
    error: bool | None = None


class _Sentence(BaseModel):
    nl_assertion: str
    met: bool


class _Checked(BaseModel):
    action: _FileCall


class _Text(BaseModel):
    info: str


class _Grade(BaseModel):
    reward: float = Field(allow_inf_nan=False)
    reward_breakdown: dict[str, float] | None = None
    action_checks: list[_Checked] | None = None
    communicate_checks: list[_Text] | None = None
    nl_assertions: list[_Sentence] | None = None


class Simulation(BaseModel):
    """One simulation: the fields that its grade needs."""

    id: str = ""
    task_id: _Id
    trial: NonNegativeInt | None = None
    termination_reason: Literal[tuple(STOPS)]  # type: ignore[valid-type]  # known when it is read
    reward_info: _Grade | None = None
    messages: list[_FileMessage] | None = None


class _Assertion(BaseModel):
    env_type: Literal["assistant", "user"]
    func_name: str
    arguments: dict[str, Any] = {}
    assert_value: bool = True


class _Criteria(BaseModel):
    actions: list[_FileCall] | None = None
    env_assertions: list[_Assertion] | None = None
    communicate_info: list[str] | None = None
    nl_assertions: list[str] | None = None
    reward_basis: list[str] = ["DB", "COMMUNICATE"]


class FileTask(BaseModel):
    """One task: the fields on which its grade depends."""

    id: _Id
    evaluation_criteria: _Criteria | None = None


class _FileEnvironment(BaseModel):
    domain_name: str


class _FileInfo(BaseModel):
    num_trials: PositiveInt = 1
    environment_info: _FileEnvironment


class _Entry(BaseModel):
    id: str


class File(BaseModel):
    """The whole file; in a folder, each simulation is in a separate file."""

    info: _FileInfo
    tasks: list[FileTask] = []
    simulations: list[Simulation] = []
    simulation_index: list[_Entry] | None = None


def id_of(row_id: str, metadata: Mapping[str, Any]) -> str:
    """The id of a row's task: ``metadata.tau2_id``, or that of the row."""
    return str(metadata.get("tau2_id", row_id))


def trials_of(found: Mapping[str, Simulation], tasks: Mapping[str, FileTask], file: Path) -> list[Trial]:
    """The simulations as recordings; ``found`` has them by their places in the file.

    Raises ``BundleError`` for one without messages, such as those of voice runs.
    """
    trials: list[Trial] = []
    grades = [one.reward_info for one in found.values() if one.reward_info is not None]
    has_checks = any(grade.action_checks for grade in grades)  # else none of them says what it was of
    for place, one in found.items():
        if one.messages is None:
            fault = "has no messages; only half-duplex text simulations can be replayed"
            raise BundleError(fault, place=f"{file}: {place}")
        messages, user_messages, calls = _conversation(one.messages)
        reason, grade = one.termination_reason, one.reward_info
        scores, judged = (grade and grade.reward_breakdown) or {}, (grade and grade.nl_assertions) or ()
        task_id = _graded_as(one, tasks, trials) if has_checks else one.task_id
        trials.append(
            Trial(
                place=place,
                task_id=task_id,
                named=None if task_id == one.task_id else one.task_id,
                index=one.trial or 0,
                reward=None if grade is None else grade.reward,
                messages=messages,
                user_messages=user_messages,
                tool_calls=calls,
                stop_reason=STOPS[reason],
                stop_detail=None if reason in ("user_stop", "agent_stop") else f"recorded: {reason}",
                parts={PARTS[name]: score for name, score in scores.items() if name in PARTS},
                given_verdicts={one.nl_assertion: one.met for one in judged} or None,
                expected=_expected(tasks.get(task_id)),
            )
        )
    return trials


def _graded_as(one: Simulation, tasks: Mapping[str, FileTask], before: list[Trial]) -> str:
    """The id of the task that a simulation was graded by, which need not be the one that it names.

    The grade repeats the task's gold actions, texts and sentences. If those of the named task are others, and
    those of another task the same, that one counts; of several, the one with the fewest simulations
    ``before``.
    """
    grade, own = one.reward_info, tasks.get(one.task_id)
    if not grade or grade.reward_breakdown is None or not own or _repeats(grade, own.evaluation_criteria):
        return one.task_id
    like = [name for name, task in tasks.items() if _repeats(grade, task.evaluation_criteria)]
    taken = Counter(trial.task_id for trial in before) if like else {}
    return min(like, key=lambda name: taken[name], default=one.task_id)


def _repeats(grade: _Grade, criteria: _Criteria | None) -> bool:
    """True if the checks of a grade, as far as they were made, are those of a task."""
    if criteria is None:
        return False
    texts = [check.info for check in grade.communicate_checks or ()]
    sentences = [check.nl_assertion for check in grade.nl_assertions or ()]
    return (
        [check.action for check in grade.action_checks or ()] == (criteria.actions or [])
        and texts in ([], criteria.communicate_info)
        and sentences in ([], criteria.nl_assertions)
    )


def _expected(task: FileTask | None) -> Expected | None:
    """The fields of a row that a task of the file gives."""
    if task is None or task.evaluation_criteria is None:
        return None
    given = task.evaluation_criteria
    checks = [
        {"name": one.func_name, "arguments": one.arguments, "by": SIDES[one.env_type], "is": one.assert_value}
        for one in given.env_assertions or ()
    ]
    actions = [
        {"name": one.name, "arguments": one.arguments, "by": SIDES[one.requestor]}
        for one in given.actions or ()
    ]
    return Expected(
        {
            "actions": actions,
            "outputs": given.communicate_info,
            "checks": checks,
            "criteria": given.nl_assertions,
            "score_by": [PARTS.get(name, name) for name in given.reward_basis],
        }
    )


def _conversation(
    given: list[_FileMessage],
) -> tuple[list[Message], dict[int, list[Message]], list[ToolCall]]:
    """The messages of the agent, those of the user with the user's tools, and all calls that were run."""
    messages: list[Message] = []
    user_messages: dict[int, list[Message]] = {}
    calls: list[ToolCall] = []
    for at, one in enumerate(given):
        text = one.content or ""
        if one.role in ("system", "tool"):
            continue
        if one.tool_calls:
            side = SIDES[one.role]
            into = messages if side == "agent" else user_messages.setdefault(len(messages), [])
            made = list(_made(one.tool_calls, at, given, side))
            announced = [openai_call(call.id, call.name, json.dumps(call.arguments)) for call in made]
            into.append({"role": "assistant", "content": text or None, "tool_calls": announced})
            into += [{"role": "tool", "tool_call_id": call.id, "content": call.content} for call in made]
            calls += [call for call in made if call.content != NOT_RUN]
        elif one.role == "assistant" or text.strip():
            messages.append({"role": one.role, "content": text if text.strip() else NOTHING_SAID})
    return messages, user_messages, calls


def _made(asked: list[_FileCall], at: int, given: list[_FileMessage], side: Side) -> Iterator[ToolCall]:
    """The calls of the message at ``at``, each with its answer; the answers follow in the same order."""
    for number, call in enumerate(asked):
        answer = given[at + 1 + number] if at + 1 + number < len(given) else None
        content, status = NOT_RUN, "failed"
        if answer is not None and answer.role == "tool":
            content, status = answer.content or "", "failed" if answer.error else "ok"
        call_id = f"call_{at}_{number}"
        yield ToolCall(0, call_id, 0, 0, call.name, call.arguments, content, status, [], 0.0, 0.0, side)
