"""Two evaluations compared: which rows, what differs, the numbers, from Python."""

from typing import Any

import pytest
from flight_bundle import Bundle
from planned_agent import change_log, evaluate, rows_of

from reward_kit.agent import compare, compare_with
from reward_kit.agent.comparison.compare import EvaluationComparison
from reward_kit.agent.comparison.measures import Measure
from reward_kit.agent.reports.comparison import comparison_lines
from reward_kit.errors import UsageError

A = {"a": [1, 1, 1, 1], "b": [1, 1, 0, 0], "c": [0, 0, 0, 0], "d": [1, 1, 1, 1]}
B = {"a": [0, 0, 0, 0], "b": [1, 1, 1, 0], "c": [1, 1, 1, 1], "d": [1, 1, 1, 1]}


def measure(found: EvaluationComparison, name: str) -> Measure:
    return next(one for one in found.measures if one.name == name)


def test_rows_that_changed_come_with_their_counts_most_changed_first(bundle: Bundle) -> None:
    evaluate(bundle, "one", A)
    evaluate(bundle, "two", B)
    found = compare("one", "two")
    assert [(row.row_id, row.a.c, row.b.c) for row in found.worse] == [("a", 4, 0)]
    assert [(row.row_id, row.a.c, row.b.c) for row in found.better] == [("c", 0, 4), ("b", 2, 3)]
    assert found.success.value == pytest.approx((-1 + 0.25 + 1 + 0) / 4)
    assert (found.success.rows, found.success.differing) == (4, 3)
    assert found.success.verdicts == ("no difference", "no difference")


def test_cost_and_tokens_are_per_rollout_and_a_call_without_a_price_hides_the_cost(bundle: Bundle) -> None:
    priced = {"calls": 1, "input_tokens": 900, "output_tokens": 100, "cost": 0.5}
    evaluate(bundle, "one", A, usage=priced)
    evaluate(bundle, "two", B, usage={**priced, "cost": 0.75})
    evaluate(bundle, "three", B, usage={**priced, "cost": 0.0, "unpriced_calls": 1})
    found = compare("one", "two")
    cost = measure(found, "cost")
    assert (cost.a, cost.b) == (0.5, 0.75)
    assert cost.difference is not None
    assert cost.difference.value == 0.25
    assert measure(found, "agent tokens").a == 1000
    unpriced = measure(compare("one", "three"), "cost")
    assert (unpriced.a, unpriced.b, unpriced.difference) == (0.5, None, None)
    assert unpriced.unpriced == (0, 16)


def test_a_side_that_called_no_model_has_no_cost(bundle: Bundle) -> None:
    evaluate(bundle, "one", A, usage={"calls": 1, "cost": 0.5})
    evaluate(bundle, "two", B)
    for names, means, cells in (
        (("one", "two"), (0.5, None), ["$0.5000", "-"]),
        (("two", "one"), (None, 0.5), ["-", "$0.5000"]),
    ):
        found = compare(*names)
        cost = measure(found, "cost")
        assert (cost.a, cost.b, cost.difference, cost.unpriced) == (*means, None, (0, 0))
        assert ["cost", *cells] in [line.split() for line in comparison_lines(found)]


def test_rows_that_cannot_be_compared_are_told_apart(bundle: Bundle) -> None:
    plan = {name: [1] for name in "abcdef"}
    changed = [{**row, **({"outputs": ["14:00"]} if row["id"] == "d" else {})} for row in rows_of(plan)]
    evaluate(bundle, "one", {name: [1] for name in "abcde"})
    two = evaluate(bundle, "two", plan, rows=changed)
    change_log(two, "b", reward=None, stop_reason="infrastructure_error")
    change_log(two, "c", final=False)
    found = compare("one", "two")
    assert [row.row_id for row in found.rows] == ["a", "e"]
    present = {"not judged in B": ("b",), "not run in B": ("c",), "changed in between": ("d",)}
    assert found.left_out == {**present, "only in B": ("f",)}
    assert found.unjudged == (0, 1)


def test_rows_that_changed_are_compared_if_asked_for_and_the_fields_are_named(bundle: Bundle) -> None:
    evaluate(bundle, "one", A)
    evaluate(bundle, "two", B, rows=rows_of(B, system_prompt="Be brief."))
    with pytest.raises(UsageError) as raised:
        compare("one", "two")
    assert "no row can be compared: 4 changed in between (fields: system_prompt)" in str(raised.value)
    assert "--changed-rows" in str(raised.value)
    found = compare("one", "two", changed_rows=True)
    assert len(found.rows) == 4
    assert (found.changed, found.changed_fields) == (("a", "b", "c", "d"), ("system_prompt",))


def test_other_options_and_code_are_told_and_hinder_nothing(bundle: Bundle) -> None:
    evaluate(bundle, "one", A)
    reward = (bundle.folder / "reward.py").read_text()
    bundle.write("reward.py", reward.replace("Task incomplete", "Nothing booked"))
    evaluate(bundle, "two", B, seed=11, errors_as_failures=True, max_concurrency=2)
    found = compare("one", "two")
    settings = [(one.name, one.a, one.b) for one in found.settings]
    assert settings == [("--seed", "10", "11"), ("--errors-as-failures", "false", "true")]
    assert "flight_task/reward.py" in found.code
    assert len(found.rows) == 4


def test_rollouts_without_a_reward_fail_only_if_both_evaluations_count_them_so(bundle: Bundle) -> None:
    for name, strict in (("one", True), ("two", True), ("three", False)):
        result = evaluate(bundle, name, {"a": [1], "b": [1]}, errors_as_failures=strict)
        if name != "one":
            change_log(result, "b", reward=None, stop_reason="user_error")
    rows = compare("one", "two").rows
    assert [(row.row_id, row.b.c, row.b.n) for row in rows] == [("a", 1, 1), ("b", 0, 1)]
    assert compare("one", "three").left_out == {"not judged in B": ("b",)}


def test_an_evaluation_is_found_by_name_path_or_as_the_latest(bundle: Bundle) -> None:
    one, two = evaluate(bundle, "one", A), evaluate(bundle, "two", B)
    expected = compare("one", "two").to_json()["rows"]
    for name in ("latest", two.log_path, str(two.results_path)):
        assert compare(one.results_path, name).to_json()["rows"] == expected


def test_results_are_taken_as_they_were_returned_wherever_they_lie(bundle: Bundle) -> None:
    one = evaluate(bundle, "one", A, output_dir="here")
    two = evaluate(bundle, "two", B, output_dir="there")
    found = compare(one, two)
    assert found.to_json() == compare(one.log_path, two.log_path).to_json()
    assert compare_with(one, [two]).comparisons == (found,)
    assert compare_with(one, two).comparisons == (found,)


@pytest.mark.parametrize("name", [5, ["one"]])
def test_what_names_no_evaluation_is_told(bundle: Bundle, name: Any) -> None:
    evaluate(bundle, "one", A)
    for comparing in (lambda: compare("one", name), lambda: compare(name, "one")):
        with pytest.raises(UsageError, match=r"no evaluation is named by .* result of evaluate\(\)"):
            comparing()
    with pytest.raises(UsageError, match="nothing to compare with"):
        compare_with("one", "one")
