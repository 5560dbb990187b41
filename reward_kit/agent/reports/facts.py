"""The numbers of an evaluation in words: (name, text) pairs and cells that console and pages share."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

from reward_kit.agent.base.text import count, from_here, one_line
from reward_kit.agent.config import DEFAULTS
from reward_kit.agent.models.answer_parts import REMEDIES
from reward_kit.agent.rollout.outcome import REWARD_ERROR, total_usage
from reward_kit.agent.scoring.metrics import LEADERBOARD_KS, mean
from reward_kit.agent.scoring.numbers import (
    NOTABLE_WAITING,
    NOTHING,
    bracketed,
    dollars,
    duration,
    estimate,
    money,
    score,
    shares,
    tallied,
    tokens,
)
from reward_kit.agent.store.evaluation_file import count_answer_faults, count_cut_answers
from reward_kit.agent.store.layout import origin_of
from reward_kit.agent.store.transcript import failure_facts
from reward_kit.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from reward_kit.agent.after.explainer import Explanations
    from reward_kit.agent.base.types import Usage
    from reward_kit.agent.rollout.outcome import Outcome
    from reward_kit.agent.scoring.metrics import RowResult
    from reward_kit.agent.store.results import EvaluationResult

Fact = tuple[str, str]
"""Name and text; a fact without a name belongs to the one before."""
INTERVALS = "[95 % interval for tasks like these]"
MEANS = ("reward", "steps", "time", "cost")
"""Columns of rows that are means over their rollouts."""
LEADERBOARD = ("Strategy", *(f"Pass^{k}" for k in LEADERBOARD_KS))
ENDED_EARLY = (("agent_error",), ("timeout", "budget"))
"""Stop reasons whose failures get an example, one for each group."""
PASSED_ANYWAY = {
    ("agent_error",): "the agent failed",
    ("max_steps",): "they ran out of steps: the reward does not look at rollout.stop_reason",
    ("timeout", "budget"): "they ran out of time or budget: the reward does not look at rollout.stop_reason",
}
"""Warnings of rollouts that passed, by their stop reasons."""
FIRST_TURNS = 4
"""Success within k turns is reported for the first turns and the last."""
LONGEST_PROBLEM, LONGEST_STRATEGY = 220, 80
MOST_TOOLS = 3
"""Tools with faults that are named."""


def strategy(evaluation: EvaluationResult) -> str:
    """The agent and the model that it used: ``tool-calling (openai/gpt-4o-mini)``."""
    agent, model = evaluation.configuration.get("agent"), evaluation.asked_model
    return f"{agent} ({model})" if model else f"{agent}"


def leaderboard_row(result: EvaluationResult) -> list[str]:
    """The cells below the ``LEADERBOARD`` headings."""
    powers = [result.pass_power.get(k) for k in LEADERBOARD_KS]
    return [strategy(result), *(score(power.value if power else None) for power in powers)]


def scores_line(result: EvaluationResult) -> str:
    """The leaderboard row in one line, as ``--quiet`` prints it."""
    name, *values = leaderboard_row(result)
    return "  ".join([name, *map(" ".join, zip(LEADERBOARD[1:], values, strict=True))])


def title_line(result: EvaluationResult) -> str:
    """Agent, model, how many rollouts passed, and the status unless it is complete."""
    noun = "rollout" if result.configuration.get("errors_as_failures") else "judged rollout"
    passed = f"{result.passed} of {count(result.n_scored, noun)} passed"
    reason = one_line(result.reason or "")
    ending = f" ({result.status}: {reason})"
    if result.status in ("complete", "running"):
        ending = f" (still running, {reason})" if result.status == "running" else ""
    rows = count(len(result.rows), "row")
    return f"{strategy(result)}: {passed}, {rows}, {duration(result.seconds)}{ending}"


def row_cells(row: RowResult) -> dict[str, str]:
    """The cells of a row's columns of numbers, by heading."""
    steps = mean([outcome.steps for outcome in row.outcomes])
    usage = total_usage(usage for outcome in row.outcomes for usage in outcome.usage.values())
    return {
        "passed": f"{row.passed}/{row.n_scored}",
        "reward": NOTHING if row.reward is None else f"{row.reward:.2f}",
        "steps": NOTHING if steps is None else f"{steps:.1f}",
        "time": duration(mean([outcome.seconds for outcome in row.outcomes])),
        "cost": money(usage, len(row.outcomes)),
    }


def what_went_wrong(row: RowResult) -> str:
    """Failures by class and unjudged rollouts by reason, and the number of those not run."""
    missing = row.planned - len(row.outcomes)
    parts = [tallied(row.failures + row.unjudged), f"{missing} not run" if missing else ""]
    return ", ".join(filter(None, parts))


def means_line(rows: Sequence[RowResult]) -> str | None:
    """A caption for the columns that are means; None if no row has several rollouts."""
    if all(len(row.outcomes) <= 1 for row in rows):
        return None
    return f"{', '.join(MEANS)}: means of a row's rollouts"


def tool_faults(result: EvaluationResult) -> Iterator[tuple[str, Outcome | None]]:
    """A line on each tool that raised, and on code that blocked, most calls first, with the first rollout."""
    met: dict[str, list[Outcome]] = {}
    calls: Counter[str] = Counter()
    for outcome in result.outcomes:
        for name, fault in (outcome.tool_faults or {}).items():
            met.setdefault(name, []).append(outcome)
            calls[name] += fault["calls"]
    for name, number in calls.most_common(MOST_TOOLS):
        first = met[name][0]
        fault = (first.tool_faults or {})[name]
        where = f"{count(number, 'call')} in {count(len(met[name]), 'rollout')}"
        kind = "code" if name.startswith("the ") else "tools"  # the agent, the user, the reward
        yield f"{kind} with faults: {one_line(name)} ({where}), first {one_line(fault['first'])}", first
    if len(calls) > MOST_TOOLS:
        yield f"  and {count(len(calls) - MOST_TOOLS, 'more tool')}", None


def interval_lines(result: EvaluationResult) -> Iterator[str]:
    """A caption for the intervals in brackets, and those for these tasks alone."""
    powers = [(k, one.intervals) for k, one in result.pass_power.items() if k in LEADERBOARD_KS]
    if any(found.tasks_like_these for _, found in powers):
        yield INTERVALS
    these = [f"Pass^{k} {bracketed(found.these_tasks)}" for k, found in powers if found.these_tasks]
    if these:
        yield f"on these tasks alone: {', '.join(these)}"


def left_out_lines(result: EvaluationResult) -> Iterator[str]:
    """A note on the k whose mean is over fewer rows than there are."""
    rows = {k: one.tasks for k, one in result.pass_power.items() if one.left_out and k in LEADERBOARD_KS}
    if rows:
        counted = ", ".join(f"Pass^{k} over {number}" for k, number in rows.items())
        yield f"{counted} of {count(len(result.rows), 'row')}: the others have fewer judged rollouts"


def facts_of(result: EvaluationResult) -> Iterator[Fact]:
    """The decision, averages, spending, failures, faults of the simulated user, explanations."""
    if result.decision is not None:
        yield "decision", str(result.decision)
    yield from origin_facts(result)
    yield from _failures(result)
    yield from warnings_of(result)
    yield from _unjudged(result)
    yield from _rules(result)
    faults = result.user_faults
    if faults.faulty:
        where = f"{faults.faulty} of {count(faults.simulated, 'rollout')}"
        yield "user faults", f"the simulated user misbehaved in {where}: {tallied(faults.kinds)}"
    if result.explanations is not None:
        yield from explanation_facts(result.explanations)
    if result.outcomes:
        yield from _averages(result)
    yield from _spending(result)


def origin_facts(result: EvaluationResult) -> Iterator[Fact]:
    """The rollout that branches continue from, its end, and the number of branches that passed."""
    origin = origin_of(result.configuration.get("branch_of"))
    if origin is None:
        return
    found = origin.outcome(result.log_path.parent)
    name = origin.evaluation if found is None else f"{origin.evaluation} {found.row_id}#{found.index + 1}"
    end = "it is gone" if found is None else found.verdict
    yield "origin", f"{name} at step {origin.step}: {end}"
    first = result.pass_power.get(1)
    if first is not None and first.intervals.these_tasks is not None:
        rate = f"{score(first.value)} {bracketed(first.intervals.these_tasks)}"
        yield "", f"its branches: {result.passed} of {result.n_scored} passed, {rate}"
    if origin.tool_result is not None:
        yield "", f"with another result of its tool call: {one_line(origin.tool_result, LONGEST_STRATEGY)}"


def warnings_of(result: EvaluationResult) -> Iterator[Fact]:
    """Reasons why the numbers may mislead, each with an instance or a remedy."""
    yield from (("warning", fault.text) for fault in result.shared_faults)
    for reasons, ending in PASSED_ANYWAY.items():
        broken = [one for one in result.outcomes if one.success and one.stop_reason in reasons]
        if broken:
            yield "warning", f"{count(len(broken), 'rollout')} passed although {ending}"
            yield "", _instance(broken[0], one_line(broken[0].stop_detail or broken[0].stop_reason))
    odd = [one for one in result.outcomes if not 0 <= round(one.reward or 0.0, 6) <= 1]
    if odd:
        yield "warning", f"{count(len(odd), 'reward')} above 1 or below 0; 1 or more counts as passed"
        yield "", _instance(odd[0], f"{odd[0].reward:g}")
    with suppress(StorageError):  # shared without its trajectories
        for fault, number in count_answer_faults(result.log_path).items():
            if fault != "cut_off":  # stands beside the tokens
                had = f"{number} of {count(len(result.outcomes), 'rollout')} had"
                yield "warning", f"{had} {REMEDIES.get(fault, fault)}"
    unpriced = sum(usage.unpriced_calls for usage in result.usage.values())
    if unpriced and result.configuration.get("max_cost") is not None:
        told = any(usage.tokens for usage in result.usage.values() if usage.unpriced_calls)
        also = "--max-tokens does" if told else "and no tokens are known for --max-tokens"
        yield "warning", f"--max-cost does not count {count(unpriced, 'unpriced call')}; {also}"


def _averages(result: EvaluationResult) -> Iterator[Fact]:
    means, first = result.averages, result.pass_power.get(1)
    if means.reward is not None and (first is None or means.reward.value != first.value):
        yield "reward", estimate(means.reward)
    if means.metrics:
        yield "metrics", ", ".join(f"{one_line(name)} {value:.3f}" for name, value in means.metrics.items())
    within = result.success_within_turns
    turn = f", success in turn {means.turn_of_success:.1f}" if len(within) > 1 else ""
    yield "rollout", f"{means.steps:.1f} steps, {means.turns:.1f} turns{turn}"
    if len(within) > 1:
        shown = [k for k in within if k <= FIRST_TURNS and k < max(within)]
        parts = [f"within {count(k, 'turn')} {within[k]:.2f}" for k in shown]
        yield "success", ", ".join([*parts, f"all within {max(within)}"])
    spread = (f"{percent}% within {duration(value)}" for percent, value in means.seconds.items())
    yield "time", ", ".join(spread)
    if means.model_call_seconds is not None:
        yield "", f"{duration(means.model_call_seconds)} for a model call"
    if means.waiting is not None and means.waiting >= NOTABLE_WAITING:
        share, waited = f"{100 * means.waiting:.0f}%", duration(means.model_call_waited_seconds)
        yield "waiting", f"{share} of the time: limits delayed a model call by {waited}"


def cost_line(result: EvaluationResult) -> str | None:
    """The cost of all roles and their tokens in one line; None if no model was asked."""
    asked = {role: usage for role, usage in result.usage.items() if usage.calls}
    if not asked:
        return None
    total = total_usage(asked.values())
    cost, several = money(total), len(asked) > 1 and total.unpriced_calls < total.calls
    cost += f" ({', '.join(f'{role} {money(usage)}' for role, usage in asked.items())})" if several else ""
    cut = sum(_cut_answers(result).values())
    note = f", {count(cut, 'answer')} cut at the token limit" if cut else ""
    note += f", {_reused(total)}" if total.reused_calls else ""
    used = f"{tokens(total.input_tokens)} tokens in, {tokens(total.output_tokens)} out"
    return f"{cost}, {count(total.calls, 'model call')}, {used}{note}"


def _reused(usage: Usage) -> str:
    priced = usage.unpriced_calls < usage.calls
    saved = f": {dollars(usage.reused_cost)} of it not paid again" if priced else ", not paid again"
    return f"{count(usage.reused_calls, 'answer')} from the cache{saved}"


def _cut_answers(result: EvaluationResult) -> dict[str, int]:
    with suppress(StorageError):  # shared without its trajectories
        return count_cut_answers(result.log_path)
    return {}


def _spending(result: EvaluationResult) -> Iterator[Fact]:
    asked = {role: usage for role, usage in result.usage.items() if usage.calls}
    total = f" (together {money(total_usage(asked.values()))})" if len(asked) > 1 else ""
    cut = _cut_answers(result)
    for role, usage in asked.items():
        cached = f" ({tokens(usage.cached_tokens)} cached)" if usage.cached_tokens else ""
        thought = f" ({tokens(usage.reasoning_tokens)} reasoning)" if usage.reasoning_tokens else ""
        last = total if role == next(reversed(asked)) else ""
        yield role, f"{money(usage)}, {count(usage.calls, 'model call')}{last}"
        written = tokens(usage.output_tokens)
        yield "", f"{tokens(usage.input_tokens)} tokens in{cached}, {written} out{thought}"
        if cut.get(role):
            remedy = REMEDIES["cut_off"].removeprefix("answers")
            option = "--user-model-arg" if role == "user" else "--model-arg"
            yield "", f"{count(cut[role], 'answer')}{remedy.replace('--model-arg', option)}"
        if usage.reused_calls:
            yield "", _reused(usage)
    lost = result.broken_off
    if lost.rollouts:
        used = total_usage(lost.usage.values())
        attempts = f"{count(used.calls, 'model call')} of {count(lost.rollouts, 'aborted attempt')}"
        yield "aborted", f"{money(used)} in addition, {attempts}"


def _failures(result: EvaluationResult) -> Iterator[Fact]:
    if result.failures:
        yield "failures", shares(result.failures)
        if own := sum(one.stop_reason == "agent_error" for one in result.outcomes):
            yield "", f"{own} of {count(len(result.outcomes), 'rollout')} ended by the agent itself"
        for reasons in ENDED_EARLY:
            early = (one for one in result.outcomes if one.failure and one.stop_reason in reasons)
            for one in islice(early, 1):
                yield "", _instance(one, one_line(one.stop_detail or one.trouble))


def _unjudged(result: EvaluationResult) -> Iterator[Fact]:
    if not result.unjudged:
        return
    counted = "counted as failures" if result.configuration["errors_as_failures"] else "left out of Pass^k"
    yield "not judged", f"{tallied(result.unjudged)} ({counted})"
    example = next(outcome for outcome in result.outcomes if not outcome.scored)
    yield "", _instance(example, example.trouble)
    if result.status not in ("budget", "running"):  # which need a larger budget, or just time
        yield "", f"retry: {command(result, 'agent-eval', '--resume', result.eval_id)}"
    if REWARD_ERROR in result.unjudged:
        judging = command(result, "rescore", result.eval_id, "--eval-id", f"{result.eval_id}-judged")
        yield "", f"judge with another reward: {judging}"


def _rules(result: EvaluationResult) -> Iterator[Fact]:
    broken = {name: number for name, number in result.broken_rules.items() if number}
    kept = [name for name in result.broken_rules if name not in broken]
    checked = sum(outcome.violations is not None for outcome in result.outcomes)
    for at, (name, number) in enumerate(broken.items()):
        first = next(one for one in result.outcomes if name in one.broken_rules)
        where = f"{number} of {count(checked, 'rollout')}, first {first.row_id} #{first.index + 1}"
        yield "" if at else "rules", f"{name}: broken in {where}"
    if broken:
        powers = result.passes_by_rules.pass_power
        shown = [f"Pass^{k} {score(powers[k].value)}" for k in LEADERBOARD_KS if k in powers]
        yield "", f"passed and all kept: {', '.join(shown)}"
    if kept:
        yield "" if broken else "rules", f"never broken: {', '.join(kept)}"


def explanation_facts(explained: Explanations) -> Iterator[Fact]:
    """Report the authors of faults, and missing explanations."""
    yield "explanations", f"{len(explained.made)} by {explained.model}, {money(explained.usage)}"
    if explained.authors:
        yield "", f"at fault: {shares(explained.authors)}"
    for author in explained.authors:
        yield "", f"{author}: {shares(explained.faults(author))}"
    problems = [one.problem or "" for one in explained.made if one.author is None]
    if problems:
        first = one_line(problems[0], LONGEST_PROBLEM)
        yield "", f"{count(len(problems), 'failure')} not explained, the first: {first}"
    if explained.missing:
        why = f": {one_line(explained.reason)}" if explained.reason else ""
        yield "", f"{explained.missing} missing{why}; reward-kit explain makes the rest"


def command(result: EvaluationResult, *words: str) -> str:
    """A command on the evaluation, as a person types it."""
    place = str(from_here(result.folder))
    folder = [] if place == DEFAULTS["output_dir"] else ["-o", place]
    return " ".join(map(_quoted, ["reward-kit", *words, *folder]))


def _quoted(word: str) -> str:
    """A word for a shell, in double quotes if these are enough."""
    quoted = shlex.quote(word)
    return f'"{word}"' if quoted != word and re.fullmatch(r"[\w .,:#/+=@-]+", word) else quoted


def _instance(outcome: Outcome, what: str) -> str:
    return f"for instance {outcome.row_id} #{outcome.index + 1}: {what}"


def failed_rollout_facts(result: EvaluationResult, outcome: Outcome) -> Iterator[Fact]:
    """A failed rollout: class and step, expected and made call, a difference in the data, a judgement."""
    where = "" if outcome.failure_step is None else f" in step {outcome.failure_step}"
    trouble, details = one_line(outcome.trouble, LONGEST_PROBLEM), list(failure_details(result, outcome))
    if details:  # with the missing call
        trouble = trouble.partition("; missing ")[0]
    yield "failed", f"{outcome.row_id} #{outcome.index + 1}: {outcome.failure}{where}: {trouble}"
    yield from ((f"  {name}", text) for name, text in details)


def failure_details(result: EvaluationResult, outcome: Outcome) -> Iterator[Fact]:
    """Expected and made call, a difference in the data, and a judgement of a failed rollout."""
    record = result.record_or_none(outcome)  # without it the outcome says enough
    facts = list(failure_facts((record and record.failure) or {}))
    data = [text for name, text in facts if name == "data"]
    yield from ((name, one_line(text, LONGEST_PROBLEM)) for name, text in facts if name != "data")
    if data:
        more = f" (and {len(data) - 1} more)" if len(data) > 1 else ""
        yield "data", one_line(data[0], LONGEST_PROBLEM) + more
    for one in result.explanations.usable if result.explanations is not None else ():
        if one.rollout == outcome.id:
            yield "judged", f"{one.author}, {one.fault}: {one_line(one.sentence or '')}"
