"""Evaluations of the flight bundle in which it is known beforehand which rollout succeeds."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from flight_bundle import GOLD, Bundle
from stored_rollouts import edit

from reward_kit.agent import EvaluationResult, Usage, agent_eval
from reward_kit.agent.players.agents.replay import GoldAgent


class Planned(GoldAgent):
    """Plays the gold actions where ``plan`` says so, by row id and number of the rollout, else nothing."""

    plan: ClassVar[Mapping[str, Sequence[bool | int]]] = {}
    usage: ClassVar[Mapping[str, Any] | None] = None

    async def respond(self, rollout: Any) -> str:
        if self.usage is not None:
            rollout.count_usage(Usage(**self.usage), model="stub/one")
        if not self.plan[rollout.row_id][rollout.index]:
            return "Sorry."
        return await super().respond(rollout)


def rows_of(plan: Mapping[str, Sequence[bool | int]], **fields: Any) -> list[dict[str, Any]]:
    """A row for each entry of the plan."""
    numbers = {row_id: len(successes) for row_id, successes in plan.items()}
    return [{"id": row_id, "actions": GOLD, "n_rollouts": n, **fields} for row_id, n in numbers.items()]


def evaluate(
    bundle: Bundle,
    name: str,
    plan: Mapping[str, Sequence[bool | int]],
    *,
    usage: Mapping[str, Any] | None = None,
    rows: Sequence[dict[str, Any]] | None = None,
    **options: Any,
) -> EvaluationResult:
    """Evaluate the rows of ``plan`` under this name; ``rows`` in their place, ``usage`` for every rollout."""
    bundle.rows(*(rows_of(plan) if rows is None else rows))
    Planned.plan, Planned.usage = plan, usage
    given = {"agent": "planned_agent:Planned", "user": "none", **options}
    return agent_eval(bundle.dataset, eval_id=name, **given)


def change_log(result: EvaluationResult, row_id: str, **fields: Any) -> None:
    """Change columns of a row's rollouts in the evaluation's file."""
    for name, given in fields.items():
        value = json.dumps(given) if isinstance(given, dict | list) else given
        edit(Path(result.log_path), f"UPDATE rollouts SET {name} = ? WHERE row_id = ?", value, row_id)
