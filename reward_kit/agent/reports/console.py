"""Reports of an evaluation for a terminal or a pipe: one screen at its end, and all of it for ``show``."""

from __future__ import annotations

from collections import Counter
from textwrap import wrap
from typing import TYPE_CHECKING

from reward_kit.agent.base.printing import (
    NAMES,
    NARROWEST,
    Styled,
    fact_lines,
    markdown_table_lines,
    table_lines,
)
from reward_kit.agent.base.text import count, cut, one_line
from reward_kit.agent.reports.facts import (
    LEADERBOARD,
    MEANS,
    command,
    cost_line,
    facts_of,
    failed_rollout_facts,
    failure_details,
    leaderboard_row,
    row_cells,
    title_line,
    tool_faults,
    what_went_wrong,
)
from reward_kit.agent.reports.listings import tree_lines, trees_of
from reward_kit.agent.scoring.metrics import LEADERBOARD_KS, shown_ks
from reward_kit.agent.scoring.numbers import NOTHING, duration, score, shares

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.scoring.intervals import Interval
    from reward_kit.agent.scoring.metrics import RowResult
    from reward_kit.agent.store.results import EvaluationResult

SCREEN = 23
"""Lines of the report at the end, which leaves room for a prompt on a terminal of 24."""
LEAST_ROWS = 3
"""Lines of that screen that failed rows have at least."""
LONGEST_REASON = 3
"""Lines of the reason for the reward of a single rollout."""
SHOW_ALL_UP_TO = 20
"""With more rows than this, those that passed every rollout are folded into one line."""
SOME_FAILURES = 3
"""Failed rollouts of which the whole report has the calls and the data."""
_SHORT = frozenset({"origin", "warning", "not judged", "rules", "user faults", "explanations", "aborted"})
"""Facts whose first lines stand on the screen at the end."""


def screen_lines(result: EvaluationResult, width: int) -> Iterator[str]:
    """The worst rows, the facts that matter, the scores, and the commands that go on: at most one screen.

    Grades that moved from those of a results file are all facts that matter, and may take more.
    """
    width = max(width, 2 * NAMES)
    head = ["", *(Styled(line, bold=True) for line in wrap(title_line(result), width)), ""]
    tail = [*_after_blank(_verdict(result, width)), *_after_blank(_commands(result, width))]
    failed = _worst(result.rows)
    room = SCREEN - len(head) - len(tail)
    facts = list(_short_facts(result, width))
    most = room - (min(len(failed), LEAST_ROWS) + 2 if failed else 0)
    if len(facts) > most and result.agreement is None:
        facts = [*facts[: most - 1], f"{'':{NAMES}}{count(len(facts) - most + 1, 'more line')} in all of it"]
    yield from head
    if not failed and len(result.rows) + len(facts) + 2 <= room:
        lines = [("row", "passed"), *((row.row_id, f"{row.passed}/{row.n_scored}") for row in result.rows)]
        yield from (*table_lines(lines, right={1}, width=width), "")
    if failed:
        room = max(LEAST_ROWS, room - len(facts) - 2)
        shown = failed if len(failed) <= room else failed[: room - 1]
        yield from _failed_rows(result, shown, width, spare=room - len(failed))
        if len(shown) < len(failed):
            yield f"and {len(failed) - len(shown)} more of {count(len(result.rows), 'row')}"
        yield ""
    yield from (*facts, *tail)[0 if facts else 1 :]


def report_lines(result: EvaluationResult, width: int) -> Iterator[str]:
    """Rows, failures, facts, scores with both intervals, leaderboard table, commands."""
    yield from (Styled(line, bold=True) for line in wrap(title_line(result), width))
    yield ""
    yield from _row_lines(result.rows, width)
    yield ""
    chosen = _chosen_failures(result)
    for outcome in chosen:
        yield from fact_lines(failed_rollout_facts(result, outcome), width)
    if chosen:
        yield ""
    yield from fact_lines(facts_of(result), width)
    for line, first in tool_faults(result):
        where = "" if first is None else f", in {first.row_id} #{first.index + 1}"
        yield from wrap(line + where, width, subsequent_indent="  ")
    for found in (result.compared_with, result.agreement):
        if found is not None:
            yield from ("", *found.lines())
    if tree := trees_of(result.log_path.parent, result.eval_id):
        yield ""
        yield from tree_lines(tree, width)
    if result.n_scored:
        yield ""
        yield from _score_lines(result, width)
        yield ""
        yield from _leaderboard(result, width)
    yield ""
    yield from _commands(result, width, whole=True)


# -- the screen at the end


def _worst(rows: Sequence[RowResult]) -> list[RowResult]:
    """The rows with rollouts that did not pass, those with the smallest share of passes first."""
    failed = [row for row in rows if any(not one.success for one in row.outcomes)]
    return sorted(failed, key=lambda row: (row.passed / len(row.outcomes), -len(row.outcomes)))


def _example(row: RowResult) -> Outcome:
    """The first rollout with the most frequent failure of the row; an unjudged one if none failed."""
    failed = [one for one in row.outcomes if not one.success]
    often = [kind for kind, _ in row.failures.most_common(1)]
    return next((one for one in failed if one.scored and one.failure in often), failed[0])


def _failed_rows(
    result: EvaluationResult, rows: Sequence[RowResult], width: int, spare: int
) -> Iterator[str]:
    """A line for each row: a rollout, how many passed, its class and first wrong step.

    While there are ``spare`` lines, the calls of that rollout and a row that differs follow.
    """
    examples = [_example(row) for row in rows]
    names = [f"{one.row_id}#{one.index + 1}" for one in examples]
    wide = min(max(map(len, names)), width // 2)
    yield Styled(f"{'failed':{wide}}  passed  first wrong step"[:width], dim=True)
    for name, row, one in zip(names, rows, examples, strict=True):
        kind = one.failure if one.scored else f"not judged, {one.unjudged_reason}"
        passed = f"{row.passed}/{row.n_scored}"
        start = f"{cut(name, wide):{wide}}  {passed:>6}  "
        where = "" if one.failure_step is None else f", step {one.failure_step}"
        done, missing, call = one.trouble.partition("; missing ")
        said = f"{kind}{where}: {missing.removeprefix('; ')}{call or done}"
        lines = wrap(said, max(NARROWEST, width - len(start)), break_on_hyphens=False)
        if len(lines) - 1 > spare:
            lines = [cut(said, max(NARROWEST, width - len(start)))]
        spare -= len(lines) - 1
        yield Styled(f"{start}{lines[0]}", len(start), len(start) + len(kind or ""), fg="red")
        yield from (f"{'':{len(start)}}{line}" for line in lines[1:])
        found = list(failure_details(result, one)) if spare > 0 else []
        details = sorted(found, key=lambda detail: detail[0] != "judged")[: max(0, spare)]
        spare -= len(details)
        yield from (cut(f"  {name:8}  {text}", width) for name, text in details)


def _short_facts(result: EvaluationResult, width: int) -> Iterator[str]:
    """Verdicts, failures by class, cost, the beginning of each other fact that matters, time."""
    if result.decision is not None:
        yield from fact_lines([("decision", str(result.decision))], width)
    for found in (result.compared_with, result.agreement):
        if found is not None:
            yield from (part for line in found.lines() for part in wrap(line, width))
    usual = (("failures", shares(result.failures)), ("cost", cost_line(result)))
    yield from fact_lines([(name, text) for name, text in usual if text], width)
    of = ""
    for name, text in facts_of(result):
        of = name or of
        is_short = of in (_SHORT if name else ("explanations", "origin"))
        if is_short and not text.startswith("never broken"):
            yield from fact_lines([(name, text)], width, 2)
    for line, _ in tool_faults(result):
        yield from wrap(line, width, subsequent_indent="  ", max_lines=2, placeholder=" …")
    if result.unjudged and result.status not in ("budget", "running"):
        yield _command_line("retry", command(result, "agent-eval", "--resume", result.eval_id))
    seconds = result.averages.seconds
    if seconds and result.planned > 1:
        spread = f"50% of the rollouts within {duration(seconds[50])}, 90% within {duration(seconds[90])}"
        yield from fact_lines([("time", spread)], width)


def _verdict(result: EvaluationResult, width: int) -> Iterator[str]:
    """Pass^1 to Pass^4 with an interval each, and the leaderboard row; of one rollout reward and reason."""
    powers = {k: one for k, one in result.pass_power.items() if k in LEADERBOARD_KS}
    if result.planned == 1 and powers:
        yield from _one_reward(result, width)
    elif powers:
        several = powers[1].intervals.tasks_like_these is not None  # one row says nothing about others
        intervals = (one.intervals[several] for one in powers.values())
        lines = [
            ("", *(f"Pass^{k}" for k in powers)),
            ("", *(score(one.value) for one in powers.values())),
            (f"95 % for {'tasks like these' if several else 'these tasks'}", *map(_range, intervals)),
        ]
        if any(one.left_out for one in powers.values()):
            rows = f" of {len(result.rows)}"
            lines.append(("rows with enough rollouts", *(f"{one.tasks}{rows}" for one in powers.values())))
        drop = range(len(powers), 1, -1)
        heading, values, *others = table_lines(lines, right={*drop, 1}, width=width, drop=drop)
        yield from (heading, Styled(values, bold=True), *others)
        yield _leaderboard(result, width)[-1]


def _leaderboard(result: EvaluationResult, width: int) -> list[str]:
    """The leaderboard table as Markdown, its strategy cut to the ``width``."""
    strategy, *cells = leaderboard_row(result)
    room = width - len(" | ".join(["|", *cells, "|"])) - 1
    row = [cut(strategy.replace("|", "/"), max(NARROWEST, room)), *cells]
    return list(markdown_table_lines([LEADERBOARD, row], right=range(1, len(LEADERBOARD))))


def _one_reward(result: EvaluationResult, width: int) -> Iterator[str]:
    (outcome,) = result.outcomes
    record = result.record_or_none(outcome)
    reason = one_line(str(((record and record.result) or {}).get("reason") or ""))
    reward = "none" if outcome.reward is None else f"{outcome.reward:g}"
    text = f"reward {reward}{f': {reason}' if reason else ''}"
    lines = wrap(text, width, max_lines=LONGEST_REASON, placeholder=" …")
    yield from (Styled(line, bold=True) for line in lines)


def _range(interval: Interval | None) -> str:
    return NOTHING if interval is None else f"{interval.low:.3f}-{interval.high:.3f}"


def _commands(result: EvaluationResult, width: int, *, whole: bool = False) -> Iterator[str]:
    """The commands that show the worst rollout, the whole report and the pages."""
    if worst := _worst(result.rows):
        one = _example(worst[0])
        shown = command(result, "show", f"{result.eval_id} {one.row_id}#{one.index + 1}")
        if len(shown) + NAMES > width:
            shown = command(result, "show", one.id[:12])
        yield _command_line("read it", shown)
    if not whole:
        yield _command_line("all of it", command(result, "show", result.eval_id))
    yield _command_line("browse", command(result, "view", result.eval_id))


def _command_line(name: str, line: str) -> str:
    return Styled(f"{name:{NAMES}}{line}", NAMES, fg="cyan")


def _after_blank(lines: Iterator[str]) -> Iterator[str]:
    """``lines`` after an empty one, if there are any."""
    found = list(lines)
    yield from ["", *found] if found else []


# -- the whole report


def _row_lines(rows: Sequence[RowResult], width: int) -> Iterator[str]:
    """A table of the rows; with many, of those with rollouts that did not pass."""
    shown = rows if len(rows) <= SHOW_ALL_UP_TO else [row for row in rows if row.passed < row.planned]
    if shown:
        cells = [(row.row_id, *row_cells(row).values(), what_went_wrong(row)) for row in shown]
        columns = list(zip(("row", "passed", *MEANS, "what went wrong"), *cells, strict=True))
        if all(row.reward in (None, row.passed / max(1, row.n_scored)) for row in shown):
            columns = [column for column in columns if column[0] != "reward"]
        kept = [column for column in columns if set(column[1:]) - {NOTHING, ""}]
        right = range(1, len(kept) - bool("what" in kept[-1][0]))
        yield from (lines := [*table_lines([*zip(*kept, strict=True)], right=right, width=width)])
        means = [name for name in MEANS if name in lines[0].split()]  # without those that have no room
        if means and any(len(row.outcomes) > 1 for row in shown):
            yield f"({', '.join(means)}: means of a row's rollouts)"
    if len(shown) < len(rows):
        yield f"{count(len(rows) - len(shown), 'row')} passed every rollout"


def _score_lines(result: EvaluationResult, width: int) -> Iterator[str]:
    """Pass^k and Pass@k with both intervals, each named by the question that it answers."""
    powers, ats = result.pass_power, result.pass_at
    shown = {k: powers[k] for k in shown_ks(max(powers, default=0))}
    table = [
        ["k", *map(str, shown)],
        ["Pass^k", *(score(one.value) for one in shown.values())],
        ["95 % these tasks", *(_range(one.intervals.these_tasks) for one in shown.values())],
        ["95 % tasks like these", *(_range(one.intervals.tasks_like_these) for one in shown.values())],
        ["rows", *(str(one.tasks) for one in shown.values())],
        ["Pass@k", *(score(ats[k].value) for k in shown)],
    ]
    if not any(one.left_out for one in shown.values()):
        del table[4]
    yield from table_lines([*zip(*table, strict=True)], right=range(1, len(table)), width=width)
    last = max((k for k in powers if k in LEADERBOARD_KS), default=1)
    if last > 1:
        yield Styled(f"score {score(result.score)}, the mean of Pass^1 to Pass^{last}", bold=True)


def _chosen_failures(result: EvaluationResult) -> list[Outcome]:
    """The first of each class, the most frequent class first; then the second of each."""
    seen, counts = Counter[str](), result.failures
    ranked: list[tuple[int, int, Outcome]] = []
    for outcome in result.outcomes:
        if outcome.failure is not None and outcome.scored:
            ranked.append((seen[outcome.failure], -counts[outcome.failure], outcome))
            seen[outcome.failure] += 1
    return [outcome for *_, outcome in sorted(ranked, key=lambda entry: entry[:2])[:SOME_FAILURES]]
