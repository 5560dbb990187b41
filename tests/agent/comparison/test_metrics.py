"""The metrics of rewards in two evaluations: their means, and how far they are apart on the same rows."""

import math
from collections.abc import Mapping, Sequence

import pytest
from flight_bundle import Bundle
from planned_agent import evaluate

from reward_kit.agent import compare
from reward_kit.agent.comparison.measures import Measure
from reward_kit.agent.reports.comparison import comparison_lines

Scores = Mapping[str, Sequence[Mapping[str, float]]]
"""The metrics of each rollout, by row."""
REWARD = """
from reward_kit import RewardOutput

def evaluate(messages, *, id, rollout, **kwargs):
    return RewardOutput(score=1.0, reason="", metrics={scores!r}[id][rollout.index])
"""


def scored(bundle: Bundle, name: str, scores: Scores) -> None:
    """An evaluation whose rewards have these metrics."""
    bundle.write("reward.py", REWARD.format(scores=scores))
    evaluate(bundle, name, {row_id: [1] * len(rollouts) for row_id, rollouts in scores.items()})


def alike(metrics: Mapping[str, float], rows: int = 8) -> Scores:
    """One rollout of each row, with the same metrics everywhere."""
    return {f"row.{number}": [metrics] for number in range(rows)}


def metrics_between(a: str, b: str) -> dict[str, Measure]:
    return {metric.name: metric for metric in compare(a, b).metrics}


def lines_between(a: str, b: str) -> list[str]:
    return [*comparison_lines(compare(a, b))]


def test_the_mean_of_each_row_is_compared_with_that_of_the_same_row(bundle: Bundle) -> None:
    scored(bundle, "one", {"a": [{"words": 10}, {"words": 20}, {"words": 60}], "b": [{"words": -4}]})
    scored(bundle, "two", {"a": [{"words": 50}], "b": [{"words": 5}, {"words": 7}]})
    words = metrics_between("one", "two")["words"]
    assert (words.a, words.b, words.unit) == ((30 - 4) / 2, (50 + 6) / 2, "score")
    assert words.difference is not None
    assert (words.difference.value, words.difference.rows, words.difference.differing) == (15, 2, 2)
    variance = 1400 * (1 / 6 + 1 / 2) / 4 + 2 * (1 / 2 + 1) / 4
    half = 4.2765 * math.sqrt(variance)  # t of 2.013 degrees of freedom
    limits = (15 - half, 15 + half)
    assert words.difference.intervals.tasks_like_these == pytest.approx(limits, abs=0.01)


def test_only_rows_and_rollouts_that_have_a_metric_count_for_it(bundle: Bundle) -> None:
    scored(bundle, "one", {"a": [{"polite": 0.5}, {}], "b": [{"polite": 0.1}], "c": [{}]})
    scored(bundle, "two", {"a": [{"polite": 1.0}], "b": [{}], "c": [{"polite": 0.9}]})
    polite = metrics_between("one", "two")["polite"]
    assert (polite.a, polite.b) == (0.5, 1.0)
    assert polite.difference is not None
    assert (polite.difference.value, polite.difference.rows) == (0.5, 1)
    assert polite.difference.intervals == (None, None)
    (line,) = [line for line in lines_between("one", "two") if line.startswith("  polite ")]
    assert line.split()[1:] == ["0.500", "1.000", "+0.500", "(1", "row)"]


def test_metrics_that_no_row_has_in_both_are_named(bundle: Bundle) -> None:
    scored(bundle, "one", {"a": [{"old": 0.5, "shared": 1, "apart": 2}], "b": [{"old": 0.7, "shared": 1}]})
    scored(bundle, "two", {"a": [{"new": 3, "shared": 1}], "b": [{"shared": 1, "apart": 4}]})
    found = metrics_between("one", "two")
    apart = {name: (one.a, one.b) for name, one in found.items() if one.difference is None}
    assert apart == {"old": (0.6, None), "new": (None, 3.0), "apart": (2.0, 4.0)}
    lines = lines_between("one", "two")
    after = lines.index("95 % intervals; cost, tokens, steps, turns and time are means per rollout.")
    assert lines[after + 1] == "Metrics without a row in both: old, apart, new"
    assert not any(line.startswith(("  old", "  new", "  apart")) for line in lines)


def test_of_many_metrics_those_are_shown_that_differ_most_clearly(bundle: Bundle) -> None:
    names = [f"metric.{number:02}" for number in range(40)]
    differing = {"metric.33": 0.9, "metric.07": 0.1}
    noisy = {name: [0.5 + 0.3 * (-1) ** row for row in range(8)] for name in names[20:28]}
    scored(bundle, "one", alike(dict.fromkeys(names, 0.5)))
    at = {name: noisy.get(name, [differing.get(name, 0.5)] * 8) for name in names}
    rows = {f"row.{row}": [{name: values[row] for name, values in at.items()}] for row in range(8)}
    scored(bundle, "two", rows)
    lines = lines_between("one", "two")
    shown = [line.split()[0] for line in lines if line.startswith("  metric.")]
    assert len(shown) == 10
    assert {"metric.07", "metric.33"} < set(shown)
    assert shown == sorted(shown)
    after = lines.index("95 % intervals; cost, tokens, steps, turns and time are means per rollout.")
    assert lines[after + 1] == "Not shown, as less clear or the same: 30 metrics (--json has all)."
    assert len(compare("one", "two").to_json()["metrics"]) == 40


def test_metrics_whose_long_names_begin_alike_are_both_shown(bundle: Bundle) -> None:
    name = "the share of sentences that were kept by "
    scored(bundle, "one", alike({f"{name}us": 0.5, f"{name}them": 0.5}))
    scored(bundle, "two", alike({f"{name}us": 1.0, f"{name}them": 0.0}))
    shown = [line.split()[-3:] for line in lines_between("one", "two") if line.startswith(f"  {name[:30]}")]
    assert shown == [["0.500", "1.000", "+0.500"], ["0.500", "0.000", "-0.500"]]
