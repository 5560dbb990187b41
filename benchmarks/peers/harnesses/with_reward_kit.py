"""The task as a reward_kit bundle: a SQLite seed, two tools, a reward on the final database.

Nothing is tuned: default durability; outcomes, trajectories and final states on disk. ``--save no`` is
``--keep-db none`` with an output folder on a file system in memory.

``--workers N`` plays in other processes. The stub is an agent there: a model object cannot cross the border.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from conversation import COUNTER, EXPECTED, MODEL_TURNS, STOCK, SYSTEM, WISHES
from measuring import measure, parse_arguments
from reward_kit_user import DELAY, answer

from reward_kit.agent import EvaluationConfig
from reward_kit.agent.evaluation.run import run_evaluation
from reward_kit.agent.evaluation.signals import rare_collections

if TYPE_CHECKING:
    from reward_kit.agent import EvaluationResult
    from reward_kit.agent.base.types import Completion

TOOLS = '''
from conversation import COUNTER
from reward_kit.agent import ToolRegistry

R = ToolRegistry("shop")


@R.tool(parameters={"item_id": int})
async def read_item(item_id, db):
    """Read one item of the stock."""
    COUNTER.tool_calls += 1
    return await db.fetch_one("SELECT id, quantity FROM stock WHERE id = :id", {"id": item_id})


@R.tool(parameters={"item_id": int, "quantity": int})
async def write_item(item_id, quantity, db):
    """Change how many there are of an item."""
    COUNTER.tool_calls += 1
    await db.execute("UPDATE stock SET quantity = :q WHERE id = :id", {"q": quantity, "id": item_id})
    return {"id": item_id, "quantity": quantity}
'''
REWARD = f"""
from reward_kit import reward_function, RewardOutput

EXPECTED = {EXPECTED!r}


@reward_function
def evaluate(messages, *, db, **kwargs):
    stock = {{row.id: row.quantity for row in db.fetch_all("SELECT id, quantity FROM stock")}}
    return RewardOutput(score=float(stock == EXPECTED), reason="compared")
"""
SEED = "CREATE TABLE stock(id INTEGER PRIMARY KEY, quantity INTEGER);\n" + "".join(
    f"INSERT INTO stock VALUES ({item}, {quantity});\n" for item, quantity in STOCK.items()
)


class StubModel:
    """Answers by the number of assistant messages so far."""

    name = "stub"

    def __init__(self, delay: float) -> None:
        self._delay = delay

    async def complete(self, messages: list[dict[str, Any]], **_: Any) -> Completion:
        return await answer(messages, self._delay)


def write_bundle(folder: Path, rollouts: int) -> Path:
    folder.mkdir(parents=True)
    (folder / "tools.py").write_text(TOOLS)
    (folder / "reward.py").write_text(REWARD)
    (folder / "seed.sql").write_text(SEED)
    common = {
        "toolset": "shop_task.tools",
        "seed_sql": "file:seed.sql",
        "system_prompt": SYSTEM,
        "initial_messages": [{"role": "user", "content": WISHES[0]}],
    }
    dataset = folder / "task.jsonl"
    dataset.write_text(
        "".join(json.dumps({"id": f"row{number:05}", **common}) + "\n" for number in range(rollouts))
    )
    return dataset


async def evaluated(config: EvaluationConfig, models: dict[str, StubModel]) -> EvaluationResult:
    """Run an evaluation with the garbage collection of the command."""
    with rare_collections():
        return await run_evaluation(config, models=models)


def main() -> None:
    arguments = parse_arguments(numbers=("--workers",))
    os.environ[DELAY] = str(arguments.delay)

    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None

    def play(rollouts: int, folder: Path) -> None:
        config = EvaluationConfig(
            dataset=str(write_bundle(folder / "shop_task", rollouts)),
            agent="reward_kit_user:StubAgent" if arguments.workers else "tool-calling",
            user="reward_kit_user:second_wish",
            max_concurrency=arguments.at_once,
            workers=arguments.workers,
            output_dir=str(folder / "runs") if arguments.save else tempfile.mkdtemp(dir=memory),
            keep_db=None if arguments.save else "none",
        )
        models = {} if arguments.workers else {"agent": StubModel(arguments.delay)}
        result = asyncio.run(evaluated(config, models))
        passed = sum(outcome.reward == 1.0 for outcome in result.outcomes)
        if not arguments.workers:  # else the counter is in other processes
            COUNTER.check(passed, rollouts)
        elif (passed, result.usage["agent"].calls) != (rollouts, rollouts * MODEL_TURNS):
            raise RuntimeError(f"{passed} of {rollouts} rollouts passed")

    with tempfile.TemporaryDirectory(dir=memory) as memory:
        measure(arguments, play)


if __name__ == "__main__":
    main()
