"""Replay a tau-bench results file (``--from-tau-bench``) and compare rewards and tool results.

The recorded calls run again on the row's database, so that the bundle's own reward judges them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.history import written_arguments
from reward_kit.agent.base.text import count, excerpt
from reward_kit.agent.records.outcome import is_success
from reward_kit.agent.rollout.rollout import episode_of
from reward_kit.agent.scoring.metrics import pass_power_k
from reward_kit.agent.tau_bench.recorded import RecordedResults
from reward_kit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from reward_kit.agent.base.types import Message, StopReason
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.config import EvaluationConfig
    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.rollout.rollout import Rollout
    from reward_kit.agent.tau_bench.conversation import AgentStep
    from reward_kit.agent.tau_bench.recorded import RecordedTrial

PREFIX = "tau-bench:"
"""Prefix of the agent's name in such an evaluation: ``tau-bench:PATH``."""
SHOWN = 20
"""Disagreements that are printed; the JSON report has all of them."""


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
    """A results file, ready to be replayed."""

    results: RecordedResults
    tool_results: int = 0
    different_results: list[str] = field(default_factory=list)

    @property
    def tasks(self) -> list[Task]:
        """The chosen rows that the file has results of."""
        return self.results.tasks

    @property
    def warnings(self) -> list[str]:
        """Differences between the file's tasks and the rows."""
        return self.results.warnings

    def compare_tools(self, rollout: Rollout, recorded: RecordedTrial) -> None:
        """Compare the tool results of a finished rollout with the recorded ones."""
        results = [text for step in recorded.conversation.steps for text in step.observed or ()]
        for call, text in zip(episode_of(rollout).tool_calls, results, strict=False):
            self.tool_results += 1
            if call.content != text:
                trial = recorded.trial
                before, now = (repr(excerpt(one, 100)) for one in (text, call.content))
                self.different_results.append(
                    f"task {trial.task_id}, trial {trial.trial}, {call.name}: "
                    f"{before} in the file, {now} here"
                )

    def agreement(self, outcomes: Iterable[RolloutOutcome]) -> Agreement:
        """Compare the file's rewards with those of the replayed rollouts."""
        compared = 0
        disagreements = []
        for outcome in outcomes:
            recorded = self.results.trials.get((outcome.row_id, outcome.index))
            if recorded is None or outcome.reward is None:
                continue
            compared += 1
            trial = recorded.trial
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
        return Agreement(
            compared=compared,
            disagreements=tuple(disagreements),
            pass_power=self._pass_power(),
            tool_results=self.tool_results,
            different_results=tuple(self.different_results),
        )

    def _pass_power(self) -> dict[int, float]:
        n = Counter(row_id for row_id, _ in self.results.trials)
        c = Counter(
            row_id for (row_id, _), one in self.results.trials.items() if is_success(one.trial.reward)
        )
        return {
            k: sum(pass_power_k(n[row_id], c[row_id], k) for row_id in n) / len(n)
            for k in range(1, min(n.values()) + 1)
        }


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
    run = RecordedRun(RecordedResults.load(path, tasks, chosen))
    config.agent = f"{PREFIX}{path}"
    config.retries = config.retry_user_errors = 0  # a replay comes out the same each time
    config.n_rollouts = None  # one per trial
    return run


class RecordedAgent:
    """Repeats the recorded tool calls and replies; each assistant message is one step."""

    def __init__(self, run: RecordedRun) -> None:
        self._run = run
        self._steps: Iterator[AgentStep] | None = None
        self._played: tuple[Rollout, RecordedTrial] | None = None

    async def respond(self, rollout: Rollout) -> str | Message:
        """Return the next recorded reply; the rollout ends with the trajectory."""
        trial = self._run.results.trials[rollout.row_id, rollout.index]
        if self._steps is None:
            self._played = rollout, trial
            given = sum(message["role"] == "assistant" for message in rollout.messages)
            self._steps = iter(trial.conversation.steps[given:])
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
        if self._played is not None:
            self._run.compare_tools(*self._played)


class RecordedUser:
    """Says the recorded lines of the user in order."""

    def __init__(self, results: RecordedResults) -> None:
        self._results = results
        self._lines: Iterator[str] | None = None

    async def respond(self, rollout: Rollout) -> str:
        """Return the next recorded line; after the last one the rollout ends."""
        trial = self._results.trials[rollout.row_id, rollout.index]
        if self._lines is None:
            given = sum(message["role"] == "user" for message in rollout.messages)
            self._lines = iter(trial.conversation.lines[given:])
        line = next(self._lines, "")
        if not line.strip():
            _end(rollout, trial)
            return ""
        return line


def _end(rollout: Rollout, recorded: RecordedTrial) -> None:
    """End the rollout as the trial ended. Raises ``ModelError`` if the agent was not at fault."""
    trial = recorded.trial
    reason: StopReason = "agent_done" if trial.judged else "max_steps"
    if trial.error is None:
        rollout.stop(reason, "the recorded trajectory ends here")
    elif trial.is_agents_fault:
        rollout.stop("agent_error", trial.error)
    else:
        raise ModelError(f"the recorded run failed: {trial.error}")
