"""The agent in Node, evaluated through the door as its README says."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command import Finished, run_command
from stored_rollouts import query

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = shutil.which("node")
ROWS = "flight.question.004,flight.payment.005"


@pytest.fixture
def agent() -> Iterator[str]:
    """The address of the agent."""
    if NODE is None:
        pytest.skip("node is not installed")
    line = [NODE, str(EXAMPLES / "node_agent" / "agent.mjs"), "0"]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        yield found[0]
    finally:
        process.kill()
        process.communicate()


def evaluate(folder: Path, *arguments: str) -> Finished:
    env = {**os.environ, "MODEL_AGENT": "", "MODEL_SIM": ""}
    return run_command("agent-eval", "-d", EXAMPLES / "flight_task", *arguments, cwd=folder, env=env)


def trajectories(folder: Path) -> list[dict[str, Any]]:
    (path,) = folder.glob("runs/evals/*.db")
    return [json.loads(row["json"]) for row in query(path, "SELECT json FROM traces")]


def test_it_solves_what_needs_no_second_line(tmp_path: Path, agent: str) -> None:
    done = evaluate(tmp_path, "--agent", agent, "--no-sim-user", "--task-ids", ROWS, "--n-rollouts", "5")
    assert done.code == 0, done.err
    played = trajectories(tmp_path)
    assert [one["reward"] for one in played] == [1.0] * 10
    assert {one["agent"] for one in played} == {agent}
    assert {one["stop_reason"] for one in played} == {"agent_done"}
    calls = {(one["row_id"], call["name"], call["status"]) for one in played for call in one["tool_calls"]}
    question, payment = ROWS.split(",")
    assert calls == {(question, "search_flights", "ok"), (payment, "pay_booking", "ok")}
    [last] = {one["messages"][-1]["content"] for one in played if one["row_id"] == "flight.payment.005"}
    assert last == "Booking 7F3A91C2 is paid."
