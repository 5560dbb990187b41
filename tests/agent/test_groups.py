"""Scores by group: what rows say of themselves tells them apart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import Bundle, flight_bundle
from planned_agent import change_log, evaluate, rows_of

from reward_kit.agent import EvaluationResult
from reward_kit.agent.groups import MOST_GROUPS, metadata_groups
from reward_kit.agent.reports.groups_table import group_lines
from reward_kit.agent.runs.stored_evaluation import load_evaluation
from reward_kit.agent.runs.stored_result import stored_result
from reward_kit.errors import StorageError, UsageError

PLAN = {"a": [1, 1, 0], "b": [0, 0, 0], "c": [1, 1, 1], "d": [1, 0, 0], "e": [0, 1, 1]}
SAID: dict[str, dict[str, Any]] = {
    "a": {"metadata": {"domain": "air", "level": 2, "tags": ["long", "paid"]}},
    "b": {"metadata": {"domain": "rail", "level": 10, "tags": ["paid", "paid"]}},
    "c": {"metadata": {"domain": "air", "level": 2, "tags": []}},
    "d": {"metadata": {"domain": None, "where": {"city.name": "Bern"}}},
    "e": {"author": "Ann"},
}


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    return flight_bundle(tmp_path)


@pytest.fixture
def result(bundle: Bundle) -> EvaluationResult:
    rows = [{**row, **SAID[row["id"]]} for row in rows_of(PLAN)]
    return evaluate(bundle, "first", PLAN, rows=rows)


def rows_by(result: EvaluationResult, field: str) -> list[tuple[Any, str]]:
    return [(group.value, "".join(row.row_id for row in group.rows)) for group in result.by(field)]


@pytest.mark.parametrize(
    ("field", "groups"),
    [
        ("metadata.domain", [("air", "ac"), ("rail", "b"), (None, "de")]),
        ("metadata.level", [(2, "ac"), (10, "b"), (None, "de")]),
        ("metadata.tags", [("long", "a"), ("paid", "ab"), (None, "cde")]),
        ("metadata.where.city.name", [("Bern", "d"), (None, "abce")]),
        ("metadata.where", [({"city.name": "Bern"}, "d"), (None, "abce")]),
        ("author", [("Ann", "e"), (None, "abcd")]),
        ("n_rollouts", [(3, "abcde")]),
        ("id", [(name, name) for name in "abcde"]),
    ],
)
def test_rows_are_grouped_by_what_they_say(result: EvaluationResult, field: str, groups: Any) -> None:
    assert rows_by(result, field) == groups


def test_values_that_read_alike_are_not_the_same(bundle: Bundle) -> None:
    values: dict[str, Any] = {
        "a": 1,
        "b": "1",
        "c": True,
        "d": 1,
        "e": {"x": 1, "y": 2},
        "f": {"y": 2, "x": 1},
    }
    plan = {row_id: [1] for row_id in values}
    rows = [{**row, "kind": values[row["id"]]} for row in rows_of(plan)]
    found = rows_by(evaluate(bundle, "first", plan, rows=rows), "kind")
    assert sorted(rows for _, rows in found) == ["ad", "b", "c", "ef"]


def test_a_group_has_the_numbers_of_an_evaluation_of_its_rows_alone(
    bundle: Bundle, result: EvaluationResult
) -> None:
    air = result.by("metadata.domain")[0]
    alone = evaluate(bundle, "alone", {name: PLAN[name] for name in "ac"})
    assert air.pass_power == alone.pass_power
    assert air.pass_power[1].interval is not None
    assert air.reward == alone.averages.reward
    assert air.judged == 6


def test_rollouts_without_a_verdict_are_in_no_number(result: EvaluationResult) -> None:
    change_log(result, "b", reward=None, stop_reason="infrastructure_error")
    rail = stored_result(load_evaluation("first")).by("metadata.domain")[1]
    assert (rail.value, len(rail.rows), rail.judged, rail.reward, rail.pass_power) == ("rail", 1, 0, None, {})


def test_what_rows_said_when_they_were_played_counts_whatever_the_dataset_says_now(
    bundle: Bundle, result: EvaluationResult
) -> None:
    bundle.rows(*rows_of(PLAN, metadata={"domain": "sea"}))
    assert [value for value, _ in rows_by(result, "metadata.domain")] == ["air", "rail", None]


def test_one_trajectory_of_a_row_is_enough_and_none_is_told(result: EvaluationResult) -> None:
    first, second, third = (result.folder / one.file for one in result.rows[0].outcomes)
    first.unlink()
    second.write_text(json.dumps({**json.loads(second.read_bytes()), "fields": 3}))
    assert rows_by(result, "metadata.domain")[0] == ("air", "ac")
    third.unlink()
    with pytest.raises(StorageError, match="no such rollout file"):
        result.by("metadata.domain")


def test_rows_that_have_not_begun_are_in_no_group(result: EvaluationResult) -> None:
    change_log(result, "b", final=False)
    going = stored_result(load_evaluation("first"))
    assert rows_by(going, "metadata.domain") == [("air", "ac"), (None, "de")]
    assert [*group_lines(going, "metadata.domain")][-1] == "In no group: 1 row of which no rollout is over."


@pytest.mark.parametrize(
    ("field", "told"),
    [
        (
            "metadata.domian",
            r"no row has a field 'metadata\.domian' \(did you mean 'metadata\.domain'\?\)\. The",
        ),
        ("weather", r"There are: .*metadata\.domain, metadata\.level, metadata\.tags"),
        ("metadata.domain.name", "no row has a field"),
        (5, "by the name of a field, not by 5"),
    ],
)
def test_a_field_that_no_row_has_is_told(result: EvaluationResult, field: Any, told: str) -> None:
    with pytest.raises(UsageError, match=told):
        result.by(field)


def test_the_table_has_a_line_for_each_group_and_one_for_all(result: EvaluationResult) -> None:
    title, _, head, *lines, interval, several = group_lines(result, "metadata.tags")
    assert title.startswith("planned_agent:Planned: 8 of 15 judged rollouts passed, 5 rows")
    assert head.split() == ["metadata.tags", "rows", "judged", "Pass^1", "Pass^2", "Pass^3", "reward"]
    assert [line.split()[:4] for line in lines] == [
        ["long", "1", "3/3", "0.667"],
        ["paid", "2", "6/6", "0.333"],
        ["(none)", "3", "9/9", "0.667"],
        ["all", "5", "15/15", "0.533"],
    ]
    assert interval == "[95 % interval by bootstrap over rows]"
    assert several == "Rows with several values count in each of their groups."


def test_fields_of_metadata_that_tell_rows_apart_make_groups(bundle: Bundle) -> None:
    def said(number: int) -> dict[str, Any]:
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
            "one": {7: 1, 8: 1}.get(number),
        }

    plan = {f"row{number:02}": [1] for number in range(2 * MOST_GROUPS + 2)}
    rows = [{**row, "metadata": said(number)} for number, row in enumerate(rows_of(plan))]
    result = evaluate(bundle, "first", plan, rows=rows)
    found = metadata_groups(result.rows, folder=result.folder, seed=0)
    fit = ["domain", "level", "hard", "tags", "where.city", "some"]
    assert list(found) == [f"metadata.{name}" for name in fit]
    assert found["metadata.some"] == result.by("metadata.some")  # with those that do not have it


def test_rows_without_metadata_make_no_groups_by_it(bundle: Bundle) -> None:
    result = evaluate(bundle, "first", PLAN, rows=[{**row, "domain": "air"} for row in rows_of(PLAN)])
    assert metadata_groups(result.rows, folder=result.folder, seed=10) == {}
