"""The players of an evaluation that replays a results file of tau-bench."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.players.names import NO_USER
from reward_kit.agent.players.participants import Participants
from reward_kit.agent.tau_bench.replay import PREFIX, RecordedAgent, RecordedUser

if TYPE_CHECKING:
    from reward_kit.agent.tau_bench.replay import RecordedRun


def recorded_participants(run: RecordedRun) -> Participants:
    """Return the recorded agent and users; rows in whose trials no user speaks have none."""
    spec = f"{PREFIX}{run.path}"
    heard = {row_id for (row_id, _), (_, conversation) in run.trials.items() if conversation.lines}
    return Participants(
        agent_spec=spec,
        make_agent=lambda: RecordedAgent(run),
        user_specs={task.row.id: spec if task.row.id in heard else NO_USER for task in run.tasks},
        make_user={spec: lambda: RecordedUser(run), NO_USER: lambda: None},
    )
