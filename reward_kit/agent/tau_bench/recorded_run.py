"""An evaluation that runs nothing but what a results file of tau-bench recorded (``--from-tau-bench``)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from reward_kit.agent.tau_bench.agreement import Agreement, agreement_of
from reward_kit.agent.tau_bench.players import PREFIX, ToolResults, recorded_participants
from reward_kit.agent.tau_bench.recorded import RecordedResults

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.evaluation_config import EvaluationConfig
    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.participants import Participants


@dataclass(slots=True)
class RecordedRun:
    """The file with its rows, and what plays it; each recorded call is made again on the row's database."""

    results: RecordedResults
    participants: Participants
    tools: ToolResults = field(default_factory=ToolResults)

    @property
    def tasks(self) -> list[Task]:
        """The chosen rows that the file has results of."""
        return self.results.tasks

    @property
    def warnings(self) -> list[str]:
        return self.results.warnings

    def agreement(self, outcomes: Iterable[RolloutOutcome]) -> Agreement:
        """The file beside what came out here."""
        return agreement_of(self.results, outcomes, self.tools)


def recorded_run(
    config: EvaluationConfig, tasks: Sequence[Task], chosen: Sequence[Task]
) -> RecordedRun | None:
    """The recorded run that ``config`` asks for, None where it asks for none.

    The agent is then named ``tau-bench:PATH``, which is how a resumed evaluation knows. Raises
    ``BundleError`` for a faulty file and one of other tasks.
    """
    path = config.from_tau_bench
    if path is None and config.agent is not None and config.agent.startswith(PREFIX):
        path = config.agent.removeprefix(PREFIX)
    if path is None:
        return None
    results = RecordedResults.load(path, tasks, chosen)
    tools = ToolResults()
    participants = recorded_participants(results, tools)
    config.agent = participants.agent_spec
    config.retries = config.retry_user_errors = 0  # a second try would meet the same
    config.n_rollouts = None  # as many as there are trials
    return RecordedRun(results, participants, tools)
