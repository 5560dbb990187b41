"""``reward-kit plan``: the table, the JSON, and mistakes."""

import json
from pathlib import Path

import pytest
from command import Command
from flight_bundle import Bundle
from planned_agent import evaluate

PLAN = {f"row.{number}": [1, number % 2, number % 3 > 0, 0] for number in range(12)}


def test_more_rows_and_rollouts_show_smaller_differences(bundle: Bundle, command: Command) -> None:
    evaluate(bundle, "one", PLAN)
    evaluate(bundle, "two", {**PLAN, "row.0": [1, 1, 1, 1]})
    ran = command("one", "--json", "plan.json")
    assert (ran.code, ran.error) == (0, "")
    head, title, _, these, *lines = ran.out.splitlines()
    assert head.startswith("one, 12 rows: Pass^1 0.542, standard deviation of rows 0.")
    assert head.endswith("correlation 0.80")
    assert title.startswith("Smallest difference of Pass^1, in points, that is shown with power 80 %")
    assert these.split() == ["these", "tasks", "1", "2", "4", "8", "16"]
    assert [line.split()[0] for line in lines[:5]] == ["3", "6", "12", "24", "48"]
    plain = json.loads(Path("plan.json").read_text())
    sizes = {(one["rows"], one["rollouts"]): one for one in plain["designs"]}
    assert lines[2].split()[-1] == f"{100 * sizes[12, 16]['these_tasks']:.1f}"
    assert sizes[12, 4]["these_tasks"] < sizes[12, 4]["tasks_like_these"]
    like = [sizes[design]["tasks_like_these"] for design in ((48, 4), (12, 4), (12, 2))]
    assert like[0] < like[1] < like[2]
    assert sizes[12, 16]["margin"] == pytest.approx(sizes[12, 4]["margin"] / 2)
    assert ran.out.splitlines()[-6].startswith("no difference: --margin ")
    assert " and two, 12 rows: " in command("one", "two").out
    assert "correlation 0.80" not in command("one", "two").out
    assert "correlation 0.50\n" in command("one", "two", "--correlation", "0.5").out


def test_rates_can_be_assumed(command: Command) -> None:
    ran = command("--rate", "0.5", "--spread", "0", "--n-rows", "100", "--n-rollouts", "1", "--power", "0.5")
    assert ran.code == 0
    assert ran.out.splitlines()[4].split() == ["100", "rows", "13.6"]  # 1.96 * sqrt((0.25 + 0.2315) / 100)
    assert command("--rate", "0.5", "--json", "-").out.startswith("{")


MISTAKES: list[tuple[list[str], str]] = [
    ([], "Name one evaluation or two, or give --rate"),
    (["one", "--rate", "0.5"], "Name one evaluation or two, or give --rate"),
    (["one", "--spread", "0.1"], "Name one evaluation or two, or give --rate"),
    (["none"], "there is no evaluation 'none'"),
    (["one"], "the spread of rows needs two judged rows, and two rollouts of a row, in one. Give --rate"),
    (["--rate", "0.9", "--spread", "0.4"], "--spread 0.4 is too large: with --rate 0.9 at most 0.300"),
    (["--rate", "0.5", "--n-rows", "3,x"], "'3,x' is not a list of whole numbers from 1"),
    (["--rate", "0.5", "--rollouts", "0"], "'0' is not a list of whole numbers from 1"),
    (["--rate", "nan"], "'nan' is no number"),
    (["--rate", "0.5", "--rows", "3"], "No such option '--rows'. Did you mean '--n-rows'?"),
]


def test_a_mistake_is_told_with_a_remedy(bundle: Bundle, command: Command) -> None:
    evaluate(bundle, "one", {"a": [1, 0, 1]})
    for arguments, told in MISTAKES:
        ran = command(*arguments)
        assert (ran.code, told in ran.error) == (2, True), ran.error
