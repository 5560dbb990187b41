"""``reward-kit gate``: the baseline's file, exit codes, the comment, and changes that change nothing."""

from __future__ import annotations

import json
import random
import re
import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

import pytest
from command import Finished
from flight_bundle import Bundle
from planned_agent import evaluate, rows_of

from reward_kit.agent import load_evaluation
from reward_kit.agent.comparison.baseline import load_baseline
from reward_kit.agent.reports.gate import judge

Command = Callable[..., Finished]
Plan = Mapping[str, Sequence[int]]
BASE: Plan = {"b": [1] * 8, "a": [1] * 8, "flaky": [1, 0, 0, 0] * 2, "c": [1] * 8}


@pytest.fixture
def baseline(bundle: Bundle, command: Command) -> Path:
    """The file of the evaluation ``main``."""
    evaluate(bundle, "main", BASE)
    ran = command("--baseline", "gate.json", "--write-baseline", "main")
    assert (ran.code, ran.out, ran.error) == (0, "gate.json: 4 rows of main\n", "")
    return Path("gate.json")


def test_the_baseline_has_a_line_for_each_row_and_is_the_same_for_the_same(
    baseline: Path, bundle: Bundle, command: Command
) -> None:
    lines = baseline.read_text().splitlines()
    assert [json.loads(line.strip(" ,"))["id"] for line in lines if '"id"' in line] == [
        "a",
        "b",
        "c",
        "flaky",
    ]
    plain = json.loads(baseline.read_text())
    assert plain["totals"] == {"rows": 4, "rollouts": 32, "successes": 26}
    assert plain["measured"] == {"agent": "planned_agent:Planned", "user": "none"}
    evaluate(bundle, "again", dict(reversed(BASE.items())))
    command("--baseline", "again.json", "--write-baseline", "again")
    different = set(lines) ^ set(Path("again.json").read_text().splitlines())
    assert different == {' "evaluation": "main",', ' "evaluation": "again",'}


@pytest.mark.parametrize(
    ("plan", "options", "code", "line"),
    [
        (BASE, {}, 3, "not decided against main after round 8 of 8: +0.0 points"),
        (BASE, {"margin": 50, "until_decided": True}, 0, "within 50 points of main after round 2 of 8"),
        ({**BASE, "flaky": [1] * 8}, {}, 0, "better than main after round 8 of 8: +18.8 points"),
        ({**BASE, "a": [0] * 8}, {}, 1, "certainly worse, although they always succeeded in the baseline: a"),
        ({**BASE, "flaky": [0] * 8, "a": [1, 0] * 4}, {}, 1, "worse than main after round 8 of 8"),
        ({**BASE, "a": [0] * 8, "flaky": [1] * 8}, {"margin": 99}, 1, "within 99 points of main"),
    ],
)  # fmt: skip
def test_exit_codes(
    baseline: Path,
    bundle: Bundle,
    command: Command,
    plan: Plan,
    options: dict[str, object],
    code: int,
    line: str,
) -> None:
    evaluate(bundle, "new", plan, against="gate.json", **options)  # type: ignore[arg-type]
    for named in ("gate.json", "main"):
        ran = command("--baseline", named)
        assert (ran.code, ran.error) == (code, "")
        assert line in ran.out


def test_the_comment_shows_what_got_worse_and_the_database(
    baseline: Path, bundle: Bundle, command: Command
) -> None:
    evaluate(bundle, "new", {**BASE, "a": [0] * 8, "flaky": [0] * 7 + [1]}, seed=11)
    ran = command("--baseline", "gate.json", "--markdown", "-")
    assert ran.err.startswith("worse than main")
    lines = ran.out.splitlines()
    assert lines[:3] == ["### Worse: `new` against `main`", "", "**Pass^1 0.812 → 0.531**"]
    assert "- `different: seed was None, is 11`" in lines
    certain, flaky = (line for line in lines if line.startswith("| `"))
    assert certain.startswith(
        "| `a` | 8/8 | 0/8 | certain | `#1 partially_completed in step 1: 0 of 2 changes"
    )
    assert re.search(r'`bookings #\w+: missing row {"id": "\w+", .*"status": "paid"', certain)
    assert flaky.startswith("| `flaky` | 2/8 | 1/8 | flaky |")
    assert command("--baseline", "gate.json", "--markdown", "comment.md").code == 1
    assert Path("comment.md").read_text() == ran.out


def test_rows_that_are_not_the_same_are_named_and_not_judged(
    baseline: Path, bundle: Bundle, command: Command
) -> None:
    plan = {"a": [0] * 8, "b": [1] * 8, "new": [1]}
    rows = [{**row, **({"system_prompt": "Hi"} if row["id"] == "a" else {})} for row in rows_of(plan)]
    evaluate(bundle, "new", plan, rows=rows)
    ran = command("--baseline", "gate.json")
    said = "1 changed since the baseline (a), 1 not in the baseline (new), 2 only in the baseline (c, flaky)"
    assert (ran.code, ran.out.splitlines()[1]) == (3, f"not compared: {said}")
    evaluate(bundle, "other", {"x": [1]})
    ran = command("--baseline", "gate.json")
    assert (ran.code, "main and other: no row can be compared: 1 not in the baseline (x)" in ran.error) == (
        2,
        True,
    )


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('"n":8,"c":2', '"n":8,"c":9', "content, n > 0 and c <= n, got {'id': "),
        ('"id":"b"', '"id":"a"', "expected a row with its own id"),
        ('"c":2', '"c":3', "its totals are"),
        ("reward-kit.baseline/1", "reward-kit.baseline/9", "is no baseline (reward-kit.baseline/1)"),
        (' "rows": [', "<<<<<<< HEAD", "gate.json:6: is no JSON"),
        ("main", "\udcff", "can't decode byte"),
    ],
)  # fmt: skip
def test_a_faulty_baseline_is_refused(
    baseline: Path, command: Command, old: str, new: str, fault: str
) -> None:
    baseline.write_bytes(baseline.read_text().replace(old, new, 1).encode(errors="surrogateescape"))
    ran = command("--baseline", "gate.json")
    assert (ran.code, fault in ran.error) == (2, True), ran.error
    assert "reward-kit gate --baseline FILE --write-baseline" in ran.error


def test_a_baseline_of_a_stopped_evaluation_is_warned_of(
    bundle: Bundle, command: Command, baseline: Path
) -> None:
    evaluate(bundle, "new", dict.fromkeys(BASE, [0] * 8), against="main", until_decided=True)
    assert "stopped when it was decided" in command("--baseline", "b.json", "--write-baseline", "new").err
    assert command("--baseline", "gone.json").code == 2


def test_changes_that_change_nothing_rarely_fail(bundle: Bundle, baseline: Path) -> None:
    rng = random.Random(2)
    rates = {row_id: rng.choice((1.0, 0.9, 0.6)) for row_id in (f"row.{number}" for number in range(8))}
    evaluation = evaluate(bundle, "new", {row_id: [1] * 6 for row_id in rates}).log_path
    failed, draws = 0, 60
    for _ in range(draws):
        for _side in range(2):
            with closing(sqlite3.connect(evaluation)) as connection, connection:
                values = [(float(rng.random() < rates[r]), r, at) for r in rates for at in range(6)]
                connection.executemany("UPDATE rollouts SET reward = ? WHERE row_id = ? AND idx = ?", values)
            if not _side:
                before = load_baseline("new", "runs")
        failed += judge(before, load_evaluation("new")).exit_code == 1
    assert failed <= 0.05 * draws + 2 * (0.05 * draws) ** 0.5
