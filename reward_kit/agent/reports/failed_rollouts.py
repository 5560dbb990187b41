"""Why rollouts failed, for the end of the report: totals, and a few of them one by one."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from reward_kit.agent.calls import call_line, json_text
from reward_kit.agent.reports.wording import count, from_here, money, one_line, shares
from reward_kit.agent.runs.rollout_record import load_rollout
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.results import EvaluationResult

MOST_TOOLS = 3
"""Tools with faults that are named."""
LONGEST_LINE = 220
"""Characters of a call or a difference that are shown."""

Fact = tuple[str, str]


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
    """One failed rollout: class and step, what was expected and made, the rows that differ."""
    where = "" if outcome.failure_step is None else f" in step {outcome.failure_step}"
    what = one_line(outcome.trouble, LONGEST_LINE)
    yield "failed", f"{outcome.row_id} #{outcome.index + 1}: {outcome.failure}{where}: {what}"
    failure = _stored_failure(result, outcome)
    for name in ("expected", "made"):
        call = failure.get(name)
        if isinstance(call, dict) and "name" in call:
            yield f"  {name}", one_line(call_line(call["name"], call.get("arguments")), LONGEST_LINE)
    rows = failure.get("rows")
    if isinstance(rows, list) and rows:
        more = len(rows) - 1 + int(failure.get("more_rows") or 0)
        yield "  data", one_line(row_line(rows[0]), LONGEST_LINE) + (f" (and {more} more)" if more else "")
    if result.explanations is not None:
        for one in result.explanations.usable:
            if one.rollout == outcome.id:
                yield "  judged", f"{one.author}, {one.fault}: {one_line(one.sentence or '')}"


def tool_fault_lines(result: EvaluationResult) -> Iterator[str]:
    """The tools with faults, and the file in which the first time of each can be seen."""
    for line, first in tool_faults(result):
        seen = "" if first is None else f" in row {first.row_id}, {from_here(result.folder / first.file)}"
        yield f"{line}{seen}"


def tool_faults(result: EvaluationResult) -> Iterator[tuple[str, RolloutOutcome | None]]:
    """The tools that raised, or broke or held up what others need, those with most such calls first, each
    with the first such rollout; at last how many are not named.
    """
    met: dict[str, list[RolloutOutcome]] = {}
    calls: Counter[str] = Counter()
    for outcome in result.outcomes:
        for name, fault in (outcome.tool_faults or {}).items():
            met.setdefault(name, []).append(outcome)
            calls[name] += fault["calls"]
    for name, number in calls.most_common(MOST_TOOLS):
        first = met[name][0]
        assert first.tool_faults is not None
        line = (
            f"tools with faults: {one_line(name)} ({count(number, 'call')} in "
            f"{count(len(met[name]), 'rollout')}), first {one_line(first.tool_faults[name]['first'])}"
        )
        yield line, first
    if len(calls) > MOST_TOOLS:
        yield f"  and {count(len(calls) - MOST_TOOLS, 'more tool')}", None


def row_line(row: Mapping[str, Any]) -> str:
    """A row difference as it is stored, in a line: ``orders #W1 status: expected "paid", got "open"``."""
    key = row.get("key")
    values = list(key.values()) if isinstance(key, dict) else []
    named = str(values[0]).removeprefix("#") if len(values) == 1 else None
    name = f" #{named}" if named is not None else f" {json_text(key)}" if values else ""
    column = f" {row['column']}" if row.get("column") else ""
    if row.get("column") is None and row.get("got") is None:
        return f"{row.get('table')}{name}: missing row {json_text(row.get('expected'))}"
    if row.get("column") is None and row.get("expected") is None:
        return f"{row.get('table')}{name}: unexpected row {json_text(row.get('got'))}"
    expected, got = json_text(row.get("expected")), json_text(row.get("got"))
    return f"{row.get('table')}{name}{column}: expected {expected}, got {got}"


def user_fault_facts(result: EvaluationResult) -> Iterator[Fact]:
    """What the simulated users did wrong."""
    faults = result.user_faults
    if faults.faulty:
        rollouts = count(faults.simulated, "rollout")
        yield "user faults", f"the simulated user misbehaved in {faults.faulty} of {rollouts}"
        yield "", ", ".join(f"{kind} {number}" for kind, number in faults.kinds.most_common())


def explanation_facts(result: EvaluationResult) -> Iterator[Fact]:
    """What a model made of the failures, and what asking it has cost."""
    explained = result.explanations
    if explained is None:
        return
    yield "explanations", f"{len(explained.made)} by {explained.model}, {money(explained.usage)}"
    if explained.authors:
        yield "", f"at fault: {shares(explained.authors)}"
    for author in explained.authors:
        yield "", f"{author}: {shares(explained.faults(author))}"
    problems = [one.problem or "" for one in explained.made if one.author is None]
    if problems:
        first = one_line(problems[0], LONGEST_LINE)
        yield "", f"{count(len(problems), 'failure')} not explained, the first: {first}"
    if explained.missing:
        why = f": {one_line(explained.reason)}" if explained.reason else ""
        larger = " --max-cost USD" if "--max-cost" in (explained.reason or "") else ""
        yield "", f"{explained.missing} missing{why}; --resume {result.eval_id}{larger} makes the rest"


def _stored_failure(result: EvaluationResult, outcome: RolloutOutcome) -> dict[str, Any]:
    """The failure as the trajectory tells it; nothing if that is not there, or of an earlier version."""
    with suppress(StorageError):
        return load_rollout(result.folder / outcome.file).failure or {}
    return {}
