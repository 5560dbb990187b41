"""An agent and a user that do and say again what a results file of tau-bench holds."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.cut_text import excerpt
from reward_kit.agent.history import written_arguments
from reward_kit.agent.participants import NO_USER, Participants
from reward_kit.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.completion import Message
    from reward_kit.agent.rollout import Rollout, StopReason
    from reward_kit.agent.tau_bench.conversation import AgentStep
    from reward_kit.agent.tau_bench.recorded import RecordedResults, RecordedTrial

PREFIX = "tau-bench:"
"""How an evaluation names this agent: ``tau-bench:PATH``."""


class ToolResults:
    """How many tool results came out as recorded, and where one did not first."""

    def __init__(self) -> None:
        self.compared = 0
        self.differences: list[str] = []

    def compare(self, rollout: Rollout, trial: RecordedTrial) -> None:
        """Lay the results of a rollout that is over beside those of the file."""
        recorded = [text for step in trial.conversation.steps for text in step.observed or ()]
        for call, text in zip(rollout.tool_calls, recorded, strict=False):
            self.compared += 1
            if call.content != text:
                where = f"task {trial.trial.task_id}, trial {trial.trial.trial}, {call.name}"
                self.differences.append(f"{where}: {_cut(text)} in the file, {_cut(call.content)} here")


def _cut(text: str) -> str:
    return repr(excerpt(text, 100))


class RecordedAgent:
    """Makes the recorded tool calls and says the recorded replies; each assistant message is one step."""

    def __init__(self, results: RecordedResults, compared: ToolResults) -> None:
        self._results = results
        self._compared = compared
        self._steps: Iterator[AgentStep] | None = None
        self._played: tuple[Rollout, RecordedTrial] | None = None

    async def respond(self, rollout: Rollout) -> str | Message:
        """The next recorded reply; where the trajectory ends, the rollout ends."""
        trial = self._results.trials[rollout.row.id, rollout.index]
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
        """The rollout is over: compare what its tools answered."""
        if self._played is not None:
            self._compared.compare(*self._played)


class RecordedUser:
    """Says the recorded lines of the user in order."""

    def __init__(self, results: RecordedResults) -> None:
        self._results = results
        self._lines: Iterator[str] | None = None

    async def respond(self, rollout: Rollout) -> str:
        """The next recorded line; where there is none, the rollout ends."""
        trial = self._results.trials[rollout.row.id, rollout.index]
        if self._lines is None:
            given = sum(message["role"] == "user" for message in rollout.messages)
            self._lines = iter(trial.conversation.lines[given:])
        line = next(self._lines, "")
        if not line.strip():
            _end(rollout, trial)
            return ""
        return line


def _end(rollout: Rollout, recorded: RecordedTrial) -> None:
    """End a rollout as it ended there; raises ``ModelError`` where it broke down through no fault of the
    agent.
    """
    trial = recorded.trial
    reason: StopReason = "agent_done" if trial.judged else "max_steps"
    if trial.error is None:
        rollout.stop(reason, "the recorded trajectory ends here")
    elif trial.agents_fault:
        rollout.stop("agent_error", trial.error)
    else:
        raise ModelError(f"the recorded run broke down: {trial.error}")


def recorded_participants(results: RecordedResults, compared: ToolResults) -> Participants:
    """The participants of an evaluation that runs nothing but what ``results`` recorded.

    Rows in whose trials no user says anything are played without one.
    """
    spec = f"{PREFIX}{results.path}"
    heard = {row_id for (row_id, _), trial in results.trials.items() if trial.conversation.lines}
    return Participants(
        agent_spec=spec,
        make_agent=lambda: RecordedAgent(results, compared),
        user_specs={task.row.id: spec if task.row.id in heard else NO_USER for task in results.tasks},
        make_user={spec: lambda: RecordedUser(results), NO_USER: lambda: None},
    )
