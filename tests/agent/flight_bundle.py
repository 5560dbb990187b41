"""A small flight bundle on disk, and what a finished command leaves."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reward_kit.agent import EvaluationResult, evaluate

REWARD = """
from reward_kit import reward_function, RewardOutput

@reward_function
def evaluate(messages, *, db, end_goal_sql, **kwargs):
    ok = db.execute(end_goal_sql).scalar_one()
    return RewardOutput(
        score=1.0 if ok else 0.0,
        reason="Task completed successfully" if ok else "Task incomplete",
        metrics={"task_complete": {"score": 1.0 if ok else 0.0,
                                   "reason": "Goal achieved" if ok else "Goal not met"}}
    )
"""
TOOLS = (Path(__file__).parents[2] / "examples" / "flight_task" / "tools.py").read_text()
SEED = """CREATE TABLE flights(
    id INTEGER PRIMARY KEY, origin TEXT, dest TEXT, depart TEXT, arrive TEXT, seats_available INT);
CREATE TABLE bookings(id TEXT PRIMARY KEY, flight_id INT, passenger TEXT, status TEXT);
INSERT INTO flights VALUES (1, 'SFO', 'JFK', '2025-05-20 06:30', '2025-05-20 15:00', 4);
"""
ROW = {
    "id": "flight.booking.001",
    "seed_sql": "file:seed.sql",
    "end_goal_sql": "SELECT COUNT(*)>0 FROM bookings WHERE passenger='Alice' AND status='paid';",
    "initial_messages": [
        {"role": "user", "content": "Book me a flight from SFO to JFK for tomorrow morning"}
    ],
    "sim_user_prompt": "You are Alice, a traveller.",
    "toolset": "flight_task.tools",
    "n_rollouts": 4,
}
GOLD = [
    {"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Alice"}},
    {"name": "pay_booking", "arguments": {"booking_id": {"$result": [0, "booking_id"]}}},
]


@dataclass
class Bundle:
    """A bundle's folder; ``players`` is the module with the agents and users that a test plays it with."""

    folder: Path
    players: str = ""

    @property
    def dataset(self) -> Path:
        return self.folder / "task.jsonl"

    def player(self, name: str) -> str:
        return f"{self.players}:{name}"

    def write(self, name: str, text: str) -> Path:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def rows(self, *rows: dict[str, Any]) -> Path:
        """Write a dataset; each row is the flight row with these fields changed (None: left out)."""
        merged = [{**ROW, **row} for row in rows]
        given = [{name: value for name, value in row.items() if value is not None} for row in merged]
        return self.write("task.jsonl", "".join(f"{json.dumps(row)}\n" for row in given))

    def play(self, player: str, **options: Any) -> EvaluationResult:
        """Evaluate one of the players as agent, without a user; no finished rollout is played again."""
        return evaluate(self.dataset, agent=self.player(player), user="none", retries=0, **options)


def flight_bundle(parent: Path) -> Bundle:
    """The bundle ``flight_task`` in ``parent``, with one row."""
    folder = parent / "flight_task"
    folder.mkdir()
    made = Bundle(folder)
    made.write("reward.py", REWARD)
    made.write("tools.py", TOOLS)
    made.write("seed.sql", SEED)
    made.rows({})
    return made
