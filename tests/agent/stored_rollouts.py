"""Rollouts and runs to store, without an evaluation that plays them."""

import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from reward_kit.agent.base.types import Usage
from reward_kit.agent.bundles.seed import Seed
from reward_kit.agent.rollout.outcome import Outcome, Played
from reward_kit.agent.rows.task_row import TaskRow
from reward_kit.agent.store.evaluation_file import checksum, rollout_at
from reward_kit.agent.store.resume import PlannedRow, Run
from reward_kit.agent.store.writer import Store

KEY = "ab" * 32


def outcome(number: int, **fields: Any) -> Outcome:
    """The outcome of rollout ``number`` of row ``a``."""
    name = f"r{number:05d}"
    place = {"id": name, "row_id": "a", "index": number, "attempt": 0, "final": True, "seed": 7}
    end = {"reward": 1.0, "stop_reason": "agent_done", "steps": 3, "turns": 1, "turn_of_success": 1}
    times = {"started": 1000.0, "seconds": 2.0, "model_seconds": 1.0, "file": f"evals/e.db/{name}"}
    nothing = dict.fromkeys(("stop_detail", "error", "failure", "failure_detail"))
    usage = {"agent": Usage(calls=2, input_tokens=10, output_tokens=5, cost=0.25)}
    return Outcome(**{**place, **end, **times, **nothing, "usage": usage, **fields})


def played(number: int, **fields: Any) -> Played:
    """Rollout ``number`` of row ``a``, with a delta."""
    one = outcome(number, base=KEY, **fields)
    return Played(one, json.dumps({"id": one.id, "text": "x" * 2000}), state=b"delta")


def run_of(eval_id: str = "e", n_rollouts: int = 10) -> Run:
    """A run of one row."""
    row = PlannedRow(TaskRow("a", "t.tools"), Seed(KEY), n_rollouts, {"id": "a"}, {"row": "1"})
    return Run(eval_id, {"model": "m"}, {"python": "3"}, {"t/tools.py": "2"}, {}, [row])


def begun(path: Path, n_rollouts: int = 10) -> Store:
    """A store with a run that has begun."""
    store = Store(path)
    store.begin_run(run_of(path.stem, n_rollouts))
    return store


def query(path: Path, sql: str, *values: Any) -> list[dict[str, Any]]:
    """Rows of an evaluation's file, as a person with any SQLite tool reads them."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute(sql, values)]


def query_so_far(path: Path, sql: str, *values: Any) -> list[dict[str, Any]]:
    """The same of a file that may not be there, or not be whole, yet."""
    try:
        return query(path, sql, *values) if path.exists() else []
    except sqlite3.Error:
        return []


def edit(path: Path, sql: str, *values: Any) -> None:
    """Change an evaluation's file by hand."""
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(sql, values)


def keep_first(path: Path, number: int) -> None:
    """Leave only the first rollouts, as if the process had been killed then."""
    last = "SELECT seq FROM rollouts ORDER BY seq LIMIT 1 OFFSET ?"
    edit(path, f"DELETE FROM rollouts WHERE seq > ({last})", number - 1)
    edit(path, "UPDATE evaluation SET status = 'running', seconds = NULL")


def change_trajectory(address: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the stored JSON of the rollout at ``NAME.db/ID``."""
    plain = json.loads(rollout_at(address).trace)
    change(plain)
    text = json.dumps(plain)
    update = "UPDATE traces SET json = ?, crc = ? WHERE rollout = ?"
    edit(address.parent, update, text, checksum(text), address.name)
