"""``Trace``: what a reward sees of it, and the way to the disk and back."""

import json
import sqlite3
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from small_task import InProcessModel, play, small_task, wants

from reward_kit.agent import Trace, Usage
from reward_kit.agent.players.agents.tool_calling import ToolCallingAgent
from reward_kit.agent.rollout.outcome import Outcome
from reward_kit.agent.rollout.trace import read_trace
from reward_kit.agent.store.schema import SCHEMA

BOOKING = ("create_booking", {"flight_id": 1, "passenger": "Alice"})


async def played(folder: Path, **row: Any) -> Trace:
    model = InProcessModel([wants(BOOKING), "Done"])
    return (await play(small_task(folder, **row), ToolCallingAgent(), models={"agent": model})).trace


async def test_a_reward_changes_copies(tmp_path: Path) -> None:
    trace = await played(tmp_path, colour="red")
    before = trace.encoded()
    seen = trace.for_reward()
    seen.messages.clear()
    seen.tool_calls[0].arguments["flight_id"] = 2
    seen.tool_calls[0].changes.clear()
    seen.usage["agent"].add(Usage(calls=5))
    seen.lines.clear()
    seen.count_usage(Usage(input_tokens=3), model="judge")
    assert (trace.encoded(), len(trace.lines)) == (before, 2)
    assert (seen.row.id, seen.stop_reason, seen.steps) == (trace.row_id, "agent_done", 2)
    assert [call.usage.input_tokens for call in seen.counted()] == [3]
    for name in ("encoded", "for_reward", "_opened", "nothing"):
        with pytest.raises(AttributeError, match=f"no attribute '{name}' for its reward"):
            getattr(seen, name)
    with pytest.raises(TypeError, match="a client of its own"):
        seen.complete([])


async def test_a_trace_is_read_back_as_it_was_and_finds_its_row(tmp_path: Path) -> None:
    trace = await played(tmp_path, colour="red", outputs=["Done"])
    again = read_trace(trace.encoded(), tmp_path)
    again.given = json.dumps(trace.fields)
    assert again == trace
    assert (again.fields, again.outputs, again.opening) == (trace.fields, ["Done"], trace.opening)
    assert again.lines == trace.lines
    assert "colour" not in json.loads(trace.encoded())  # the row's own fields lie once beside the traces
    assert trace.to_json()["fields"]["colour"] == "red"


async def test_an_outcome_is_a_row_of_its_table(tmp_path: Path) -> None:
    outcome = (await played(tmp_path)).outcome(base="ab" * 32)
    assert (outcome.steps, outcome.turns, outcome.reward, outcome.tokens) == (2, 1, 0.0, 24)
    with sqlite3.connect(":memory:") as connection:
        connection.executescript(SCHEMA)
        columns = {name for _, name, *_ in connection.execute("PRAGMA table_info(rollouts)")}
    of_class = {"idx" if one.name == "index" else one.name for one in fields(Outcome)}
    assert columns == of_class - {"file"} | {"seq", "run", "tokens", "cost"}
