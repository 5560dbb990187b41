"""``--against`` and ``--until-decided``: rounds, their end, and continuing."""

import json
from pathlib import Path

import pytest
from command import run_command
from flight_bundle import Bundle
from planned_agent import change_log, evaluate, rows_of
from stored_rollouts import edit, keep_first

from reward_kit.agent import EvaluationResult, compare, load_evaluation
from reward_kit.errors import UsageError

NAMES = [f"row.{number}" for number in range(6)]
ALWAYS, NEVER = dict.fromkeys(NAMES, [1] * 6), dict.fromkeys(NAMES, [0] * 6)
HALF = dict.fromkeys(NAMES, [1, 0] * 3)


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    """A bundle in the working directory, an agent that never succeeds, an evaluation that always does."""
    Path("lazy.py").write_text("async def answer(rollout):\n    return 'Sorry.'\n")
    evaluate(bundle, "main", ALWAYS)
    return bundle


def ended(result: EvaluationResult) -> tuple[str, int, int]:
    """Verdict, rounds, and rollouts; a decided evaluation has no more than these."""
    assert result.decision is not None
    assert not result.decision.is_final or len(result.outcomes) == result.planned
    return result.decision.verdict, result.decision.round, len(result.outcomes)


@pytest.mark.parametrize("workers", [None, 2])
def test_it_stops_once_it_is_decided_is_complete_and_stays_so(bundle: Bundle, workers: int | None) -> None:
    options = {"agent": "lazy:answer", "workers": workers}
    result = evaluate(bundle, "new", ALWAYS, against="main", until_decided=True, **options)
    assert (ended(result), result.status, result.complete) == (("worse", 1, 6), "complete", True)
    assert json.loads(result.results_path.read_text())["decision"]["planned"] == 36
    stored = load_evaluation("new")
    assert (stored.status, stored.planned) == ("complete", 6)
    assert compare("main", "new").success.value == -1
    line = "worse than main after round 1 of 6: -100.0 points"
    ran = run_command("agent-eval", "--resume", "new", "--quiet")
    assert (ran.code, line in ran.out, load_evaluation("new").planned) == (1, True, 6), ran.err
    shown = run_command("show", "new").out
    assert line in " ".join(shown.split())
    assert "not run" not in shown
    rest = evaluate(bundle, "new", ALWAYS, resume="new", until_decided=False, **options)
    assert ended(rest) == ("worse", 6, 36)


def test_without_a_difference_the_margin_or_the_last_round_ends_it(bundle: Bundle) -> None:
    evaluate(bundle, "half", HALF)
    result = evaluate(bundle, "new", HALF, against="half", until_decided=True, seed=11)
    assert ended(result) == ("not decided", 6, 36)
    wide = evaluate(bundle, "wide", HALF, against="half", until_decided=True, margin=60)
    verdict, _, rollouts = ended(wide)
    assert (verdict, rollouts < 36) == ("within the margin", True)


def test_the_rounds_are_those_that_the_rows_ask_for_now(bundle: Bundle) -> None:
    evaluate(bundle, "new", {name: played[:2] for name, played in NEVER.items()})
    again = evaluate(bundle, "new", NEVER, resume="new", against="main", until_decided=True)
    assert again.decision is not None
    assert (again.decision.planned, ended(again)[0]) == (36, "worse")
    assert compare("main", "new").rows[0].b.n == 2


def test_a_killed_evaluation_decides_the_same_when_it_is_resumed(bundle: Bundle) -> None:
    plan = dict.fromkeys(NAMES, [1] * 2 + [0] * 4)
    first = evaluate(bundle, "new", plan, against="main", until_decided=True)
    assert (ended(first)[0], 2 < ended(first)[1] < 6) == ("worse", True)
    keep_first(first.log_path, 8)
    edit(first.log_path, "UPDATE rows SET n_rollouts = 6")
    assert load_evaluation("new").status == "interrupted"
    assert ended(evaluate(bundle, "new", plan, resume="new")) == ended(first)


def test_rollouts_that_were_not_judged_are_played_again(bundle: Bundle) -> None:
    result = evaluate(bundle, "new", NEVER, against="main", until_decided=True)
    change_log(result, "row.2", reward=None, stop_reason="infrastructure_error")
    again = evaluate(bundle, "new", NEVER, resume="new")
    assert (ended(again), again.complete) == (("worse", 1, 6), True)


def test_a_row_that_is_left_out_later_holds_up_no_decision(bundle: Bundle) -> None:
    options = {"against": "main", "until_decided": True, "margin": 12}
    first = evaluate(bundle, "new", ALWAYS, n_rollouts=1, **options)
    assert ended(first)[0] == "not decided"
    verdict, rounds, _ = ended(
        evaluate(bundle, "new", ALWAYS, resume="new", n_rollouts=6, task_ids=NAMES[1:])
    )
    assert (verdict, 1 < rounds < 6) == ("within the margin", True)


def test_a_budget_ends_it_undecided(bundle: Bundle) -> None:
    used = {"calls": 1, "input_tokens": 900, "output_tokens": 100, "cost": 1.0}
    options = {"usage": used, "against": "main", "until_decided": True, "max_concurrency": 1, "margin": 1}
    result = evaluate(bundle, "new", ALWAYS, max_cost=9, **options)
    assert (result.status, result.planned, ended(result)) == ("budget", 36, ("not decided", 1, 9))
    nothing = evaluate(bundle, "none", ALWAYS, max_cost=2, **options)
    assert str(nothing.decision) == "not decided against main: no round is complete"


def test_only_rows_with_the_same_content_count(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    rows = rows_of(ALWAYS)
    rows[0]["system_prompt"], rows[5]["id"] = "Be brief.", "row.9"
    result = evaluate(bundle, "new", NEVER, rows=rows, agent="gold", against="main", until_decided=True)
    assert result.decision is not None
    assert result.decision.rows == 4
    for reason in ("1 changed since the baseline (row): row.0", "1 not in the baseline: row.9", ": row.5"):
        assert reason in caplog.text
    with pytest.raises(UsageError, match="no row can be compared: 1 not in the baseline"):
        evaluate(bundle, "other", {"other": [1]}, against="main")
    assert not Path("runs/evals/other.db").exists()


def test_against_alone_looks_once_at_the_end(bundle: Bundle) -> None:
    result = evaluate(bundle, "new", NEVER, against="latest")
    assert ended(result) == ("worse", 6, 36)
    assert result.configuration["against"] == str(load_evaluation("main").log_path)


REFUSED: list[tuple[dict[str, object], str]] = [
    ({"until_decided": True}, "--until-decided needs --against"),
    ({"against": "gone"}, "there is no evaluation 'gone'"),
    ({"against": "gone.json"}, "gone.json"),
    ({"against": "main", "margin": -1}, "--margin"),
    ({"against": "main", "resume": "main"}, "--against names the evaluation itself"),
    ({"eval_id": "other", "resume": "main"}, "--eval-id other is not main, which --resume continues"),
]


def test_what_cannot_be_compared_is_refused(bundle: Bundle) -> None:
    for options, fault in REFUSED:
        named = {"eval_id": options.get("resume", "new"), **options}
        with pytest.raises(UsageError, match=fault):
            evaluate(bundle, named.pop("eval_id"), ALWAYS, **named)
