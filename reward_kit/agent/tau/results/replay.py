"""``RecordedRun``: a results file as recordings, whose calls are made again on the rows of a bundle.

The bundle's own reward judges what comes of them; ``Agreement`` compares its grades with the file's.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, replace
from itertools import chain, islice, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import apart, count, cut
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.rows.field_checks import split_opening
from reward_kit.agent.scoring.metrics import pass_table
from reward_kit.agent.store.loading import Recordings
from reward_kit.agent.tau.results.file import Results, read_results, task_ids
from reward_kit.errors import BundleError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.base.types import Message, ToolCall
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.store.results import EvaluationResult
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
        domain, folder = results.domain, tasks[0].folder.name
        ported = folder.removeprefix("tau2_")  # the folder of a ported bundle names its domain
        if domain is not None and ported != folder and not domain.startswith(ported):
            fault = f"the file is of the domain {cut(domain, 80)}, the bundle of {ported}"
            raise BundleError(fault, place=f"{path}: $.info.environment_info", remedy=_OTHER_DATASET)
        ids = task_ids([task.row for task in tasks], is_tau2=domain is not None)
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
            for index, trial in enumerate(sorted(of_row[task.row.id], key=lambda trial: trial.index))
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

    def agreement(self, result: EvaluationResult) -> Agreement:
        """Compare grades and tool results of the file with those of the replayed rollouts."""
        moved, different = [], []
        compared = answers = 0
        for one in result.outcomes:
            if (trial := self.trials.get((one.row_id, one.index))) is None:
                continue
            trace = result.record_or_none(one)
            found = [] if trace is None else list(_differences(trial.tool_calls, trace.tool_calls))
            answers += 0 if trace is None else len(trial.tool_calls)
            different += [f"task {trial.task_id}, trial {trial.index}, {difference}" for difference in found]
            if trial.reward is None or one.reward is None:
                continue
            compared += 1
            if is_success(trial.reward) != is_success(one.reward):
                expects = trace and trial.expected and trial.expected.differing_fields(trace.row)
                moved.append(
                    Disagreement(
                        task_id=trial.task_id,
                        trial=trial.index,
                        row_id=one.row_id,
                        recorded=trial.reward,
                        reward=one.reward,
                        why=one.trouble,
                        file=one.file,
                        parts=_moved_parts(trial, trace),
                        expects=tuple(expects or ()),
                        replay=found[0] if found else None,
                    )
                )
        named = [f"{one.named} is {one.task_id}" for one in self.trials.values() if one.named is not None]
        return Agreement(
            compared,
            tuple(moved),
            _pass_power(self.trials),
            answers,
            tuple(different),
            tuple(self.missing),
            graded_as=tuple(named),
        )


def _begun(trial: Trial, opening: Sequence[Message]) -> Trial:
    """The trial, with its first messages replaced by the row's, with which the rollout begins."""
    seen, own = split_opening(opening)
    shapes, ours = list(map(_shape, trial.messages)), list(map(_shape, seen))
    if seen and shapes[: len(ours)] == ours:
        calls = sum(calls for _, calls in map(_shape, chain(seen, *own.values())))
        return replace(trial, tool_calls=trial.tool_calls[calls:])
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
        user, theirs = row.metadata.get("user_id"), expected.user_id
        if isinstance(user, str) and theirs:
            if theirs != user:
                fault = f"task {trial.task_id} is about the user {theirs}, row {row.id} about {user}"
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
        held.setdefault(trial.task_id, Counter())[trial.index] += 1
    if absent := [task_id for task_id in chosen if task_id not in held]:
        listed = cut(", ".join(map(str, absent)), 200)
        yield f"all trials of {count(len(absent), 'task')} of the dataset: {listed}"
    for task_id in chosen:
        has = held.get(task_id, Counter())
        if 0 < has.total() < results.n_trials:
            lacking = (str(one) for one in range(results.n_trials) if one not in has)
            numbers = cut(", ".join(islice(lacking, LONGEST_LIST)), LONGEST_LIST)
            yield f"task {task_id}: {results.n_trials - has.total()} of {results.n_trials} trials ({numbers})"
    yield from (f"simulation {cut(one, 80)}, which its index names" for one in results.lost)


# --- agreement


SHOWN = 20
"""Grades that moved that are printed; the JSON report has all of them."""
LONGEST_LIST = 300
"""Characters of the list of missing trials that are printed."""
LONGEST = 80
"""Characters of an answer that are shown."""
_TIMING = re.compile(r"\n*\[Timing: [^\]]*\]\s*\Z")
"""The line below the answers of tau2-bench's search: its running time."""


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A trial with another grade here.

    ``why`` is this bundle's reason, empty for a success. ``parts`` are those with another score, each with
    the file's and ours. ``expects`` names the fields of the row that the file's own task has otherwise.
    ``replay`` is the first call that did not answer as recorded, None if all did: after it, the grade is that
    of another conversation.
    """

    task_id: int | str
    trial: int
    row_id: str
    recorded: float
    reward: float
    why: str
    file: str
    parts: dict[str, tuple[float, float]]
    expects: tuple[str, ...]
    replay: str | None

    def line(self) -> str:
        reasons = [f"{name} {before:g} -> {now:g}" for name, (before, now) in self.parts.items()]
        reasons += [f"the file's task has other {', '.join(self.expects)}"] if self.expects else []
        reasons += [f"not replayed as recorded: {self.replay}"] if self.replay else []
        reasons += [self.why] if self.why else []
        why = f" ({'; '.join(reasons)})" if reasons else ""
        rewards = f"{self.recorded:g} in the file, {self.reward:g} here"
        return f"task {self.task_id}, trial {self.trial}: {rewards}{why}"


@dataclass(frozen=True, slots=True)
class Agreement:
    """Agreement of a results file with the bundle.

    ``compared`` counts the trials with a reward in the file and here. ``pass_power`` is Pass^k by the file's
    own rewards, for every k that all its tasks have trials for. ``tool_results`` counts the repeated tool
    calls; ``different_results`` describes those that did not answer as recorded. ``missing`` names trials
    that the file should have and does not, ``graded_as`` simulations that name another task than the one that
    they were graded by.
    """

    compared: int
    disagreements: tuple[Disagreement, ...]
    pass_power: dict[int, float]
    tool_results: int
    different_results: tuple[str, ...]
    missing: tuple[str, ...] = ()
    graded_as: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """The report for a terminal: what can be said in a line each, then the grades that moved."""
        if own := ", ".join(f"Pass^{k} {value:.3f}" for k, value in list(self.pass_power.items())[:4]):
            equal = f"{self.compared - len(self.disagreements)} of {count(self.compared, 'judged rollout')}"
            yield f"By the rewards in the file: {own}."
            yield f"The bundle's rewards agree with them in {equal}."
        moved = self.disagreements
        if otherwise := sum(one.replay is not None for one in moved):
            yield (
                f"{otherwise} of {count(len(moved), 'moved grade')} followed a replay that differs from the "
                "recording: the tools or their data have changed, so these say nothing about the agent."
            )
        same = self.tool_results - len(self.different_results)
        if self.tool_results:
            yield f"The tools answered as recorded in {same} of {count(self.tool_results, 'call')}."
        if self.graded_as:
            named = cut(", ".join(self.graded_as), LONGEST_LIST)
            number = count(len(self.graded_as), "simulation")
            yield f"{number} named another task than that of the checks in the grade, which counts: {named}."
        if self.missing:
            yield f"Missing from the file: {cut('; '.join(self.missing), LONGEST_LIST)}."
        for difference in self.different_results[:1]:
            yield f"  first other answer: {difference}"
        for one in moved[:SHOWN]:
            yield f"  {one.line()}"
        if len(moved) > SHOWN:
            yield f"  and {len(moved) - SHOWN} more"


def _pass_power(trials: Mapping[tuple[str, int], Trial]) -> dict[int, float]:
    judged = {place: trial.reward for place, trial in trials.items() if trial.reward is not None}
    n = Counter(row_id for row_id, _ in judged)
    c = Counter(row_id for (row_id, _), reward in judged.items() if is_success(reward))
    powers = pass_table([(n[row_id], c[row_id]) for row_id in n]).pass_power
    return {k: power.value for k, power in powers.items() if not power.left_out}


def _moved_parts(trial: Trial, trace: Trace | None) -> dict[str, tuple[float, float]]:
    ours = (trace and trace.metric_scores) or {}
    return {
        name: (score, ours[name])
        for name, score in trial.parts.items()
        if name in ours and score != ours[name]
    }


def _differences(before: list[ToolCall], now: list[ToolCall]) -> Iterator[str]:
    """For each recorded call that does not answer as it did, the difference in words."""
    for old, new in zip_longest(before, now):
        if old is None:
            return
        if new is None:
            yield f"{old.name}: {cut(old.content, LONGEST)!r} in the file, not called here"
        elif _answer(old.content) != _answer(new.content):
            theirs, ours = apart(old.content, new.content, LONGEST)
            yield f"{old.name}: {theirs!r} in the file, {ours!r} here"


def _answer(content: str) -> Any:
    """An answer as tau2-bench compares it: the value of JSON, however it is written; without timings."""
    content = _TIMING.sub("", content)
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content
