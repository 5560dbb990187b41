"""The mark ``"refused": true`` of gold calls that the tools refuse: the benchmark's lists contain some."""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from reward_kit.agent import Database, TaskBundle


def mark_refused(dataset: Path) -> None:
    """Run the gold calls of each row of a new dataset, and mark those that are refused."""
    asyncio.run(_mark(dataset))


async def _mark(dataset: Path) -> None:
    rows = [json.loads(line) for line in dataset.read_text(encoding="utf-8").splitlines()]
    with TaskBundle.load(dataset) as bundle, tempfile.TemporaryDirectory() as folder:
        tools, seed = bundle.tasks[0].registry, bundle.tasks[0].seed  # all rows have the same
        with Database.seed(Path(folder) / "base.db", seed.sql, origin=seed.origin) as base:
            for row in rows:
                with base.fork() as db:
                    for action in row["actions"]:
                        result = await tools.call(action["name"], action["arguments"], db=db)
                        if result.status == "refused":
                            action["refused"] = True
    dataset.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
