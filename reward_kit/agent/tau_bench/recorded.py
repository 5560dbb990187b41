"""A results file of tau-bench beside a bundle: which row each task is, and which rollout each trial."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.tau_bench.conversation import Conversation, conversation_of
from reward_kit.agent.tau_bench.read_results import Trial, read_results
from reward_kit.agent.tau_bench.task_numbers import task_numbers
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.bundles.task import Task

Key = tuple[str, int]
"""A row's id, and the number of its rollout from 0."""

_OTHER_DATASET = "Name the dataset that the file was made with."


@dataclass(frozen=True, slots=True)
class RecordedTrial:
    """A trial of the file and its conversation."""

    trial: Trial
    conversation: Conversation


@dataclass(slots=True)
class RecordedResults:
    """A file and the rows that it is about.

    ``tasks`` are those rows, with as many rollouts as there are trials and room for their steps. ``warnings``
    tell what makes the file's rewards hard to compare.
    """

    path: str
    tasks: list[Task]
    trials: dict[Key, RecordedTrial]
    warnings: list[str]

    @classmethod
    def load(cls, path: str, tasks: Sequence[Task], chosen: Sequence[Task]) -> RecordedResults:
        """Read ``path`` and find the rows of its trials among ``chosen``, which are some of ``tasks``.

        Raises ``BundleError`` for a faulty file, a task that the dataset does not have, and one that is
        another task there.
        """
        rows = {number: row_id for row_id, number in task_numbers(tasks).items()}
        by_id = {task.row.id: task for task in tasks}
        trials: dict[str, list[Trial]] = {}
        regraded: set[int] = set()
        for trial in read_results(path):
            task = by_id.get(rows.get(trial.task_id, ""))
            if task is None:
                raise BundleError(
                    f"the dataset has no task {trial.task_id}",
                    place=f"{path}: ${trial.place}.task_id",
                    remedy=_OTHER_DATASET,
                )
            if _differs(trial, task, path):
                regraded.add(trial.task_id)
            trials.setdefault(task.row.id, []).append(trial)
        found = cls(path, [], {}, [_regraded(path, regraded)] if regraded else [])
        for task in chosen:
            found._add(task, trials.get(task.row.id, []))
        if not found.tasks:
            raise BundleError("has no result of the chosen rows", place=path)
        return found

    def _add(self, task: Task, trials: list[Trial]) -> None:
        """Trials are numbered by their ``trial``; where a file holds one twice, both count."""
        steps = [1]
        for index, trial in enumerate(sorted(trials, key=lambda trial: trial.trial)):
            conversation = conversation_of(trial.traj)
            self.trials[task.row.id, index] = RecordedTrial(trial, conversation)
            steps.append(len(conversation.steps) + 1)
        if trials:
            fields = {"n_rollouts": len(trials), "max_steps": max(task.row.max_steps, *steps)}
            self.tasks.append(replace(task, row=task.row.model_copy(update=fields)))


def _differs(trial: Trial, task: Task, path: str) -> bool:
    """Whether the file's task expects something else than the row; ``BundleError`` if it is another task.

    Two tasks are the same if they name the same user or, where the row names none, have the same gold actions
    or the same instruction.
    """
    if trial.task is None:
        return False
    differences = list(_differences(trial.task, task))
    theirs, ours = trial.task.get("user_id"), task.row.metadata.get("user_id")
    place = f"{path}: ${trial.place}.info.task"
    if isinstance(ours, str) and theirs:
        if theirs != ours:
            fault = f"task {trial.task_id} is about the user {theirs}, row {task.row.id} about {ours}"
            raise BundleError(fault, place=f"{place}.user_id", remedy=_OTHER_DATASET)
    elif "actions" in differences and trial.task.get("instruction") != (task.sim_user_prompt or ""):
        fault = f"task {trial.task_id} has another instruction and other actions than row {task.row.id}"
        raise BundleError(fault, place=place, remedy=_OTHER_DATASET)
    return bool(differences)


def _differences(theirs: dict[str, Any], task: Task) -> Iterator[str]:
    given = theirs.get("actions")
    actions = [(action.name, action.arguments) for action in task.row.actions or ()]
    if isinstance(given, list) and _canonical(list(map(_call, given))) != _canonical(actions):
        yield "actions"
    outputs = theirs.get("outputs")
    if isinstance(outputs, list) and outputs != list(task.row.outputs):
        yield "outputs"


def _call(action: Any) -> Any:
    return (action.get("name"), action.get("kwargs")) if isinstance(action, dict) else action


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _regraded(path: str, numbers: set[int]) -> str:
    listed = ", ".join(map(str, sorted(numbers)))
    return f"{path}: the dataset expects other actions or outputs than the file of task {listed}"
