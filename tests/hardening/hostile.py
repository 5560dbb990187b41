"""What running a command on a hostile bundle came to."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from flight_bundle import GOLD, Bundle
from stored_rollouts import query

GOLD_RUN = ("-d", "task.jsonl", "--agent", "gold", "--retries", "0")
VALIDATE = ("-d", "task.jsonl", "--validate-only")


@dataclass
class Ran:
    """A finished command: its exit code, what it said, and the files that it left anywhere in its world."""

    code: int
    out: str
    err: str
    outside: list[str]
    evaluations: list[dict[str, Any]]

    def refused(self, *parts: str) -> None:
        """It ended with one clear error that holds ``parts``."""
        assert self.code == 2, (self.code, self.out, self.err)
        self.tidy()
        assert [line[:7] for line in self.err.splitlines()].count("Error: ") == 1, self.err
        for part in parts:
            assert part in self.err

    def tidy(self) -> None:
        """No traceback, and nothing written but results."""
        assert "Traceback" not in self.out + self.err, self.err
        assert self.outside == []

    @property
    def result(self) -> dict[str, Any]:
        (only,) = self.evaluations
        return only


Command = Callable[..., Ran]
"""``reward-kit agent-eval`` with these arguments."""
Writer = Callable[..., None]
"""Writes a file of the bundle."""


def trajectories(bundle: Bundle, row_id: str) -> list[dict[str, Any]]:
    """The rollouts of a row, as they are stored."""
    (path,) = bundle.folder.glob("runs/evals/*.db")
    found = query(path, "SELECT json FROM traces WHERE json_extract(json, '$.row_id') = ?", row_id)
    return [json.loads(row["json"]) for row in found]


def indented(body: str) -> str:
    """The body of a function."""
    return "\n".join(f"    {line}" for line in body.splitlines())


def tool(name: str, body: str, kind: str = "async def", parameters: str = "db") -> str:
    """The source of a tool."""
    return f"@R.tool(parameters={{}})\n{kind} {name}({parameters}):\n{indented(body)}\n"


def row_calling(name: str) -> dict[str, Any]:
    """A row whose one gold action calls this tool."""
    return {"id": name, "actions": [{"name": name, "arguments": {}}], "n_rollouts": 1, "outputs": []}


def row_for_each_reward(bundle: Bundle, number: int) -> None:
    """Rows ``row0``, ``row1`` … that are judged by the functions ``f0``, ``f1`` … of ``reward.py``."""
    row = {"actions": GOLD, "n_rollouts": 1}
    bundle.rows(*({"id": f"row{n}", "reward": f"flight_task.reward:f{n}", **row} for n in range(number)))
