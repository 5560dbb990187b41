"""What a row's gold actions lead to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.failures import ExpectedCall
from reward_kit.agent.gold import replay_gold_calls

if TYPE_CHECKING:
    from reward_kit.agent.bundle import Task
    from reward_kit.agent.database import Database


@dataclass(slots=True)
class GoldState:
    """The state after the gold actions, with each action and the rows that it changed.

    ``shared`` says that no random number was drawn, so that the state does not depend on the rollout's seed
    and all rollouts of the row can be compared with this one; otherwise (tools that make up random ids) each
    needs its own. ``file`` is where the state is stored.
    """

    database: Database
    calls: list[dict[str, Any]] = field(default_factory=list)
    shared: bool = True
    file: str | None = None

    @property
    def expected(self) -> list[ExpectedCall]:
        """The gold actions as the failure classes need them."""
        return [
            ExpectedCall(call["name"], call["arguments"], bool(call["changes"]), call["changes"])
            for call in self.calls
        ]


async def replay_row_gold(task: Task, base: Database, *, seed: int) -> GoldState:
    """Replay the gold actions with the seed of a rollout, so that random ids come out as in the rollout."""
    replay = await replay_gold_calls(task, base, seed=seed)
    calls = [
        {"name": action.name, "arguments": action.arguments, "content": call.content, "changes": call.changes}
        for action, call in zip(task.row.actions or (), replay.calls, strict=True)
    ]
    return GoldState(database=replay.database, calls=calls, shared=replay.database.draws == 0)
