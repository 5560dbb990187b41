"""The rollouts of a result as flat dicts: what data frames and CSV files are made of."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from flight_bundle import Bundle, flight_bundle
from planned_agent import change_log, evaluate

from reward_kit.agent.runs.stored_evaluation import load_evaluation
from reward_kit.agent.runs.stored_result import stored_result

PLAN = {"b": [1, 0], "a": [0]}
PRICED = {"calls": 2, "input_tokens": 30, "output_tokens": 4, "cost": 0.5}


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    return flight_bundle(tmp_path)


def test_a_line_has_what_is_known_of_its_rollout(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", PLAN, usage=PRICED)
    table = result.to_table()
    assert [(line["row_id"], line["rollout"], line["reward"], line["success"]) for line in table] == [
        ("b", 0, 1.0, True),
        ("b", 1, 0.0, False),
        ("a", 0, 0.0, False),
    ]
    for line, outcome in zip(table, result.outcomes, strict=True):
        assert (line["eval_id"], line["agent"], line["model"]) == ("first", "planned_agent:Planned", None)
        assert (line["id"], line["file"], line["failure"]) == (outcome.id, outcome.file, outcome.failure)
        assert (line["cost"], line["usage.agent.input_tokens"]) == (0.5, 30)
        assert line["metrics.task_complete"] == outcome.reward


def test_all_lines_have_the_same_keys_and_no_value_is_nested(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", PLAN)
    faults = {"book": {"calls": 1, "first": "KeyError"}, "search": {"calls": 2, "first": "KeyError"}}
    change_log(result, "a", metrics={"other": 0.5}, tool_faults=faults, user_faults=["left", "left_early"])
    table = stored_result(load_evaluation("first")).to_table()
    assert len({tuple(line) for line in table}) == 1
    assert all(isinstance(value, str | int | float | None) for line in table for value in line.values())
    first, _, last = table
    assert (first["metrics.other"], last["metrics.other"], last["metrics.task_complete"]) == (None, 0.5, None)
    assert (last["tool_faults"], last["user_faults"]) == ("book, search", "left, left_early")
    written = csv.DictWriter(io.StringIO(), first)
    written.writerows(table)


def test_what_is_not_known_is_none_and_never_zero(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", {"a": [1]}, usage={**PRICED, "unpriced_calls": 1})
    assert result.to_table()[0]["cost"] is None
    change_log(result, "a", reward=None, stop_reason="user_error")
    (line,) = stored_result(load_evaluation("first")).to_table()
    assert (line["reward"], line["success"]) == (None, None)


def test_nothing_is_no_line(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", {"a": [1]})
    change_log(result, "a", final=False)
    assert stored_result(load_evaluation("first")).to_table() == []
