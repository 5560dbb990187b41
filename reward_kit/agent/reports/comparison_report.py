"""Two evaluations beside each other, for a terminal or a pipe of 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from reward_kit.agent.comparing.paired import TELLING
from reward_kit.agent.comparing.row_pairs import CHANGED
from reward_kit.agent.metrics import LEADERBOARD_KS
from reward_kit.agent.outcome import total_usage
from reward_kit.agent.reports.leaderboard import strategy
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
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.comparing import EvaluationComparison, Measure, PairedDifference, RowPair

WIDTH = 80
SHOWN = 10
"""Rows that got worse, and rows that got better, that are shown."""
LONGEST_NAME, LONGEST_STRATEGY = 40, 80
LONGEST_VALUE = 300


def comparison_lines(comparison: EvaluationComparison) -> Iterator[str]:
    """What differs, the numbers, the verdict, then the rows that changed."""
    yield from _heads(comparison)
    yield ""
    yield from _settings(comparison)
    yield ""
    yield from _left_out(comparison)
    yield from _numbers(comparison)
    yield ""
    yield from _verdict(comparison.success)
    yield from _rows("worse", comparison.worse, comparison)
    yield from _rows("better", comparison.better, comparison)


def _heads(comparison: EvaluationComparison) -> Iterator[str]:
    for side, stored in (("A", comparison.a), ("B", comparison.b)):
        done, planned = len(stored.outcomes), stored.planned
        status = "" if stored.status == "complete" else f"{stored.status}, "
        spent = money(total_usage(stored.usage.values()))
        cost = "" if spent == NOTHING else f", {spent}"
        yield f"{side}  {stored.eval_id}: {one_line(strategy(stored.configuration), LONGEST_STRATEGY)}"
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
    yield f"{'':14}{'A':>10}{'B':>10}{'B - A':>11}  95 % interval"
    chosen = _chosen(comparison.measures)
    for measure in chosen:
        a, b = (
            "unpriced" if unpriced else _value(value, measure.unit)
            for value, unpriced in zip((measure.a, measure.b), measure.unpriced, strict=True)
        )
        line = f"{measure.name:14}{a:>10}{b:>10}"
        yield f"{line}{_difference(measure, len(comparison.rows))}" if measure.difference else line
    a_errors, b_errors = comparison.unjudged
    if a_errors or b_errors:
        yield f"{'not judged':14}{a_errors:>10}{b_errors:>10}{b_errors - a_errors:>+11}"


def _chosen(measures: Sequence[Measure]) -> list[Measure]:
    """All, but of many Pass^k the first, powers of two, and the last."""
    ks = [measure for measure in measures if measure.name.startswith("Pass^")]
    shown = [
        measure
        for k, measure in enumerate(ks, start=1)
        if k in LEADERBOARD_KS or k & (k - 1) == 0 or k == len(ks)
    ]
    return [*shown, *measures[len(ks) :]]


def _difference(measure: Measure, rows: int) -> str:
    found = measure.difference
    assert found is not None
    text = f"{_signed(found.value, measure.unit):>11}"
    if found.interval is not None:
        low, high = (_signed(bound, measure.unit) for bound in found.interval)
        text += f"  {low} to {high}"
    return text + (f"  ({count(found.rows, 'row')})" if found.rows < rows else "")


def _value(value: float | None, unit: str) -> str:
    if value is None:
        return NOTHING
    if unit == "dollars":
        return dollars(value)
    if unit == "tokens":
        return tokens(round(value))
    if unit == "seconds":
        return duration(value)
    return f"{value:.3f}" if unit == "share" else f"{value:.1f}"


def _signed(value: float, unit: str) -> str:
    """With its sign, unless all that is shown of it is zero."""
    size = abs(value)
    text = f"${size:.4f}" if unit == "dollars" and size < 1 else _value(size, unit)
    if not any(digit in text for digit in "123456789"):
        return text
    return f"{'-' if value < 0 else '+'}{text}"


def _verdict(found: PairedDifference) -> Iterator[str]:
    rows, points = count(found.rows, "row"), f"{100 * found.value:+.1f} points"
    if found.interval is None:
        yield f"no difference that {rows} can show: {points}, and no interval of a single row"
        return
    interval = f"95 % interval {100 * found.interval.low:+.1f} to {100 * found.interval.high:+.1f}"
    if found.differing == 0:
        yield f"no difference: each of {rows} succeeds as often in B as in A"
    elif found.verdict == "no difference":
        yield f"no difference that {rows} can show: {points}, {interval}"
    else:
        yield f"B is {found.verdict}: {points}, {interval}, {rows}"
        if found.differing < TELLING:
            differ = "1 row differs" if found.differing == 1 else f"{found.differing} rows differ"
            yield f"(only {differ}: with fewer than {TELLING}, take it for a hint)"


def _rows(what: str, pairs: Sequence[RowPair], comparison: EvaluationComparison) -> Iterator[str]:
    if not pairs:
        return
    shown = pairs[:SHOWN]
    width = min(LONGEST_NAME, max(len(pair.row_id) for pair in shown))
    side, stored = ("A", comparison.a) if what == "better" else ("B", comparison.b)
    yield ""
    yield f"{what} in B: {count(len(pairs), 'row')}"
    yield f"  {'row':{width}}  {'A -> B':14}failures in {side}"
    for pair in shown:
        passed = f"{pair.a.c}/{pair.a.n} -> {pair.b.c}/{pair.b.n}"
        yield f"  {pair.row_id:{width}}  {passed:14}{tallied(pair.telling.failures)}".rstrip()
        failed = pair.failed_rollout()
        if failed is not None:
            yield f"    {from_here(stored.folder / failed.file)}"
    if len(pairs) > SHOWN:
        yield f"  and {len(pairs) - SHOWN} more; --json has all"
