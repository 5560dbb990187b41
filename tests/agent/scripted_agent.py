"""An agent that makes the calls it is told to, and the judgement of what comes of them."""

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from reward_kit.agent.bundles.bundle import Task
from reward_kit.agent.database import Database
from reward_kit.agent.rollout.budgets import RolloutLimits
from reward_kit.agent.rollout.gold import replay_gold_calls
from reward_kit.agent.rollout.orchestrator import run_rollout
from reward_kit.agent.runner.row_states import expected_calls
from reward_kit.agent.scoring.failures.classify import Failure, classify
from reward_kit.agent.scoring.record_keeping import record_of

Turn = Sequence[Any]


class ScriptedAgent:
    """A turn is a list of calls ``(name, arguments)``; a text in it is what it says in the end."""

    def __init__(self, turns: Sequence[Turn]) -> None:
        self.turns = [list(turn) for turn in turns]

    async def respond(self, rollout: Any) -> str:
        said = "Done."
        for part in self.turns.pop(0) if self.turns else []:
            if isinstance(part, str):
                said = part
            else:
                await rollout.call_tool(*part)
        return said


async def failure_of(
    task: Task, base: Database, *turns: Turn, user: Any = None, agent: Any = None, **limits: Any
) -> Failure | None:
    """Play the turns with the real orchestrator and say why it failed; None for a success."""
    gold = None if task.row.actions is None else await replay_gold_calls(task, base, seed=0)
    state = gold.database if gold else None
    options = {"limits": RolloutLimits(**limits), "agent": agent or ScriptedAgent(turns), "user": user}
    finished = await run_rollout(task, 0, base=base, gold_database=state, **options)
    with finished.database, state or nullcontext():
        of = {"eval_id": "e", "agent": "scripted", "user": "llm" if user else "none", "models": {}}
        record = record_of(finished, attempt=0, database=None, gold_database=None, **of)
        of_gold = {"expected": expected_calls(task, gold), "gold_fault": gold.fault if gold else None}
        changes = finished.database.changes()
        classify(record, task.reward, changes=changes, gold=finished.gold, **of_gold)
        return Failure(**record.failure) if record.failure else None
