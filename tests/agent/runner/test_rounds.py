"""``--against`` and ``--until-decided``: rounds, their end, and continuing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command import run_command
from flight_bundle import Bundle, flight_bundle
from planned_agent import change_log, evaluate, rows_of
from stored_rollouts import edit, keep_first, query

from reward_kit.agent import EvaluationResult, compare, load_evaluation
from reward_kit.errors import UsageError

ROWS = [f"row.{number}" for number in range(6)]
ALWAYS, NEVER = dict.fromkeys(ROWS, [1] * 6), dict.fromkeys(ROWS, [0] * 6)


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    """A bundle in the working directory, an agent that never succeeds, an evaluation that always does."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lazy.py").write_text("async def answer(rollout):\n    return 'Sorry.'\n")
    made = flight_bundle(tmp_path)
    evaluate(made, "main", ALWAYS)
    return made


def ended(result: EvaluationResult) -> tuple[str, int]:
    assert result.decision is not None
    return result.decision.verdict, result.decision.round


@pytest.mark.parametrize("workers", [None, 2])
def test_it_stops_once_it_is_decided_and_is_complete(bundle: Bundle, workers: int | None) -> None:
    options = {"against": "main", "until_decided": True, "workers": workers}
    result = evaluate(bundle, "new", ALWAYS, agent="lazy:answer", **options)
    assert ended(result) == ("worse", 1)
    assert (result.status, result.complete, len(result.outcomes), result.planned) == ("complete", True, 6, 6)
    assert result.decision is not None
    assert result.decision.planned == 36
    stored = load_evaluation("new")
    assert (stored.status, stored.planned) == ("complete", 6)
    assert json.loads(result.results_path.read_text())["decision"]["verdict"] == "worse"
    assert compare("main", "new").success.value == -1


def test_show_and_quiet_say_after_how_many_rounds_and_why(bundle: Bundle) -> None:
    mixed = {row_id: [number % 2, 0, 0, 0, 0, 0] for number, row_id in enumerate(ROWS)}
    result = evaluate(bundle, "new", mixed, against="main", until_decided=True)
    line = f"worse than main after round {result.decision.round if result.decision else 0} of 6: -"
    shown = run_command("show", "new").out
    assert line in " ".join(shown.split())
    assert "not run" not in shown
    played = len(result.outcomes)
    assert f" {played}/{played} " in run_command("show").out


def test_with_nothing_to_decide_all_planned_rollouts_are_played(bundle: Bundle) -> None:
    half = {row_id: [1, 0, 1, 0, 1, 0] for row_id in ROWS}
    evaluate(bundle, "half", half)
    result = evaluate(bundle, "new", half, against="half", until_decided=True, seed=11)
    assert ended(result) == ("not decided", 6)
    assert len(result.outcomes) == 36
    wide = evaluate(bundle, "wide", half, against="half", until_decided=True, margin=60)
    assert ended(wide)[0] == "within the margin"
    assert len(wide.outcomes) < 36


def test_a_decided_evaluation_stays_decided_and_goes_on_if_asked_to(bundle: Bundle) -> None:
    evaluate(bundle, "new", ALWAYS, agent="lazy:answer", against="main", until_decided=True)
    ran = run_command("agent-eval", "--resume", "new", "--quiet")
    assert (ran.code, "worse than main after round 1 of 6" in ran.out) == (0, True), ran.err
    assert load_evaluation("new").planned == 6
    result = evaluate(bundle, "new", ALWAYS, agent="lazy:answer", resume="new", until_decided=False)
    assert ended(result) == ("worse", 6)
    assert (len(result.outcomes), result.planned) == (36, 36)


def test_a_killed_evaluation_decides_the_same_when_it_is_resumed(bundle: Bundle) -> None:
    plan = {row_id: [1, 1, 0, 0, 0, 0] for row_id in ROWS}
    first = evaluate(bundle, "new", plan, against="main", until_decided=True)
    keep_first(first.log_path, 8)
    edit(first.log_path, "UPDATE rows SET n_rollouts = 6")
    assert load_evaluation("new").status == "interrupted"
    again = evaluate(bundle, "new", plan, resume="new")
    assert ended(again) == ended(first) == ("worse", ended(first)[1])
    assert 2 < ended(first)[1] < 6
    assert len(again.outcomes) == len(first.outcomes)


def test_rollouts_that_were_not_judged_are_played_again_before_anything_else(bundle: Bundle) -> None:
    result = evaluate(bundle, "new", NEVER, against="main", until_decided=True)
    change_log(result, "row.2", reward=None, stop_reason="infrastructure_error")
    again = evaluate(bundle, "new", NEVER, resume="new")
    assert ended(again) == ("worse", 1)
    assert (again.complete, len(again.outcomes)) == (True, 6)


def test_a_budget_ends_it_undecided_between_rounds(bundle: Bundle) -> None:
    used = {"calls": 1, "input_tokens": 900, "output_tokens": 100, "cost": 1.0}
    options = {"usage": used, "against": "main", "until_decided": True, "max_concurrency": 1}
    result = evaluate(bundle, "new", ALWAYS, max_cost=9, margin=1, **options)
    assert (result.status, ended(result)) == ("budget", ("not decided", 1))
    assert (len(result.outcomes), result.planned) == (9, 36)
    nothing = evaluate(bundle, "none", ALWAYS, max_cost=2, **options)
    assert str(nothing.decision) == "not decided against main: no round is complete"


def test_only_rows_with_the_same_content_count(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of(ALWAYS)
    rows[0]["system_prompt"] = "Be brief."
    result = evaluate(bundle, "new", NEVER, rows=[*rows[:5], {**rows[5], "id": "row.9"}], against="main",
                      agent="gold", until_decided=True)  # fmt: skip
    assert result.decision is not None
    assert result.decision.rows == 4
    for reason in ("1 changed since the baseline (row.0)", "1 not in the baseline (row.9)", "(row.5)"):
        assert reason in caplog.text
    with pytest.raises(UsageError, match="no row can be compared: 1 not in the baseline"):
        evaluate(bundle, "other", {"other": [1]}, against="main")
    assert not Path("runs/evals/other.db").exists()


def test_against_alone_looks_once_at_the_end(bundle: Bundle) -> None:
    result = evaluate(bundle, "new", NEVER, against="latest")
    assert ended(result) == ("worse", 6)
    assert query(result.log_path, "SELECT configuration ->> 'against' AS name FROM evaluation") == [
        {"name": "main"}
    ]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"until_decided": True}, "--until-decided needs --against"),
        ({"against": "gone"}, "there is no evaluation 'gone'"),
        ({"against": "gone.json"}, "there is no such baseline"),
        ({"against": "main", "margin": -1}, "--margin"),
        ({"against": "new"}, "--against names the evaluation itself"),
    ],
)
def test_what_cannot_be_compared_is_refused_before_anything_runs(
    bundle: Bundle, options: dict[str, object], fault: str
) -> None:
    if options.get("against") == "new":
        evaluate(bundle, "new", ALWAYS)
    with pytest.raises(UsageError, match=fault):
        evaluate(bundle, "new", ALWAYS, **options)
