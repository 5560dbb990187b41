"""Evaluations beside each other, for a terminal or a pipe of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.comparing.row_pairs import CHANGED
from reward_kit.agent.metrics import shown_ks
from reward_kit.agent.outcome import total_usage
from reward_kit.agent.reports.leaderboard import strategy
from reward_kit.agent.reports.standings_table import LONGEST_STRATEGY, SIDES, standing_lines
from reward_kit.agent.reports.verdict_lines import verdict_lines
from reward_kit.agent.reports.wording import (
    NOTHING,
    count,
    dollars,
    duration,
    from_here,
    money,
    one_line,
    tallied,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from reward_kit.agent.comparing import (
        BaselineComparison,
        EvaluationComparison,
        Measure,
        RowPair,
    )
    from reward_kit.agent.comparing.measures import Unit
    from reward_kit.agent.runs.stored_evaluation import StoredEvaluation

WIDTH = 80
SHOWN = 10
"""Rows that got worse, and rows that got better, that are shown."""
LONGEST_NAME, SHORTEST_LABEL, LONGEST_LABEL = 40, 10, 20
SHOWN_METRICS = 10
"""Metrics of the reward that are shown."""
ONE_DECIMAL, EXPONENT = 100, 1e6
"""From these sizes on a metric is shown with one decimal, a number with its exponent."""
LONGEST_VALUE = 300
_PER_ROLLOUT = "Cost, tokens, steps, turns and time are means per rollout."


def comparison_lines(comparison: EvaluationComparison) -> Iterator[str]:
    """What differs, the numbers, the verdict, then the rows that changed."""
    yield from _head("A", comparison.a)
    yield from _head("B", comparison.b)
    yield ""
    yield from _settings(comparison)
    yield ""
    yield from _left_out(comparison)
    yield from _numbers(comparison)
    yield ""
    yield from verdict_lines(comparison.success)
    yield from _rows("worse", comparison.worse, comparison)
    yield from _rows("better", comparison.better, comparison)


def baseline_lines(found: BaselineComparison, columns: int | None = None) -> Iterator[str]:
    """A line for each evaluation, each number beside that of the baseline, then what it says of each.

    ``columns`` is how wide the terminal is (None: any is fine).
    """
    yield from standing_lines(found.comparisons, columns)
    others = dict(zip(SIDES[1:], found.comparisons, strict=False))
    names = {side: one_line(one.b.eval_id, LONGEST_LABEL) for side, one in others.items()}
    width = max(SHORTEST_LABEL, *map(len, names.values()))
    for name, measures in _table(found.comparisons).items():
        yield ""
        yield from _labelled(name, width + 4, f"{'A':>10}{'this':>10}{'this - A':>11}  95 % interval")
        for side, measure in zip(others, measures, strict=True):
            if measure is not None:
                yield f"{side}  {names[side]:{width}} {_values(measure, len(found.baseline.rows))}"
    unjudged = [
        line
        for side, each in others.items()
        for line in _unjudged_line(f"{side}  {names[side]:{width}} ", each)
    ]
    if unjudged:
        yield from ["", "not judged", *unjudged]
    yield _PER_ROLLOUT
    yield from _metric_notes(others)
    yield ""
    for side, each in others.items():
        yield from verdict_lines(each.success, side)
    yield "Each interval stands alone: of 20 equal evaluations, one lies outside its own by luck."
    yield f"Rows that changed, and settings: reward-kit compare {found.baseline.eval_id} OTHER"


def _head(side: str, stored: StoredEvaluation) -> Iterator[str]:
    done, planned = len(stored.outcomes), stored.planned
    status = "" if stored.status == "complete" else f"{stored.status}, "
    spent = money(total_usage(stored.usage.values()))
    cost = "" if spent == NOTHING else f", {spent}"
    yield f"{side}  {stored.eval_id}: {one_line(strategy(stored), LONGEST_STRATEGY)}"
    yield f"   {status}{count(len(stored.rows), 'row')}, {done} of {count(planned, 'rollout')}{cost}"


def _settings(comparison: EvaluationComparison) -> Iterator[str]:
    """What is not the same in the two; a value too long for the line stands on one of its own."""
    found = [*_setting_lines(comparison), *_changed(comparison)]
    if not comparison.a.fingerprints or not comparison.b.fingerprints:
        yield "Whether rows, tools or code have changed is not known: that is in the log."
    yield "different:" if found else "Nothing that is recorded of the two is different."
    yield from found


def _setting_lines(comparison: EvaluationComparison) -> Iterator[str]:
    width = max((len(setting.name) for setting in comparison.settings), default=0)
    for setting in comparison.settings:
        a, b = (one_line(value, LONGEST_VALUE) for value in (setting.a, setting.b))
        line = f"  {setting.name:{width}}  {a} -> {b}"
        if len(line) <= WIDTH:
            yield line
        else:
            yield f"  {setting.name}"
            yield f"    A  {a}"
            yield f"    B  {b}"


def _changed(comparison: EvaluationComparison) -> Iterator[str]:
    modules: dict[str, list[str]] = {}
    for name, (before, now) in comparison.code.items():
        what = "only in B" if before is None else "only in A" if now is None else "changed"
        modules.setdefault(what, []).append(name)
    for what, names in modules.items():
        yield _listed(f"  code {what}: ", names)
    changed, tools = comparison.changed, comparison.tools
    if changed:
        fields = one_line(", ".join(comparison.changed_fields), LONGEST_VALUE)
        where = f" ({changed[0]}: {fields})" if fields else ""
        yield f"  content of {count(len(changed), 'row')}{where}"
    if tools:
        yield f"  tools of {count(len(tools), 'row')}: their names, descriptions or parameters"


def _listed(head: str, names: Sequence[str]) -> str:
    """As many names as fit into a line after ``head``, at least one."""
    for shown in range(min(len(names), WIDTH), 0, -1):
        left = len(names) - shown
        line = f"{head}{', '.join(names[:shown])}{f' and {left} more' if left else ''}"
        if len(line) <= WIDTH or shown == 1:
            return line
    return head


def _left_out(comparison: EvaluationComparison) -> Iterator[str]:
    compared, left_out = len(comparison.rows), comparison.left_out
    lines = []
    if left_out:
        total = compared + sum(len(ids) for ids in left_out.values())
        lines.append(f"{compared} of {count(total, 'row')} compared; left out:")
        for reason, ids in left_out.items():
            lines.append(_listed(f"  {len(ids)} {reason}: ", ids))
        if CHANGED in left_out:
            lines.append("  (--changed-rows compares those that have changed, too)")
    for side, rows in (
        ("A", [pair.a for pair in comparison.rows]),
        ("B", [pair.b for pair in comparison.rows]),
    ):
        fewer = sum(row.n < row.planned for row in rows)
        if fewer:
            lines.append(f"{count(fewer, 'row')} compared with fewer judged rollouts than planned in {side}")
    if lines:
        yield from [*lines, ""]


def _numbers(comparison: EvaluationComparison) -> Iterator[str]:
    table = _table([comparison])
    width = max(SHORTEST_LABEL + 4, *(len(name) for name in table if len(name) <= LONGEST_LABEL))
    yield f"{'':{width}}{'A':>10}{'B':>10}{'B - A':>11}  95 % interval"
    for name, (measure,) in table.items():
        if measure is not None:
            yield from _labelled(name, width, _values(measure, len(comparison.rows)))
    yield from _unjudged_line(f"{'not judged':{width}}", comparison)
    yield _PER_ROLLOUT
    yield from _metric_notes({"B": comparison})


def _table(comparisons: Sequence[EvaluationComparison]) -> dict[str, list[Measure | None]]:
    """The measure of each comparison (None: it has none) by its label; metrics follow the reward."""
    measures = [{one.name: one for one in _chosen(each.measures)} for each in comparisons]
    metrics = [_shared_metrics(each) for each in comparisons]
    table: dict[str, list[Measure | None]] = {}
    for name in dict.fromkeys(name for found in measures for name in found):
        table[name] = [found.get(name) for found in measures]
        if name == "reward":
            table.update((label, [found.get(label) for found in metrics]) for label in _clearest(metrics))
    return table


def _shared_metrics(comparison: EvaluationComparison) -> dict[str, Measure]:
    """The metrics that can be compared, and those with numbers too large for that, by their labels."""
    return {
        f"  {one_line(metric.name, WIDTH - 2)}": metric
        for metric in comparison.metrics
        if metric.difference is not None or metric.a is metric.b is None
    }


def _clearest(metrics: Sequence[Mapping[str, Measure]]) -> list[str]:
    """The labels of all, but of many those of the metrics that differ most clearly in any comparison."""
    clearness: dict[str, float] = {}
    for label, metric in (item for found in metrics for item in found.items()):
        clear = metric.difference.clearness if metric.difference else 0.0
        clearness[label] = max(clear, clearness.get(label, 0.0))
    shown = sorted(clearness, key=lambda label: -clearness[label])[:SHOWN_METRICS]
    return [label for label in clearness if label in shown]


def _metric_notes(comparisons: Mapping[str, EvaluationComparison]) -> Iterator[str]:
    """How many metrics are not shown, and which cannot be compared, by the letter of the evaluation."""
    total = len({label for each in comparisons.values() for label in _shared_metrics(each)})
    if total > SHOWN_METRICS:
        others = count(total - SHOWN_METRICS, "metric")
        yield f"Not shown, as less clear or the same: {others} (--json has all)."
        yield f"Of {total} metrics that are the same, about {round(total / 20)} would seem to differ by luck."
    for side, each in comparisons.items():
        for where, a, b in (
            (f"in A, not in {side}", True, False),
            (f"in {side}, not in A", False, True),
            (f"of no row in both A and {side}", True, True),
        ):
            names = [
                one_line(metric.name)
                for metric in each.metrics
                if not metric.difference and (metric.a is not None, metric.b is not None) == (a, b)
            ]
            if names:
                yield _listed(f"Metrics {where}: ", names)


def _labelled(label: str, width: int, rest: str) -> Iterator[str]:
    """``rest`` behind the label, or below one that is wider than its column."""
    if len(label) > width:
        yield label
        label = ""
    yield f"{label:{width}}{rest}"


def _values(measure: Measure, rows: int) -> str:
    """The two means, and how far apart they are."""
    unit = _shown_unit(measure)
    a, b = (
        "unpriced" if unpriced else _value(value, unit)
        for value, unpriced in zip((measure.a, measure.b), measure.unpriced, strict=True)
    )
    line = f"{a:>10} {b:>9}"
    return f"{line}{_difference(measure, rows)}" if measure.difference else line


def _unjudged_line(label: str, comparison: EvaluationComparison) -> Iterator[str]:
    a, b = comparison.unjudged
    if a or b:
        yield f"{label}{a:>10}{b:>10}{b - a:>+11}"


def _chosen(measures: Sequence[Measure]) -> list[Measure]:
    """All, but of many Pass^k those of ``shown_ks``."""
    ks = [measure for measure in measures if measure.name.startswith("Pass^")]
    return [*(ks[k - 1] for k in shown_ks(len(ks))), *measures[len(ks) :]]


def _difference(measure: Measure, rows: int) -> str:
    found = measure.difference
    assert found is not None
    unit = _shown_unit(measure)
    text = f" {_signed(found.value, unit):>10}"
    if found.interval is not None:
        low, high = (_signed(bound, unit) for bound in found.interval)
        text += f"  {low} to {high}"
    return text + (f"  ({count(found.rows, 'row')})" if found.rows < rows else "")


def _shown_unit(measure: Measure) -> Unit:
    """The decimals of a metric are those that the larger of its means needs."""
    large = max(abs(measure.a or 0.0), abs(measure.b or 0.0)) >= ONE_DECIMAL
    return "number" if measure.unit == "score" and large else measure.unit


def _value(value: float | None, unit: Unit) -> str:
    if value is None:
        return NOTHING
    if unit == "dollars":
        return dollars(value)
    if unit == "tokens":
        return tokens(round(value))
    if unit == "seconds":
        return duration(value)
    if abs(value) >= EXPONENT:
        return f"{value:.2e}"
    return f"{value:.1f}" if unit == "number" else f"{value:.3f}"


def _signed(value: float, unit: Unit) -> str:
    """With its sign, unless all that is shown of it is zero."""
    size = abs(value)
    text = f"${size:.4f}" if unit == "dollars" and size < 1 else _value(size, unit)
    if not any(digit in text for digit in "123456789"):
        return text
    return f"{'-' if value < 0 else '+'}{text}"


def _rows(what: str, pairs: Sequence[RowPair], comparison: EvaluationComparison) -> Iterator[str]:
    if not pairs:
        return
    shown = pairs[:SHOWN]
    width = min(LONGEST_NAME, max(len(pair.row_id) for pair in shown))
    side, stored = ("A", comparison.a) if what == "better" else ("B", comparison.b)
    yield ""
    yield f"{what} in B: {count(len(pairs), 'row')}"
    passed = [f"{pair.a.c}/{pair.a.n} -> {pair.b.c}/{pair.b.n}" for pair in shown]
    wide = max(12, *map(len, passed))
    yield f"  {'row':{width}}  {'A -> B':{wide}}  failures in {side}"
    for pair, counts in zip(shown, passed, strict=True):
        yield f"  {pair.row_id:{width}}  {counts:{wide}}  {tallied(pair.telling.failures)}".rstrip()
        failed = pair.failed_rollout()
        if failed is not None:
            yield f"    {from_here(stored.folder / failed.file)}"
    if len(pairs) > SHOWN:
        yield f"  and {len(pairs) - SHOWN} more; --json has all"
