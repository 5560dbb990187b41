"""``compare --gate``: the baseline, exit codes, the comment, and changes that change nothing."""

import random
import re
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from command import Command, Finished, run_command
from flight_bundle import Bundle
from planned_agent import Planned, change_log, evaluate, rows_of
from stored_rollouts import edit
from thorough import often

from reward_kit.agent import load_evaluation
from reward_kit.agent.comparison.compare import load
from reward_kit.agent.comparison.gate import judge
from reward_kit.cli import main

Plan = Mapping[str, Sequence[int]]
BASE: Plan = {"b": [1] * 8, "a": [1] * 8, "flaky": [1, 0, 0, 0] * 2, "c": [1] * 8}
FILE = Path("gate.json")


@pytest.fixture(autouse=True)
def _baseline(bundle: Bundle, command: Command) -> None:
    """The evaluation ``main``, and its baseline."""
    evaluate(bundle, "main", BASE)
    write_card("main", "gate.json")


def write_card(name: str, path: str) -> Finished:
    ran = run_command("export", name, "--format", "card", "--out", path)
    assert ran.code == 0, ran.error
    return ran


@pytest.mark.parametrize(
    ("plan", "options", "code", "line"),
    [
        ({}, {}, 3, "not decided against main: +0.0 points"),
        ({}, {"margin": 50, "until_decided": True}, 0, "within 50 points of main after round 2 of 8"),
        ({"flaky": [1] * 8}, {}, 0, "better than main: +18.8 points"),
        ({"a": [0] * 8}, {}, 1, "certainly worse, although they always succeeded in the baseline: a"),
        ({"flaky": [0] * 8, "a": [1, 0] * 4}, {}, 1, "worse than main: "),
        ({"a": [0] * 8, "flaky": [1] * 8}, {"margin": 99}, 1, "within 99 points of main"),
    ],
)
def test_exit_codes(bundle: Bundle, command: Command, plan: Plan, options: Any, code: int, line: str) -> None:
    evaluate(bundle, "new", {**BASE, **plan}, against="gate.json", **options)
    for named in ("gate.json", "main"):
        ran = command(named)
        assert (ran.code, ran.error, line in ran.out) == (code, "", True), ran.out


@pytest.mark.parametrize(
    ("plan", "options", "code", "said"),
    [
        (BASE, ["--margin", "50"], 0, ""),
        ({**BASE, "a": [0] * 8, "flaky": [1] * 8}, ["--margin", "30"], 1, "certainly worse, although"),
        ({name: [0] * 8 for name in BASE}, [], 1, ""),
        (BASE, ["--margin", "1"], 3, "show no difference only within --margin"),
        (BASE, ["--max-cost", "0"], 3, "the evaluation is not complete (budget: "),
        (BASE, ["--margin", "1", "--fail-under", "0.9"], 1, "Pass^1 is below --fail-under 0.9."),
    ],
)
def test_until_decided_ends_with_the_same_code(
    bundle: Bundle, command: Command, capfd: Any, plan: Plan, options: list[str], code: int, said: str
) -> None:
    bundle.rows(*rows_of(plan))
    Planned.plan = plan
    start = ["agent-eval", str(bundle.dataset), "--agent", "planned_agent:Planned", "--user", "none"]
    ended = main([*start, "--against", "gate.json", "--until-decided", "--eval-id", "new", *options])
    assert (ended, said in capfd.readouterr().err) == (code, True)
    if "--fail-under" not in options:
        assert command("gate.json", "new").code == code


def test_the_comment_shows_what_got_worse_and_the_database(bundle: Bundle, command: Command) -> None:
    evaluate(bundle, "new", {**BASE, "a": [0] * 8, "flaky": [0] * 7 + [1]}, seed=11)
    ran = command("gate.json", "--markdown", "-")
    assert (ran.code, ran.err.startswith("worse than main")) == (1, True)
    lines = ran.out.splitlines()
    assert lines[:3] == ["### Worse: `new` against `main`", "", "**Pass^1 0.812 → 0.531**"]
    assert "- `different: --seed was 10, is 11`" in lines
    certain, flaky = (line for line in lines if line.startswith("| `"))
    failed = "`failed: a #1: partially_completed in step 1: 0 of 2"
    assert certain.startswith(f"| `a` | 8/8 | 0/8 | certain | {failed}")
    assert re.search(r'`data: bookings #\w+: missing row \(flight_id=1, .*status="paid"\)', certain)
    assert flaky.startswith("| `flaky` | 2/8 | 1/8 | flaky |")
    command("gate.json", "--markdown", "comment.md")
    assert Path("comment.md").read_text() == ran.out


def test_rows_that_are_not_the_same_are_named_and_not_judged(bundle: Bundle, command: Command) -> None:
    plan = {"a": [0] * 8, "b": [1] * 8, "new": [1]}
    rows = rows_of(plan)
    rows[0]["system_prompt"] = "Be brief."
    evaluate(bundle, "new", plan, rows=rows)
    ran = command("gate.json")
    said = "1 changed since the baseline (row): a; 1 not in the baseline: new; 2 only in the baseline: c, "
    assert (ran.code, ran.out.splitlines()[1]) == (3, f"not compared: {said}flaky")
    evaluate(bundle, "other", {"x": [1]})
    ran = command("gate.json")
    assert (ran.code, "no row can be compared: 1 not in the baseline: x" in ran.error) == (2, True)


def test_rows_without_a_judged_rollout_cannot_be_told(bundle: Bundle, command: Command) -> None:
    result = evaluate(bundle, "new", BASE)
    change_log(result, "a", reward=None, stop_reason="infrastructure_error")
    strict = (
        "UPDATE evaluation SET configuration = json_set(configuration, '$.errors_as_failures', json('true'))"
    )
    for change in ("", strict):  # of one side alone it does not count
        edit(result.log_path, change)
        ran = command("gate.json", "--margin", "99")
        verdict, left_out = ran.out.splitlines()[:2]
        assert (ran.code, verdict.endswith("(these tasks: 3 rows, 24 rollouts)")) == (3, True)
        assert left_out == "not compared: 1 not judged in the evaluation: a"


def test_a_faulty_baseline_is_refused(command: Command) -> None:
    whole = FILE.read_text()
    for text, fault in (
        (whole.replace('"c":2', '"c":3', 1), "gate.json: hash: the card was altered"),
        (whole.replace("reward-kit.card/1", "reward-kit.baseline/1"), "is no card (reward-kit.card/1)"),
        (whole.replace(' "rows": [', "<<<<<<< HEAD", 1), "gate.json: is not JSON"),
        ("[]", "Write a card: reward-kit export EVALUATION --format card --out FILE"),
    ):
        FILE.write_text(text)
        ran = command("gate.json", "main")
        assert (ran.code, fault in ran.error) == (2, True), ran.error


def test_a_card_is_a_baseline_and_nothing_else(command: Command) -> None:
    ran = command("main", "gate.json")
    assert (ran.code, ran.out, ran.error.count("\n")) == (2, "", 1), ran.error
    assert "Error: gate.json: is not the file of an evaluation" in ran.error
    assert command("gate.json", "main").code == 3


def test_old_spellings_are_understood_or_answered(command: Command) -> None:
    assert command("--baseline", "gate.json", "--eval", "main").code == 3
    ran = command("--baseline", "gate.json", "--write-baseline", "main")
    assert (ran.code, "Did you mean 'reward-kit export EVALUATION --format card" in ran.error) == (2, True)


def test_the_margin_that_can_be_shown_is_said_beforehand(bundle: Bundle, command: Command) -> None:
    ran = command("gate.json", "main")
    said = re.search(r"show no difference only within --margin (\d+) or more", ran.out)
    assert said
    options = ("--gate", "--margin", said[1])
    assert run_command("compare", "gate.json", "main", *options).code == 0
    assert run_command("compare", "gate.json", "main", *options[:2], str(int(said[1]) // 3)).code == 3


def test_a_baseline_of_a_stopped_evaluation_is_warned_of(bundle: Bundle, command: Command) -> None:
    evaluate(bundle, "new", dict.fromkeys(BASE, [0] * 8), against="main", until_decided=True)
    assert "stopped when it was decided" in write_card("new", "b.json").err
    options: dict[str, Any] = {"against": "main", "until_decided": True, "margin": 1}
    whole = evaluate(bundle, "whole", {name: [1] * 4 + [0] * 4 for name in BASE}, **options)
    assert len(whole.outcomes) == whole.planned
    assert run_command("rescore", "whole", "--eval-id", "again").code == 0
    assert "stopped when it was decided" not in write_card("again", "c.json").err


def test_changes_that_change_nothing_rarely_fail(bundle: Bundle) -> None:
    rng = random.Random(2)
    rates = {f"row.{number}": rng.choice((1.0, 0.9, 0.6)) for number in range(8)}
    evaluation = evaluate(bundle, "new", dict.fromkeys(rates, [1] * 6)).log_path
    failed, draws = 0, often(60)
    for _ in range(draws):
        baseline = load("new", "runs")
        with closing(sqlite3.connect(evaluation)) as connection, connection:
            values = [(float(rng.random() < rates[row]), row, at) for row in rates for at in range(6)]
            connection.executemany("UPDATE rollouts SET reward = ? WHERE row_id = ? AND idx = ?", values)
        failed += judge(baseline, load_evaluation("new")).exit_code == 1
    assert failed <= 0.05 * draws + 2 * (0.05 * draws) ** 0.5
