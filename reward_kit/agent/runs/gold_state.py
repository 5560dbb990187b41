"""What a row's gold actions lead to."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from reward_kit.agent.failures import ExpectedCall
from reward_kit.agent.gold import replay_gold_calls

if TYPE_CHECKING:
    from reward_kit.agent.bundles.task import Task
    from reward_kit.agent.database import Database


@dataclass(slots=True)
class GoldState:
    """The state after the gold actions, with each action and the rows that it changed.

    ``shared`` says that no random number was drawn, so that the state does not depend on the rollout's seed
    and all rollouts of the row can be compared with this one; otherwise (tools that make up random ids) each
    needs its own. ``file`` is where the state is stored. ``fault`` tells the first action that could not be
    done as it is written (``GoldCall.is_faulty``), so that the state is hardly the one that was meant.
    """

    database: Database
    calls: list[dict[str, Any]] = field(default_factory=list)
    shared: bool = True
    file: str | None = None
    fault: str | None = None

    @property
    def expected(self) -> list[ExpectedCall]:
        """The gold actions as the failure classes need them.

        The answers of reads are known; not those after a change for which a random number may be drawn.
        """
        expected = []
        is_known = True
        for call in self.calls:
            writes = bool(call["changes"])
            is_known = is_known and (self.shared or not writes)
            answer = call["content"] if is_known and not writes else None
            expected.append(ExpectedCall(call["name"], call["arguments"], writes, call["changes"], answer))
        return expected


async def replay_row_gold(task: Task, base: Database, *, seed: int) -> GoldState:
    """Replay the gold actions with the seed of a rollout, so that random ids come out as in the rollout."""
    replay = await replay_gold_calls(task, base, seed=seed)
    done = list(zip(task.row.actions or (), replay.calls, strict=True))
    calls = [
        {"name": action.name, "arguments": action.arguments, "content": call.content, "changes": call.changes}
        for action, call in done
    ]
    faults = (
        f"action {number} ({action.name}): {call.raised or call.content}"
        for number, (action, call) in enumerate(done)
        if call.is_faulty
    )
    shared = replay.database.draws == 0
    return GoldState(database=replay.database, calls=calls, shared=shared, fault=next(faults, None))
