"""Comparisons of evaluations and the gate: for a terminal or a pipe, and as Markdown."""

from __future__ import annotations

from string import ascii_uppercase
from typing import TYPE_CHECKING

from reward_kit.agent.base.printing import (
    LONGEST_VALUE,
    Styled,
    code,
    folded,
    markdown_table_lines,
    table_lines,
)
from reward_kit.agent.base.text import count, cut, one_line
from reward_kit.agent.comparison.compare import different_settings
from reward_kit.agent.comparison.gate import reasons
from reward_kit.agent.comparison.measures import CHANGED
from reward_kit.agent.reports.facts import (
    INTERVALS,
    LONGEST_STRATEGY,
    command,
    failed_rollout_facts,
    origin_facts,
    strategy,
)
from reward_kit.agent.scoring.metrics import average, shown_ks
from reward_kit.agent.scoring.numbers import (
    NOTHING,
    dollars,
    duration,
    money,
    pass_cells,
    score,
    tallied,
    tokens,
)
from reward_kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from reward_kit.agent.comparison.compare import BaselineComparison, EvaluationComparison
    from reward_kit.agent.comparison.gate import Gate
    from reward_kit.agent.comparison.measures import Measure, PairedDifference, RowPair, Unit
    from reward_kit.agent.store.results import EvaluationResult

SIDES = ascii_uppercase
SHOWN_ROWS, SHOWN_METRICS, SHOWN_NAMES = 10, 10, 5
"""Rows that got worse (and better), metrics, and names in a list, that are shown."""
LONGEST_NAME = 40
QUESTIONS = ("these tasks", "tasks like these")
_PER_ROLLOUT = "95 % intervals; cost, tokens, steps, turns and time are means per rollout."
_ALONE = "Each interval stands alone: one of 20 equal evaluations lies outside it by luck."
_OVER = "Numbers are over all rows of an evaluation, verdicts over those shared with A."
_Table = dict[str, "list[Measure | None]"]


def comparison_lines(comparison: EvaluationComparison, width: int | None = None) -> Iterator[str]:
    """Two evaluations: the verdict, the rows that changed, what differs between them, the numbers.

    ``width`` is that of the terminal (None: unlimited).
    """
    yield from _folded((Styled(line, bold=True) for line in verdict_lines(comparison.success)), width)
    yield ""
    for side, stored in (("A", comparison.a), ("B", comparison.b)):
        yield from _folded(_head(side, stored), width)
    yield ""
    yield from _changed_rows("worse", comparison.worse, "B", comparison.b, width)
    yield from _changed_rows("better", comparison.better, "A", comparison.a, width)
    yield from _folded(settings_lines(comparison), width)
    yield ""
    yield from _folded(left_out_lines(comparison), width)
    yield from table_lines(measures_table(comparison), right=(1, 2, 3), width=width)
    yield from _folded(_metric_notes([comparison]), width)


def _folded(lines: Iterable[str], width: int | None) -> Iterator[str]:
    return (part for line in lines for part in folded(line, width))


def measures_table(comparison: EvaluationComparison) -> list[tuple[str, ...]]:
    """Headings, and a line for each measure: its name, both means, the difference and its intervals."""
    found = ((name, measure) for name, (measure,) in _table([comparison]).items() if measure is not None)
    rows = [(cut(name, LONGEST_NAME + 2), *_cells(measure, len(comparison.rows))) for name, measure in found]
    return [("", "A", "B", "B - A", *QUESTIONS), *rows, *_unjudged(comparison, "not judged")]


def baseline_lines(found: BaselineComparison, columns: int | None = None) -> Iterator[str]:
    """Several evaluations: the verdicts, a line for each, then each number beside the baseline's.

    ``columns`` is the width of the terminal (None: unlimited).
    """
    others = list(zip(SIDES[1:], found.comparisons, strict=False))
    for side, each in others:
        yield from _folded((Styled(line, bold=True) for line in verdict_lines(each.success, side)), columns)
    yield from _folded([_ALONE], columns)
    yield ""
    yield from _standing_lines(found.comparisons, columns)
    yield ""
    rows: list[tuple[str, ...]] = [("", "", "A", "this", "this - A", *QUESTIONS)]
    for name, measures in _table(found.comparisons).items():
        label = cut(name, LONGEST_NAME + 2)
        for (side, _), measure in zip(others, measures, strict=True):
            if measure is not None:
                rows.append((label, side, *_cells(measure, len(found.baseline.rows))))
                label = ""
    for side, each in others:
        rows += _unjudged(each, "not judged", side)
    yield from table_lines(rows, right=(2, 3, 4), width=columns, drop=(5, 2))
    yield from _folded(_metric_notes(found.comparisons), columns)
    yield f"Rows that changed, and settings: reward-kit compare {found.baseline.eval_id} OTHER"


def sweep_lines(comparisons: Sequence[EvaluationComparison], columns: int | None = None) -> Iterator[str]:
    """Evaluations of several models: a line for each, and the verdicts against the first."""
    yield from _standing_lines(comparisons, columns)
    for side, each in zip(SIDES[1:], comparisons, strict=False):
        yield from _folded(verdict_lines(each.success, side), columns)
    names = [comparisons[0].a.eval_id, *(each.b.eval_id for each in comparisons)]
    yield f"Costs, steps and rows: reward-kit compare {' '.join(names)}"


def markdown_lines(comparisons: Sequence[EvaluationComparison]) -> Iterator[str]:
    """A table of the evaluations and a list of the verdicts; ``UsageError`` for more than have letters."""
    (headings, *rows), right = _standing_rows(comparisons)
    quoted = [(*row[:-1], code(row[-1])) for row in rows]
    yield from markdown_table_lines([headings, *quoted], right=right)
    yield ""
    for side, each in zip(SIDES[1:], comparisons, strict=False):
        yield from (f"- {line}" for line in verdict_lines(each.success, side))


def verdict_lines(found: PairedDifference, side: str | None = None) -> Iterator[str]:
    """The verdicts in words; ``side`` is the letter of the evaluation if there are several."""
    none, side = ("no difference", "B") if side is None else (f"{side}: no difference", side)
    rows = f", {count(found.rows, 'row')}"
    for question, verdict, interval in zip(QUESTIONS, found.verdicts, found.intervals, strict=True):
        if interval is None:
            yield f"{question}: a single row says nothing about others"
            continue
        points = f"{100 * found.value:+.1f} points"
        limits = f"95 %: {100 * interval.low:+.1f} to {100 * interval.high:+.1f}"
        said = f"{none} shown" if verdict == "no difference" else f"{side} is {verdict}"
        yield f"{said} on {question}: {points} ({limits}){rows if question is QUESTIONS[0] else ''}"


def _standing_lines(comparisons: Sequence[EvaluationComparison], width: int | None) -> Iterator[str]:
    """A line for the baseline and each of the others."""
    rows, right = _standing_rows(comparisons)
    last = len(rows[0]) - 1
    less = [last - 3, *range(last - 4, 4, -1), 3, 2, last - 2, last]  # reward, Pass^k, counts, cost, agent
    yield from table_lines(rows, right=right, width=width, drop=less)
    if any(one.pass_power[1].intervals.tasks_like_these for each in comparisons for one in (each.a, each.b)):
        yield INTERVALS
    if any(len(each.rows) < len(one.rows) for each in comparisons for one in (each.a, each.b)):
        yield from _folded([_OVER], width)


def _standing_rows(comparisons: Sequence[EvaluationComparison]) -> tuple[list[tuple[str, ...]], set[int]]:
    """Headings and the evaluations' own numbers over all of their rows; the columns to align right."""
    if len(comparisons) >= len(SIDES):
        raise UsageError(f"at most {len(SIDES)} evaluations fit into one table")
    evaluations = [comparisons[0].a, *(each.b for each in comparisons)]
    found = (each.success.verdicts for each in comparisons)
    verdicts = ["baseline", *(these if these == like else f"{these} on these" for these, like in found)]
    ks = shown_ks(min(max(one.pass_power) for one in evaluations))
    powers = [f"Pass^{k}" for k in ks]
    headings = ("", "evaluation", "rows", "judged", *powers, "reward", "cost", "verdict", "agent (model)")
    rows: list[tuple[str, ...]] = [headings]
    for side, stored, verdict in zip(SIDES, evaluations, verdicts, strict=False):
        ending = "" if stored.status == "complete" else f" ({stored.status})"
        name, reward = one_line(stored.eval_id, LONGEST_NAME) + ending, stored.averages.reward
        counts = str(len(stored.rows)), f"{stored.n_scored}/{stored.planned}"
        # without the number of unpriced calls: the column stays narrow
        means = score(reward.value if reward else None), money(stored.spent, 1)
        player = one_line(strategy(stored), LONGEST_STRATEGY)
        rows.append((side, name, *counts, *pass_cells(stored.pass_power, ks), *means, verdict, player))
    return rows, {2, 3, *range(5, len(headings) - 2)}  # Pass^1 has an interval


def _head(side: str, stored: EvaluationResult) -> Iterator[str]:
    status = "" if stored.status == "complete" else f"{stored.status}, "
    spent = money(stored.spent)
    cost = "" if spent == NOTHING else f", {spent}"
    rollouts = f"{sum(row.finished for row in stored.rows)} of {count(stored.planned, 'rollout')}"
    yield f"{side}  {stored.eval_id}: {one_line(strategy(stored), LONGEST_STRATEGY)}"
    yield f"   {status}{count(len(stored.rows), 'row')}, {rollouts}{cost}"
    for name, text in origin_facts(stored):
        if name:
            yield f"   branches of {text}"


def settings_lines(comparison: EvaluationComparison) -> Iterator[str]:
    """The settings, modules, rows and tools that differ."""
    found = []
    width = max((len(setting.name) for setting in comparison.settings), default=0)
    for setting in comparison.settings:
        a, b = (one_line(value, LONGEST_VALUE) for value in (setting.a, setting.b))
        found.append(f"  {setting.name:{width}}  {a} -> {b}")
    modules: dict[str, list[str]] = {}
    for name, (before, now) in comparison.code.items():
        change = "only in B" if before is None else "only in A" if now is None else "changed"
        modules.setdefault(change, []).append(name)
    found += [f"  code {change}: {_listed(names)}" for change, names in modules.items()]
    changed, tools = comparison.changed, comparison.tools
    if changed:
        fields = one_line(", ".join(comparison.changed_fields), LONGEST_VALUE)
        where = f" ({changed[0]}: {fields})" if fields else ""
        found.append(f"  content of {count(len(changed), 'row')}{where}")
    if tools:
        found.append(f"  tools of {count(len(tools), 'row')}: their names, descriptions or parameters")
    yield "different:" if found else "Nothing that is recorded of the two is different."
    yield from found


def _listed(names: Sequence[str]) -> str:
    left = len(names) - SHOWN_NAMES
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {left} more" if left > 0 else "")


def left_out_lines(comparison: EvaluationComparison) -> Iterator[str]:
    """The rows that are not compared, by reason, and those with rollouts missing."""
    compared, left_out = len(comparison.rows), comparison.left_out
    lines = []
    if left_out:
        total = compared + sum(len(ids) for ids in left_out.values())
        lines.append(f"{compared} of {count(total, 'row')} compared; left out:")
        lines += [f"  {len(ids)} {reason}: {_listed(ids)}" for reason, ids in left_out.items()]
        if CHANGED in left_out:
            lines.append("  (--changed-rows compares those that have changed, too)")
    for side in ("a", "b"):
        rows = [getattr(pair, side) for pair in comparison.rows]
        if fewer := sum(row.n_scored < row.planned for row in rows):
            judged = f"fewer judged rollouts than planned in {side.upper()}"
            lines.append(f"{count(fewer, 'row')} compared with {judged}")
    if lines:
        yield from [*lines, ""]


def _table(comparisons: Sequence[EvaluationComparison]) -> _Table:
    """By label the measure of each comparison (None: it has none); metrics follow the reward."""
    measures = [{one.name: one for one in each.measures} for each in comparisons]
    metrics = [_shared_metrics(each) for each in comparisons]
    ks = [int(name.removeprefix("Pass^")) for found in measures for name in found if name.startswith("Pass^")]
    shown = {f"Pass^{k}" for k in shown_ks(max(ks))}
    told = all(_same(found.get("reward"), found.get("Pass^1")) for found in measures)
    table: _Table = {}
    for name in dict.fromkeys(name for found in measures for name in found):
        if (name in shown or not name.startswith("Pass^")) and not (told and name == "reward"):
            table[name] = [found.get(name) for found in measures]
        for label in _clearest(metrics) if name == "reward" else ():
            table[f"  {one_line(label)}"] = [found.get(label) for found in metrics]
    return table


def _same(one: Measure | None, other: Measure | None) -> bool:
    return one is other or (one is not None and other is not None and (one.a, one.b) == (other.a, other.b))


def _shared_metrics(comparison: EvaluationComparison) -> dict[str, Measure]:
    return {metric.name: metric for metric in comparison.metrics if metric.difference is not None}


def _clearest(metrics: Sequence[Mapping[str, Measure]]) -> list[str]:
    """The metrics, or of many those that differ most clearly in any comparison."""
    clearness: dict[str, float] = {}
    for name, metric in (item for found in metrics for item in found.items()):
        clear = metric.difference.clearness if metric.difference else 0.0
        clearness[name] = max(clear, clearness.get(name, 0.0))
    shown = sorted(clearness, key=lambda name: -clearness[name])[:SHOWN_METRICS]
    return [name for name in clearness if name in shown]


def _metric_notes(comparisons: Sequence[EvaluationComparison]) -> Iterator[str]:
    """Notes on what the means are over, and on metrics that are not shown or cannot be compared."""
    if any(measure.name == "steps" for each in comparisons for measure in each.measures):
        yield _PER_ROLLOUT
    names = dict.fromkeys(metric.name for each in comparisons for metric in each.metrics)
    shared = {name for each in comparisons for name in _shared_metrics(each)}
    if len(shared) > SHOWN_METRICS:
        others = count(len(shared) - SHOWN_METRICS, "metric")
        yield f"Not shown, as less clear or the same: {others} (--json has all)."
    apart = [one_line(name) for name in names if name not in shared]
    if apart:
        yield f"Metrics without a row in both: {_listed(apart)}"


def _unjudged(comparison: EvaluationComparison, *labels: str) -> list[tuple[str, ...]]:
    a, b = comparison.unjudged
    return [(*labels, str(a), str(b), f"{b - a:+}", "", "")] if a or b else []


def _cells(measure: Measure, rows: int) -> tuple[str, str, str, str, str]:
    """The two means, their difference and its intervals, with the compared rows if they are not ``rows``."""
    unit, found = measure.unit, measure.difference
    a, b = (
        "unpriced" if unpriced else _value(value, unit)
        for value, unpriced in zip((measure.a, measure.b), measure.unpriced, strict=True)
    )
    if found is None:
        return a, b, "", "", ""
    these, like = (" to ".join(_signed(limit, unit) for limit in one or ()) for one in found.intervals)
    fewer = f"  ({count(found.rows, 'row')})" if found.rows < rows else ""
    return a, b, _signed(found.value, unit), these, like + fewer


def _value(value: float | None, unit: Unit) -> str:
    shown: dict[str, Callable[[float], str]] = {"dollars": dollars, "seconds": duration}
    shown["tokens"] = lambda number: tokens(round(number))
    if value is None or unit in shown:
        return NOTHING if value is None else shown[unit](value)
    if abs(value) >= 1000:
        return f"{value:.5g}"
    return f"{value:.1f}" if unit == "number" else f"{value:.3f}"


def _signed(value: float, unit: Unit) -> str:
    """With its sign, unless it is shown as zero."""
    size = abs(value)
    text = f"${size:.4f}" if unit == "dollars" and size < 1 else _value(size, unit)
    if not any(digit in text for digit in "123456789"):
        return text
    return f"{'-' if value < 0 else '+'}{text}"


def _changed_rows(
    change: str, pairs: Sequence[RowPair], side: str, stored: EvaluationResult, width: int | None
) -> Iterator[str]:
    """The rows that got ``change`` in B, with the failures of the ``side`` that failed more often."""
    if not pairs:
        return
    yield f"{change} in B: {count(len(pairs), 'row')}"
    rows = [("  row", "A -> B", f"failures in {side}")]
    for pair in pairs[:SHOWN_ROWS]:
        passed = f"{pair.a.passed}/{pair.a.n_scored} -> {pair.b.passed}/{pair.b.n_scored}"
        rows.append((f"  {pair.row_id}", passed, tallied(pair.weaker.failures)))
    yield from table_lines(rows, width=width)
    if len(pairs) > SHOWN_ROWS:
        yield f"  and {len(pairs) - SHOWN_ROWS} more; --json has all"
    failed = next((one for pair in pairs if (one := pair.failed_rollout()) is not None), None)
    if failed is not None:
        name = f"{stored.eval_id} {failed.row_id}#{failed.index + 1}"
        yield f"  read one: {command(stored, 'show', name)}"
    yield ""


# -- the gate for pull requests

LONGEST_CELL = 120
"""Characters of a fact in a cell of the comment."""


def gate_lines(gate: Gate) -> Iterator[str]:
    """The decision, the rows that are certainly worse, and what was not compared or not the same."""
    yield str(gate.decision)
    if gate.lost:
        yield f"certainly worse, although they always succeeded in the baseline: {', '.join(gate.lost)}"
    if unjudged := sum(pair.b.unjudged.total() for pair in gate.pairs):
        yield f"not judged: {count(unjudged, 'rollout')} of these rows"
    if gate.stored.status != "complete":
        yield f"the evaluation is not complete ({gate.stored.status}: {one_line(gate.stored.reason or '')})"
    if gate.left_out:
        yield f"not compared: {reasons(gate.left_out)}"
    for setting in different_settings(gate.baseline, gate.stored):
        yield one_line(f"different: {setting.name} was {setting.a}, is {setting.b}", LONGEST_VALUE)


def comment_lines(gate: Gate) -> Iterator[str]:
    """A Markdown comment: the verdict, Pass^1 before and after, and the rows that got worse."""
    title = {0: "Better or equal", 1: "Worse", 3: "Cannot tell"}[gate.exit_code]
    name = gate.stored.eval_id
    yield f"### {title}: {code(name)} against {code(gate.baseline.eval_id)}\n"
    if gate.decision.difference is not None:
        sides = zip(*((pair.a, pair.b) for pair in gate.pairs), strict=True)
        before, now = (average([one.passed / one.n_scored for one in side]) for side in sides)
        yield f"**Pass^1 {before:.3f} → {now:.3f}**\n"
    yield from (f"- {code(line)}" for line in gate_lines(gate))
    worse = [pair for pair in gate.pairs if pair.difference < 0]
    if worse and gate.exit_code:  # beside a better or equal result, it is chance
        yield f"\n{count(len(worse), 'row')} succeeded less often, flaky ones last:\n"
        lost = {*gate.lost}
        worse.sort(key=lambda one: (one.row_id not in lost, one.a.passed < one.a.n_scored, one.difference))
        cells = (_gated_cells(gate, pair) for pair in worse[:SHOWN_ROWS])
        yield from markdown_table_lines([("row", "before", "now", "", "a failed rollout"), *cells])
        more = f"and {len(worse) - SHOWN_ROWS} more. " if len(worse) > SHOWN_ROWS else ""
        yield f'\n{more}To read a rollout: `reward-kit show "{name} ROW#N"`'


def _gated_cells(gate: Gate, pair: RowPair) -> tuple[str, ...]:
    kind = "certain" if pair.row_id in gate.lost else "flaky" if pair.a.passed < pair.a.n_scored else ""
    failed = pair.failed_rollout()
    facts = failed_rollout_facts(gate.stored, failed) if failed is not None else ()
    trouble = "<br>".join(code(f"{fact.strip()}: {text}", LONGEST_CELL) for fact, text in facts)
    passed = (f"{one.passed}/{one.n_scored}" for one in (pair.a, pair.b))
    return (code(pair.row_id), *passed, kind, trouble)
