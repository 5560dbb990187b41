"""Results as tables and by group."""

import csv
import io
from typing import Any

import pytest
from flight_bundle import Bundle
from planned_agent import change_log, evaluate, rows_of

from reward_kit.agent import EvaluationResult
from reward_kit.agent.reports.listings import group_lines
from reward_kit.agent.scoring.groups import MOST_GROUPS, metadata_groups
from reward_kit.agent.store.layout import load_evaluation

PLAN = {"a": [1, 1, 0], "b": [0, 0, 0], "c": [1, 1, 1], "d": [1, 0, 0], "e": [0, 1, 1]}
FIELDS: dict[str, dict[str, Any]] = {
    "a": {"metadata": {"domain": "air", "level": 2, "tags": ["long", "paid"]}},
    "b": {"metadata": {"domain": "rail", "level": 10, "tags": ["paid", "paid"]}},
    "c": {"metadata": {"domain": "air", "level": 2, "tags": []}},
    "d": {"metadata": {"domain": None, "where": {"city.name": "Bern"}}},
    "e": {"author": "Ann"},
}


@pytest.fixture
def result(bundle: Bundle) -> EvaluationResult:
    return evaluate(bundle, "first", PLAN, rows=[{**row, **FIELDS[row["id"]]} for row in rows_of(PLAN)])


def stored() -> EvaluationResult:
    return load_evaluation("first")


def rows_by(result: EvaluationResult, field: str) -> list[tuple[Any, str]]:
    return [(group.value, "".join(row.row_id for row in group.rows)) for group in result.by(field)]


def test_a_result_counts_its_rows_and_rollouts(result: EvaluationResult) -> None:
    assert (result.planned, result.n_scored, result.passed) == (15, 15, 8)
    assert result.averages.reward == result.pass_power[1]
    assert result.pass_power[1].value == pytest.approx(8 / 15)
    first = result.rows[0]
    assert (first.n_scored, first.passed) == (first.n, first.c) == (3, 2)
    assert [record.row_id for record in result.records()] == [one.row_id for one in result.outcomes]
    assert repr(result) == "<EvaluationResult first complete: 15 of 15 rollouts, Pass^1 0.533>"


@pytest.mark.parametrize(
    ("field", "groups"),
    [
        ("metadata.domain", [("air", "ac"), ("rail", "b"), (None, "de")]),
        ("metadata.level", [(2, "ac"), (10, "b"), (None, "de")]),
        ("metadata.tags", [("long", "a"), ("paid", "ab"), (None, "cde")]),
        ("metadata.where.city.name", [("Bern", "d"), (None, "abce")]),
        ("id", [(name, name) for name in "abcde"]),
    ],
)
def test_rows_are_grouped_by_a_field(result: EvaluationResult, field: str, groups: Any) -> None:
    assert rows_by(result, field) == groups


def test_the_table_of_groups_has_a_line_for_all_rows(result: EvaluationResult) -> None:
    title, _, head, *lines, interval, several = group_lines(result, "metadata.tags")
    assert title.startswith("planned_agent:Planned: 8 of 15 judged rollouts passed, 5 rows")
    assert head.split() == ["metadata.tags", "rows", "judged", "Pass^1", "Pass^2", "Pass^3", "reward"]
    assert [line.split()[:4] for line in lines] == [
        ["long", "1", "3/3", "0.667"],
        ["paid", "2", "6/6", "0.333"],
        ["(none)", "3", "9/9", "0.667"],
        ["all", "5", "15/15", "0.533"],
    ]
    assert interval == "[95 % interval for tasks like these]"
    assert several == "Rows with several values count in each of their groups."


def test_metadata_fields_with_few_values_make_groups(bundle: Bundle) -> None:
    def metadata(number: int) -> dict[str, Any]:
        return {
            "domain": "air" if number % 2 else "rail",
            "level": number // 10,
            "hard": number > 5,
            "tags": ["paid", "long"] if number % 3 else ["paid"],
            "where": {"city": ["Bern", "Oslo"][number % 2]},
            "some": ["x", "y", None][number % 3],
            "split": "test",
            "index": number,
            "pair": number // 2,
            "shape": [[number % 2]],
            "rare": {7: "a", 8: "b"}.get(number),
        }

    plan = {f"row{number:02}": [1] for number in range(2 * MOST_GROUPS + 2)}
    rows = [{**row, "metadata": metadata(number)} for number, row in enumerate(rows_of(plan))]
    result = evaluate(bundle, "first", plan, rows=rows)
    found = metadata_groups(result.row_fields())
    fit = ["domain", "level", "hard", "tags", "where.city", "some"]
    assert list(found) == [f"metadata.{name}" for name in fit]
    assert [group.value for group in found["metadata.some"]] == ["x", "y", None]


def test_to_table_gives_flat_lines_with_the_same_keys(bundle: Bundle) -> None:
    usage = {"calls": 2, "input_tokens": 30, "output_tokens": 4, "cost": 0.5}
    result = evaluate(bundle, "first", {"b": [1, 0], "a": [0]}, usage=usage)
    table = result.to_table()
    judged = [(line["row_id"], line["rollout"], line["reward"], line["success"]) for line in table]
    assert judged == [("b", 0, 1.0, True), ("b", 1, 0.0, False), ("a", 0, 0.0, False)]
    for line, outcome in zip(table, result.outcomes, strict=True):
        assert (line["eval_id"], line["agent"], line["model"]) == ("first", "planned_agent:Planned", None)
        assert (line["id"], line["file"], line["failure"]) == (outcome.id, outcome.file, outcome.failure)
        assert (line["cost"], line["usage.agent.input_tokens"]) == (0.5, 30)
        assert line["metrics.task_complete"] == outcome.reward
    faults = {"book": {"calls": 1, "first": "KeyError"}, "search": {"calls": 2, "first": "KeyError"}}
    change_log(result, "a", metrics={"other": 0.5}, tool_faults=faults, user_faults=["left", "left_early"])
    table = stored().to_table()
    assert len({tuple(line) for line in table}) == 1
    assert all(isinstance(value, str | int | float | None) for line in table for value in line.values())
    first, _, last = table
    assert (first["metrics.other"], last["metrics.other"], last["metrics.task_complete"]) == (None, 0.5, None)
    assert (last["tool_faults"], last["user_faults"]) == ("book, search", "left, left_early")
    csv.DictWriter(io.StringIO(), first).writerows(table)
