"""Match a tau-bench results file with the rows of a dataset."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.tau_bench.conversation import Conversation, conversation_of
from reward_kit.agent.tau_bench.read_results import Trial, read_results
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.bundles.task_row import TaskRow

Key = tuple[str, int]
"""Row id, and the number of the rollout from 0."""

_OTHER_DATASET = "Name the dataset that the file was made with."


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """A trial of the file and its conversation."""

    trial: Trial
    conversation: Conversation


@dataclass(slots=True)
class RecordedResults:
    """A results file and the rows it covers.

    ``tasks`` are those rows, with one rollout per trial and enough steps. ``warnings`` name tasks whose
    expectations differ between file and dataset.
    """

    path: str
    tasks: list[Task]
    trials: dict[Key, RecordedTrial]
    warnings: list[str]

    @classmethod
    def load(cls, path: str, tasks: Sequence[Task], chosen: Sequence[Task]) -> RecordedResults:
        """Read ``path`` and find the rows of its trials among ``chosen``, which are some of ``tasks``.

        Raises ``BundleError`` for a faulty file, and for tasks that the dataset does not have or has with
        other content.
        """
        by_number = {number: row_id for row_id, number in task_numbers([task.row for task in tasks]).items()}
        by_id = {task.row.id: task for task in tasks}
        trials: dict[str, list[Trial]] = {}
        regraded: set[int] = set()
        for position, trial in enumerate(read_results(path)):
            place = f"{path}: $[{position}]"
            task = by_id.get(by_number.get(trial.task_id, ""))
            if task is None:
                raise BundleError(
                    f"the dataset has no task {trial.task_id}",
                    place=f"{place}.task_id",
                    remedy=_OTHER_DATASET,
                )
            if trial.task is not None and _expects_otherwise(trial.task_id, trial.task, task, place):
                regraded.add(trial.task_id)
            trials.setdefault(task.row.id, []).append(trial)
        found = cls(path, [], {}, [])
        if regraded:
            listed = ", ".join(map(str, sorted(regraded)))
            found.warnings.append(
                f"{path}: the dataset expects other actions or outputs than the file of task {listed}"
            )
        for task in chosen:
            found._add(task, trials.get(task.row.id, []))
        if not found.tasks:
            raise BundleError("has no result of the chosen rows", place=path)
        return found

    def _add(self, task: Task, trials: list[Trial]) -> None:
        """Number the trials by their ``trial``; of a trial that the file holds twice, both count."""
        steps = [1]
        for index, trial in enumerate(sorted(trials, key=lambda trial: trial.trial)):
            conversation = conversation_of(trial.messages)
            self.trials[task.row.id, index] = RecordedTrial(trial, conversation)
            steps.append(len(conversation.steps) + 1)
        if trials:
            fields = {"n_rollouts": len(trials), "max_steps": max(task.row.max_steps, *steps)}
            self.tasks.append(replace(task, row=task.row.model_copy(update=fields)))


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


def _expects_otherwise(number: int, theirs: dict[str, Any], task: Task, place: str) -> bool:
    """Return whether the file's task has other actions or outputs than the row.

    Raises ``BundleError`` if it is another task: about another user or, if the row names no user, with
    other actions and another instruction.
    """
    actions, outputs = theirs.get("actions"), theirs.get("outputs")
    ours = [(action.name, action.arguments) for action in task.row.actions or ()]
    other_actions = isinstance(actions, list) and _canonical(map(_call, actions)) != _canonical(ours)
    user, their_user = task.row.metadata.get("user_id"), theirs.get("user_id")
    if isinstance(user, str) and their_user:
        if their_user != user:
            fault = f"task {number} is about the user {their_user}, row {task.row.id} about {user}"
            raise BundleError(fault, place=f"{place}.info.task.user_id", remedy=_OTHER_DATASET)
    elif other_actions and theirs.get("instruction") != (task.sim_user_prompt or ""):
        fault = f"task {number} has another instruction and other actions than row {task.row.id}"
        raise BundleError(fault, place=f"{place}.info.task", remedy=_OTHER_DATASET)
    return other_actions or (isinstance(outputs, list) and outputs != list(task.row.outputs))


def _call(action: Any) -> Any:
    return (action.get("name"), action.get("kwargs")) if isinstance(action, dict) else action


def _canonical(values: Any) -> str:
    return json.dumps(list(values), sort_keys=True, default=str)
