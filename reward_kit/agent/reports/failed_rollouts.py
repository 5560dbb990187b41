"""Examples of failed rollouts and of tools that raised."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.base.text import call_line, count, one_line
from reward_kit.agent.scoring.failures.row_differences import row_line
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from reward_kit.agent.records.outcome import RolloutOutcome
    from reward_kit.agent.reports.facts import Fact
    from reward_kit.agent.scoring.results import EvaluationResult

MOST_TOOLS = 3
"""Tools with faults that are named."""
LONGEST_LINE = 220
"""Characters of a call or a difference that are shown."""


def chosen_failures(result: EvaluationResult, most: int) -> list[RolloutOutcome]:
    """At most ``most``: the first of each class, the most frequent class first; then the second of each."""
    frequency = result.failures
    seen: Counter[str] = Counter()
    ranked: list[tuple[int, int, int, RolloutOutcome]] = []
    for outcome in result.outcomes:
        if outcome.failure is not None and outcome.judged:
            ranked.append((seen[outcome.failure], -frequency[outcome.failure], len(ranked), outcome))
            seen[outcome.failure] += 1
    return [outcome for *_, outcome in sorted(ranked, key=lambda entry: entry[:3])[:most]]


def failure_facts(result: EvaluationResult, outcome: RolloutOutcome) -> Iterator[Fact]:
    """One failed rollout: class and step, the expected and the made call, a differing row, a judgement."""
    where = "" if outcome.failure_step is None else f" in step {outcome.failure_step}"
    what = one_line(outcome.trouble, LONGEST_LINE)
    yield "failed", f"{outcome.row_id} #{outcome.index + 1}: {outcome.failure}{where}: {what}"
    failure: dict[str, Any] = {}
    with suppress(StorageError):  # shared without its trajectories: the outcome tells enough
        failure = result.record(outcome).failure or {}
    for name in ("expected", "made"):
        call = failure.get(name)
        if call:
            yield f"  {name}", one_line(call_line(call["name"], call["arguments"]), LONGEST_LINE)
    rows = failure.get("rows")
    if rows:
        more = len(rows) - 1 + int(failure.get("more_rows") or 0)
        yield "  data", one_line(row_line(rows[0]), LONGEST_LINE) + (f" (and {more} more)" if more else "")
    if result.explanations is not None:
        for one in result.explanations.usable:
            if one.rollout == outcome.id:
                yield "  judged", f"{one.author}, {one.fault}: {one_line(one.sentence or '')}"


def tool_faults(result: EvaluationResult) -> Iterator[tuple[str, RolloutOutcome | None]]:
    """A line on each tool that raised or blocked, most calls first, with the first rollout to look at."""
    met: dict[str, list[RolloutOutcome]] = {}
    calls: Counter[str] = Counter()
    for outcome in result.outcomes:
        for name, fault in (outcome.tool_faults or {}).items():
            met.setdefault(name, []).append(outcome)
            calls[name] += fault["calls"]
    for name, number in calls.most_common(MOST_TOOLS):
        first = met[name][0]
        fault = (first.tool_faults or {})[name]
        where = f"{count(number, 'call')} in {count(len(met[name]), 'rollout')}"
        yield f"tools with faults: {one_line(name)} ({where}), first {one_line(fault['first'])}", first
    if len(calls) > MOST_TOOLS:
        yield f"  and {count(len(calls) - MOST_TOOLS, 'more tool')}", None
