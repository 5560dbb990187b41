"""Replay a tau-bench results file (``--from-tau-bench``) and compare rewards and tool results.

The recorded calls run again on the row's database, so that the bundle's own reward judges them.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import written_arguments
from reward_kit.agent.base.text import count, excerpt
from reward_kit.agent.records.outcome import is_success
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.scoring.metrics import pass_power_k
from reward_kit.agent.tau_bench.conversation import Conversation, conversation_of
from reward_kit.agent.tau_bench.results_file import Trial, read_results, task_numbers
from reward_kit.errors import BundleError, ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.base.types import Message, StopReason
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.rollout.rollout import Rollout
    from reward_kit.agent.tau_bench.conversation import AgentStep

PREFIX = "tau-bench:"
"""Prefix of the agent's name in such an evaluation: ``tau-bench:PATH``."""
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
        plain = asdict(self)
        plain["pass_power"] = {str(k): value for k, value in self.pass_power.items()}
        return plain

    def lines(self) -> Iterator[str]:
        """The report for a terminal."""
        equal = self.compared - len(self.disagreements)
        own = ", ".join(f"Pass^{k} {value:.3f}" for k, value in list(self.pass_power.items())[:4])
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
    """A results file, ready to be replayed.

    ``tasks`` are the rows that it covers, with one rollout per trial and enough steps; ``trials`` hold entry
    and conversation by row id and number of the rollout. ``warnings`` name tasks whose expectations differ
    between file and dataset.
    """

    path: str
    tasks: list[Task] = field(default_factory=list)
    trials: dict[tuple[str, int], tuple[Trial, Conversation]] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    tool_results: int = 0
    different_results: list[str] = field(default_factory=list)

    @classmethod
    def load(cls, path: str, tasks: Sequence[Task], chosen: Sequence[Task]) -> RecordedRun:
        """Read ``path`` and find the rows of its trials among ``chosen``, which are some of ``tasks``.

        Raises ``BundleError`` for a faulty file, and for tasks that the dataset does not have or has with
        other content.
        """
        numbers = task_numbers([task.row for task in tasks])
        by_number = {numbers[task.row.id]: task for task in tasks}
        of_row: dict[str, list[Trial]] = {}
        regraded: set[int] = set()
        for position, trial in enumerate(read_results(path)):
            place, number = f"{path}: $[{position}]", trial.task_id
            task = by_number.get(number)
            if task is None:
                fault = f"the dataset has no task {number}"
                raise BundleError(fault, place=f"{place}.task_id", remedy=_OTHER_DATASET)
            if trial.info.task and _expects_otherwise(number, trial.info.task, task, place):
                regraded.add(number)
            of_row.setdefault(task.row.id, []).append(trial)
        run = cls(path)
        if regraded:
            listed = ", ".join(map(str, sorted(regraded)))
            run.warnings.append(
                f"{path}: the dataset expects other actions or outputs than the file of task {listed}"
            )
        for task in chosen:
            if task.row.id in of_row:
                run._add(task, of_row[task.row.id])
        if not run.tasks:
            raise BundleError("has no result of the chosen rows", place=path)
        return run

    def _add(self, task: Task, trials: Sequence[Trial]) -> None:
        """Number the trials by their ``trial``; of a trial that the file holds twice, both count."""
        steps = 0
        for index, trial in enumerate(sorted(trials, key=lambda trial: trial.trial)):
            conversation = conversation_of(trial.messages)
            self.trials[task.row.id, index] = trial, conversation
            steps = max(steps, len(conversation.steps))
        max_steps = max(task.row.max_steps, steps + 1)
        row = replace(task.row, n_rollouts=len(trials), max_steps=max_steps)
        self.tasks.append(replace(task, row=row))

    def compare_tools(self, rollout: Rollout) -> None:
        """Compare the tool results of a finished rollout with the recorded ones."""
        trial, conversation = self.trials[rollout.row_id, rollout.index]
        results = [text for step in conversation.steps for text in step.observed or ()]
        for call, text in zip(episode_of(rollout).tool_calls, results, strict=False):
            self.tool_results += 1
            if call.content != text:
                before, now = (repr(excerpt(one, 100)) for one in (text, call.content))
                place = f"task {trial.task_id}, trial {trial.trial}, {call.name}"
                self.different_results.append(f"{place}: {before} in the file, {now} here")

    def agreement(self, outcomes: Iterable[RolloutOutcome]) -> Agreement:
        """Compare the file's rewards with those of the replayed rollouts."""
        compared = 0
        disagreements = []
        for outcome in outcomes:
            trial, _ = self.trials.get((outcome.row_id, outcome.index), (None, None))
            if trial is None or outcome.reward is None:
                continue
            compared += 1
            if is_success(trial.reward) != is_success(outcome.reward):
                disagreements.append(
                    Disagreement(
                        task_id=trial.task_id,
                        trial=trial.trial,
                        row_id=outcome.row_id,
                        recorded=trial.reward,
                        reward=outcome.reward,
                        why=outcome.trouble,
                        file=outcome.file,
                    )
                )
        n = Counter(row_id for row_id, _ in self.trials)
        c = Counter(row_id for (row_id, _), (trial, _) in self.trials.items() if is_success(trial.reward))
        return Agreement(
            compared=compared,
            disagreements=tuple(disagreements),
            pass_power={
                k: sum(pass_power_k(n[row_id], c[row_id], k) for row_id in n) / len(n)
                for k in range(1, min(n.values()) + 1)
            },
            tool_results=self.tool_results,
            different_results=tuple(self.different_results),
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


def recorded_run(
    config: EvaluationConfig, tasks: Sequence[Task], chosen: Sequence[Task]
) -> RecordedRun | None:
    """Return the recorded run that ``config`` asks for, if any.

    The agent is then named ``tau-bench:PATH``, by which a resumed evaluation recognises it. Raises
    ``BundleError`` for a faulty file and for a file of other tasks.
    """
    path = config.from_tau_bench
    if path is None and config.agent is not None and config.agent.startswith(PREFIX):
        path = config.agent.removeprefix(PREFIX)
    if path is None:
        return None
    run = RecordedRun.load(path, tasks, chosen)
    config.agent = f"{PREFIX}{path}"
    config.retries = config.retry_user_errors = 0  # a replay comes out the same each time
    config.n_rollouts = None  # one per trial
    return run


class RecordedAgent:
    """Repeats the recorded tool calls and replies; each assistant message is one step."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._steps: Iterator[AgentStep] | None = None
        self._rollout: Rollout | None = None

    async def respond(self, rollout: Rollout) -> str | Message:
        """Return the next recorded reply; the rollout ends with the trajectory."""
        trial, conversation = self._run.trials[rollout.row_id, rollout.index]
        if self._steps is None:
            self._rollout = rollout
            given = sum(message["role"] == "assistant" for message in rollout.messages)
            self._steps = iter(conversation.steps[given:])
        for step in self._steps:
            rollout.step()
            if not step.message.get("tool_calls"):
                return step.message
            announced = rollout.record(step.message)["tool_calls"]
            for call, recorded in zip(announced, step.calls, strict=False):
                function = recorded["function"]
                written = function["arguments"]
                if isinstance(written, str):
                    written = written_arguments(written)
                await rollout.call_tool(function["name"], written, call_id=call["id"])
        _end(rollout, trial)
        return ""

    async def close(self) -> None:
        """Compare the tool results of the finished rollout."""
        if self._rollout is not None:
            self._run.compare_tools(self._rollout)


class RecordedUser:
    """Says the recorded lines of the user in order."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._lines: Iterator[str] | None = None

    async def respond(self, rollout: Rollout) -> str:
        """Return the next recorded line; after the last one the rollout ends."""
        trial, conversation = self._run.trials[rollout.row_id, rollout.index]
        if self._lines is None:
            given = sum(message["role"] == "user" for message in rollout.messages)
            self._lines = iter(conversation.lines[given:])
        line = next(self._lines, "")
        if not line.strip():
            _end(rollout, trial)
            return ""
        return line


def _end(rollout: Rollout, trial: Trial) -> None:
    """End the rollout as the trial ended. Raises ``ModelError`` if the agent was not at fault."""
    reason: StopReason = "agent_done" if trial.judged else "max_steps"
    if trial.error is None:
        rollout.stop(reason, "the recorded trajectory ends here")
    elif trial.is_agents_fault:
        rollout.stop("agent_error", trial.error)
    else:
        raise ModelError(f"the recorded run failed: {trial.error}")
