"""Agreement of a results file with the bundle that graded it again: grades that moved, and why."""

from __future__ import annotations

import json
import re
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import apart, count, cut
from reward_kit.agent.rollout.outcome import is_success
from reward_kit.agent.scoring.metrics import pass_table
from reward_kit.agent.store.loading import load_rollout
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    from reward_kit.agent.base.types import ToolCall
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.rollout.trace import Trace
    from reward_kit.agent.tau.results.trial import Trial

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
        """One line for a person."""
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
        own = ", ".join(f"Pass^{k} {value:.3f}" for k, value in list(self.pass_power.items())[:4])
        yield f"By the rewards in the file: {own}."
        moved = self.disagreements
        equal = self.compared - len(moved)
        yield f"The bundle's rewards agree with them in {equal} of {count(self.compared, 'judged rollout')}."
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


def agreement_of(
    trials: Mapping[tuple[str, int], Trial], outcomes: Iterable[Outcome], folder: Path, missing: Iterable[str]
) -> Agreement:
    """Compare grades and tool results of a file with those of the replayed rollouts in ``folder``.

    ``trials`` has the entries of the file by row id and number of the rollout.
    """
    moved, different = [], []
    compared = answers = 0
    for one in outcomes:
        trial = trials.get((one.row_id, one.index))
        if trial is None:
            continue
        trace = None
        with suppress(StorageError):
            trace = load_rollout(folder / one.file)
        found = [] if trace is None else list(_differences(trial.calls, trace.tool_calls))
        answers += 0 if trace is None else len(trial.calls)
        different += [f"task {trial.task_id}, trial {trial.number}, {difference}" for difference in found]
        if trial.reward is None or one.reward is None:
            continue
        compared += 1
        if is_success(trial.reward) != is_success(one.reward):
            expects = trace and trial.expected and trial.expected.differing_fields(trace.row)
            moved.append(
                Disagreement(
                    task_id=trial.task_id,
                    trial=trial.number,
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
    named = [f"{one.named} is {one.task_id}" for one in trials.values() if one.named is not None]
    return Agreement(
        compared,
        tuple(moved),
        _pass_power(trials),
        answers,
        tuple(different),
        tuple(missing),
        graded_as=tuple(named),
    )


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
