"""The mark ``"refused": true`` of gold calls that the tools refuse: the benchmark's lists have some."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

from reward_kit.agent.base.worker_thread import run_sync
from reward_kit.agent.bundles.bundle import TaskBundle
from reward_kit.agent.database import Database
from reward_kit.agent.rollout.gold import replay_gold_calls


def mark_refused(dataset: Path) -> None:
    """Replay the gold calls of a written dataset, and mark those that are refused."""
    run_sync(_mark(dataset))


async def _mark(dataset: Path) -> None:
    rows = [json.loads(line) for line in dataset.read_text().splitlines()]
    with TaskBundle.load(dataset) as bundle, tempfile.TemporaryDirectory() as folder:
        seed = bundle.tasks[0].seed  # all rows have the same
        with Database.seed(Path(folder) / "base.db", seed.sql, origin=seed.origin, now=seed.now) as base:
            for task, row in zip(bundle.tasks, rows, strict=True):
                replay = await replay_gold_calls(task, base, seed=0)
                replay.database.close()
                for action, call in zip(row.get("actions", ()), replay.calls, strict=True):
                    if call.status == "refused":
                        action["refused"] = True
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows))
