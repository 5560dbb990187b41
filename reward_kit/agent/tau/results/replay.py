"""``RecordedRun``: a results file as recordings, whose calls are made again on the rows of a bundle.

The bundle's own reward judges what comes of them; ``Agreement`` compares its grades with the file's.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, cut
from reward_kit.agent.rows.message_check import split_opening
from reward_kit.agent.store.loading import Recordings
from reward_kit.agent.tau.results.agreement import Agreement, agreement_of
from reward_kit.agent.tau.results.file import Results, read_results, task_ids
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import Message
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.tau.results.trial import Trial

_OTHER_DATASET = "Name the dataset that the file was made with."


@dataclass(slots=True)
class RecordedRun:
    """A results file as recordings that the replay agent and the replay user play.

    ``tasks`` are the rows that it covers, with one rollout per trial; ``trials`` its entries by row id and
    number of the rollout. ``warnings`` name tasks whose expectations differ between file and dataset,
    ``missing`` the trials that the file should have.
    """

    path: str
    tasks: list[Task]
    trials: dict[tuple[str, int], Trial]
    recordings: Recordings
    warnings: list[str]
    missing: list[str]

    @classmethod
    def load(cls, path: str, tasks: Sequence[Task], chosen: Sequence[Task]) -> RecordedRun:
        """Read ``path`` and find the rows of its trials among ``chosen``, which are some of ``tasks``.

        The rollouts of a row are its trials by their ``trial``; of one that the file holds twice, both count.
        Raises ``BundleError`` for a faulty file, and for tasks that the dataset does not have or has with
        other content.
        """
        results = read_results(path)
        _check_domain(path, results.domain, tasks[0].folder.name)
        ids = task_ids([task.row for task in tasks], is_tau2=results.domain is not None)
        by_id = {ids[task.row.id]: task for task in tasks}
        of_row: dict[str, list[Trial]] = {}
        for trial in results.trials:
            if trial.task_id not in by_id:
                fault = f"the dataset has no task {cut(str(trial.task_id), 80)}"
                raise BundleError(fault, place=f"{path}: {trial.place}.task_id", remedy=_OTHER_DATASET)
            of_row.setdefault(by_id[trial.task_id].row.id, []).append(trial)
        otherwise = _other_expectations(path, results, by_id)
        played = [task for task in chosen if task.row.id in of_row]
        if not played:
            raise BundleError("has no result of the chosen rows", place=path)
        trials = {
            (task.row.id, index): _begun(trial, task.row.initial_messages)
            for task in played
            for index, trial in enumerate(sorted(of_row[task.row.id], key=lambda trial: trial.number))
        }
        opening = {task.row.id: len(task.row.agent_messages) for task in played}
        recordings = (trial.recording(row, index, opening[row]) for (row, index), trial in trials.items())
        return cls(
            path,
            [replace(task, row=replace(task.row, n_rollouts=len(of_row[task.row.id]))) for task in played],
            trials,
            Recordings(recordings, Path(path)),
            [f"{path}: {otherwise}"] if otherwise else [],
            list(_missing(results, [ids[task.row.id] for task in chosen])),
        )

    def agreement(self, outcomes: Iterable[Outcome], folder: Path) -> Agreement:
        """Compare grades and tool results of the file with those of the replayed rollouts in ``folder``."""
        return agreement_of(self.trials, outcomes, folder, self.missing)


def _check_domain(path: str, domain: str | None, folder: str) -> None:
    """Raise ``BundleError`` if a ported bundle, whose folder names its domain, is of another."""
    ported = folder.removeprefix("tau2_")
    if domain is not None and ported != folder and not domain.startswith(ported):
        fault = f"the file is of the domain {cut(domain, 80)}, the bundle of {ported}"
        raise BundleError(fault, place=f"{path}: $.info.environment_info", remedy=_OTHER_DATASET)


def _begun(trial: Trial, opening: Sequence[Message]) -> Trial:
    """The trial with the row's first messages, which the rollout begins with, in place of its own."""
    seen, own = split_opening(opening)
    shapes, ours = list(map(_shape, trial.messages)), list(map(_shape, seen))
    if seen and shapes[: len(ours)] == ours:
        calls = sum(calls for _, calls in map(_shape, chain(seen, *own.values())))
        return replace(trial, calls=trial.calls[calls:])
    greeting = next((at for at, shape in enumerate(shapes) if shape != ("assistant", 0)), 0)
    later = {max(place - greeting, 0) + len(seen): given for place, given in trial.user_messages.items()}
    return replace(trial, messages=[*seen, *trial.messages[greeting:]], user_messages=later)


def _shape(message: Message) -> tuple[str, int]:
    return message["role"], len(message.get("tool_calls") or ())


def _other_expectations(path: str, results: Results, by_id: Mapping[int | str, Task]) -> str | None:
    """The fields of tasks in which the dataset expects something else than the file, in words.

    Raises ``BundleError`` for another task: about another user or, if the row names no user, with other
    actions and another instruction.
    """
    found: dict[str, dict[int | str, None]] = {}
    for trial in results.trials:
        row, expected = by_id[trial.task_id].row, trial.expected
        if expected is None:
            continue
        fields = expected.differing_fields(row)
        user = row.metadata.get("user_id")
        if isinstance(user, str) and expected.user_id:
            if expected.user_id != user:
                fault = (
                    f"task {trial.task_id} is about the user {expected.user_id}, row {row.id} about {user}"
                )
                place = f"{path}: {trial.place}.info.task.user_id"
                raise BundleError(fault, place=place, remedy=_OTHER_DATASET)
        elif "actions" in fields and expected.instruction not in (None, by_id[trial.task_id].sim_user_prompt):
            fault = f"task {trial.task_id} has another instruction and other actions than row {row.id}"
            raise BundleError(fault, place=f"{path}: {trial.place}.info.task", remedy=_OTHER_DATASET)
        for name in fields:
            found.setdefault(name, {})[trial.task_id] = None
    listed = (f"{name} (task {cut(', '.join(map(str, tasks)), 100)})" for name, tasks in found.items())
    return f"the dataset expects something else than the file: {', '.join(listed)}" if found else None


def _missing(results: Results, chosen: Sequence[int | str]) -> Iterator[str]:
    """Trials of the chosen tasks that the file should have, in words."""
    held: dict[int | str, Counter[int]] = {}
    for trial in results.trials:
        held.setdefault(trial.task_id, Counter())[trial.number] += 1
    if absent := [task_id for task_id in chosen if task_id not in held]:
        listed = cut(", ".join(map(str, absent)), 200)
        yield f"all trials of {count(len(absent), 'task')} of the dataset: {listed}"
    for task_id in chosen:
        has = held.get(task_id, Counter())
        if 0 < has.total() < results.n_trials:
            numbers = ", ".join(str(one) for one in range(results.n_trials) if one not in has)
            yield f"task {task_id}: {results.n_trials - has.total()} of {results.n_trials} trials ({numbers})"
    yield from (f"simulation {cut(one, 80)}, which its index names" for one in results.lost)
