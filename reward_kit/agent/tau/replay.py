"""Replay a tau-bench results file (``--from-tau-bench``) and compare rewards and tool results.

The recorded calls run again on the row's database, so that the bundle's own reward judges them.
"""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import NOT_RUN
from reward_kit.agent.base.text import count, excerpt
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.rollout.trace import Trace
from reward_kit.agent.scoring.metrics import pass_table
from reward_kit.agent.store.loading import load_rollout
from reward_kit.agent.store.recording import Recordings
from reward_kit.agent.tau.conversation import messages_of
from reward_kit.agent.tau.results_file import Trial, read_results, task_numbers
from reward_kit.errors import BundleError, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rollout.outcome import Outcome

SHOWN = 20
"""Disagreements that are printed; the JSON report has all of them."""
_OTHER_DATASET = "Name the dataset that the file was made with."


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A trial with another reward here; ``why`` is this bundle's reason, empty for a success."""

    task_id: int
    trial: int
    row_id: str
    recorded: float
    reward: float
    why: str
    file: str


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a results file with the bundle.

    ``compared`` counts the trials with a reward here. ``pass_power`` is Pass^k by the file's own rewards, for
    every k that all its tasks have trials for. ``tool_results`` counts the repeated tool calls;
    ``different_results`` describes those that did not answer as recorded.
    """

    compared: int
    disagreements: tuple[Disagreement, ...]
    pass_power: dict[int, float]
    tool_results: int
    different_results: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """The report for a terminal."""
        own = ", ".join(f"Pass^{k} {value:.3f}" for k, value in list(self.pass_power.items())[:4])
        equal = self.compared - len(self.disagreements)
        yield f"By the rewards in the file: {own}."
        yield f"The bundle's rewards agree with them in {equal} of {count(self.compared, 'judged rollout')}."
        for one in self.disagreements[:SHOWN]:
            why = f" ({one.why})" if one.why else ""
            rewards = f"{one.recorded:g} in the file, {one.reward:g} here"
            yield f"  task {one.task_id}, trial {one.trial}: {rewards}{why}"
        if len(self.disagreements) > SHOWN:
            yield f"  and {len(self.disagreements) - SHOWN} more"
        same = self.tool_results - len(self.different_results)
        if self.tool_results:
            yield f"The tools answered as recorded in {same} of {count(self.tool_results, 'call')}."
        for difference in self.different_results[:1]:
            yield f"  first: {difference}"


@dataclass(slots=True)
class RecordedRun:
    """A results file as recordings that the replay agent and the replay user play.

    ``tasks`` are the rows that it covers, with one rollout per trial; ``trials`` its entries by row id and
    number of the rollout. ``warnings`` name tasks whose expectations differ between file and dataset.
    """

    path: str
    tasks: list[Task]
    trials: dict[tuple[str, int], Trial]
    recordings: Recordings
    warnings: list[str]

    @classmethod
    def load(cls, path: str, tasks: Sequence[Task], chosen: Sequence[Task]) -> RecordedRun:
        """Read ``path`` and find the rows of its trials among ``chosen``, which are some of ``tasks``.

        The rollouts of a row are its trials by their ``trial``; of one that the file holds twice, both count.
        Raises ``BundleError`` for a faulty file, and for tasks that the dataset does not have or has with
        other content.
        """
        numbers = task_numbers([task.row for task in tasks])
        by_number = {numbers[task.row.id]: task for task in tasks}
        of_row: dict[str, list[Trial]] = {}
        regraded: set[int] = set()
        for position, trial in enumerate(read_results(path)):
            place, number = f"{path}: $[{position}]", trial.task_id
            if number not in by_number:
                fault = f"the dataset has no task {number}"
                raise BundleError(fault, place=f"{place}.task_id", remedy=_OTHER_DATASET)
            task = by_number[number]
            if trial.info.task and _expects_otherwise(number, trial.info.task, task, place):
                regraded.add(number)
            of_row.setdefault(task.row.id, []).append(trial)
        played = [task for task in chosen if task.row.id in of_row]
        if not played:
            raise BundleError("has no result of the chosen rows", place=path)
        trials = {
            (task.row.id, index): trial
            for task in played
            for index, trial in enumerate(sorted(of_row[task.row.id], key=lambda trial: trial.trial))
        }
        listed = ", ".join(map(str, sorted(regraded)))
        warning = f"{path}: the dataset expects other actions or outputs than the file of task {listed}"
        return cls(
            path,
            [replace(task, row=replace(task.row, n_rollouts=len(of_row[task.row.id]))) for task in played],
            trials,
            Recordings(starmap(_recording, trials.items()), Path(path)),
            [warning] if regraded else [],
        )

    def agreement(self, outcomes: Iterable[Outcome], folder: Path) -> Agreement:
        """Compare rewards and tool results of the file with those of the replayed rollouts in ``folder``."""
        found = [(trial, one) for one in outcomes if (trial := self.trials.get((one.row_id, one.index)))]
        answers = [answer for trial, one in found for answer in self._answers(trial, one, folder)]
        n = Counter(row_id for row_id, _ in self.trials)
        c = Counter(row_id for (row_id, _), trial in self.trials.items() if is_success(trial.reward))
        powers = pass_table([(n[row_id], c[row_id]) for row_id in n]).pass_power
        return Agreement(
            compared=sum(one.reward is not None for _, one in found),
            disagreements=tuple(
                Disagreement(
                    trial.task_id, trial.trial, one.row_id, trial.reward, one.reward, one.trouble, one.file
                )
                for trial, one in found
                if one.reward is not None and is_success(trial.reward) != is_success(one.reward)
            ),
            pass_power={k: power.value for k, power in powers.items() if not power.left_out},
            tool_results=len(answers),
            different_results=tuple(filter(None, answers)),
        )

    def _answers(self, trial: Trial, outcome: Outcome, folder: Path) -> Iterator[str]:
        """For each tool that was called again, its difference from the recorded result, or an empty text."""
        with suppress(StorageError):
            calls = load_rollout(folder / outcome.file).tool_calls
            recorded = self.recordings.find(outcome.row_id, outcome.index).messages
            results = (message["content"] for message in recorded if message["role"] == "tool")
            known = (result for result in results if result != NOT_RUN)
            for call, before in zip(calls, known, strict=False):
                both = f"{excerpt(before, 100)!r} in the file, {excerpt(call.content, 100)!r} here"
                place = f"task {trial.task_id}, trial {trial.trial}, {call.name}"
                yield f"{place}: {both}" if before != call.content else ""


def _recording(place: tuple[str, int], trial: Trial) -> Trace:
    """A trial as a recorded rollout, which ends as the trial did."""
    row_id, index = place
    messages = messages_of(trial.messages)
    stop_reason, stop_detail = "agent_done" if trial.judged else "max_steps", None
    if trial.error is not None:
        stop_reason, stop_detail = "infrastructure_error", f"the recorded run failed: {trial.error}"
        if trial.is_agents_fault:
            stop_reason, stop_detail = "agent_error", trial.error
    return Trace(
        id=f"{row_id} {index}",
        row_id=row_id,
        index=index,
        user="tau-bench" if any(message["role"] == "user" for message in messages) else "none",
        messages=messages,
        stop_reason=stop_reason,
        stop_detail=stop_detail,
        reward=trial.reward,
    )


def _expects_otherwise(number: int, theirs: dict[str, Any], task: Task, place: str) -> bool:
    """Return True if the file's task has other actions or outputs than the row.

    Raises ``BundleError`` if it is another task: about another user or, if the row names no user, with
    other actions and another instruction.
    """
    actions, outputs = theirs.get("actions"), theirs.get("outputs")
    ours = [{"name": action.name, "kwargs": action.arguments} for action in task.row.actions or ()]
    other_actions = isinstance(actions, list) and _canonical(actions) != _canonical(ours)
    user, their_user = task.row.metadata.get("user_id"), theirs.get("user_id")
    if isinstance(user, str) and their_user:
        if their_user != user:
            fault = f"task {number} is about the user {their_user}, row {task.row.id} about {user}"
            raise BundleError(fault, place=f"{place}.info.task.user_id", remedy=_OTHER_DATASET)
    elif other_actions and theirs.get("instruction") != (task.sim_user_prompt or ""):
        fault = f"task {number} has another instruction and other actions than row {task.row.id}"
        raise BundleError(fault, place=f"{place}.info.task", remedy=_OTHER_DATASET)
    return other_actions or (isinstance(outputs, list) and outputs != list(task.row.outputs))


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)
