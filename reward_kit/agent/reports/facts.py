"""What is known of an evaluation as a whole, fact by fact: name and text."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from reward_kit.agent.evaluation_config import DEFAULTS
from reward_kit.agent.metrics import LEADERBOARD_KS, mean
from reward_kit.agent.outcome import REWARD_ERROR, total_usage
from reward_kit.agent.reports.failed_rollouts import explanation_facts, user_fault_facts
from reward_kit.agent.reports.leaderboard import strategy
from reward_kit.agent.reports.wording import (
    NOTABLE_WAITING,
    count,
    decimal,
    dollars,
    duration,
    estimate,
    mean_money,
    money,
    one_line,
    shares,
    tallied,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from reward_kit.agent.outcome import RolloutOutcome
    from reward_kit.agent.reports.failed_rollouts import Fact
    from reward_kit.agent.results import EvaluationResult, RowResult

ENDED_EARLY = (("agent_error",), ("timeout", "budget"))
"""Stop reasons whose failures get an example, one for each group."""

MEANS = ("reward", "steps", "time", "cost")
"""Columns of rows that are means over their rollouts."""

FIRST_TURNS = 4
"""Success is told for so many turns, and for the last in which there was one."""


def title_line(result: EvaluationResult) -> str:
    """Agent, model, how many passed, and whether the run came to its end."""
    counted = sum(row.n for row in result.rows)
    noun = "rollout" if result.configuration.get("errors_as_failures") else "judged rollout"
    passed = sum(row.c for row in result.rows)
    return (
        f"{strategy(result)}: {passed} of {count(counted, noun)} passed, "
        f"{count(len(result.rows), 'row')}, {duration(result.seconds)}{_ending(result)}"
    )


def _ending(result: EvaluationResult) -> str:
    """In brackets, why there is no more; nothing where the run came to its end."""
    if result.status == "complete":
        return ""
    reason = one_line(result.reason or "")
    return f" (still running, {reason})" if result.status == "running" else f" ({result.status}: {reason})"


def row_cells(row: RowResult) -> dict[str, str]:
    """Heading to text, of the columns with numbers."""
    steps = mean([outcome.steps for outcome in row.outcomes])
    return {
        "passed": f"{row.c}/{row.n}",
        "reward": "-" if row.reward is None else decimal(row.reward, 2),
        "steps": "-" if steps is None else f"{steps:.1f}",
        "time": duration(mean([outcome.seconds for outcome in row.outcomes])),
        "cost": mean_money(
            total_usage(usage for outcome in row.outcomes for usage in outcome.usage.values()),
            len(row.outcomes),
        ),
    }


def means_line(rows: Sequence[RowResult], shown: Collection[str] = MEANS) -> str | None:
    """What the numbers in the ``shown`` columns of rows are; None where that makes no difference."""
    if all(len(row.outcomes) <= 1 for row in rows):
        return None
    return f"{', '.join(name for name in MEANS if name in shown)}: means of a row's rollouts"


def what_went_wrong(row: RowResult) -> str:
    """Failures by class and rollouts without a verdict, and how many are not run."""
    missing = row.planned - len(row.outcomes)
    parts = [tallied(row.failures + row.unjudged), f"{missing} not run" if missing else ""]
    return ", ".join(filter(None, parts))


def score_lines(result: EvaluationResult) -> Iterator[str]:
    """What the score is, where it is another number than Pass^1, and which rows a k leaves out."""
    last = max((k for k in result.pass_power if k in LEADERBOARD_KS), default=1)
    if last > 1:
        yield f"score: the mean of Pass^1 to Pass^{last}"
    yield from left_out_lines(result)


def left_out_lines(result: EvaluationResult) -> Iterator[str]:
    """Say it when a k is a mean over fewer rows than there are."""
    for k, one in result.pass_power.items():
        if one.left_out and k in LEADERBOARD_KS:
            yield f"k={k}: {count(one.left_out, 'row')} with fewer judged rollouts left out"


def facts_of(result: EvaluationResult) -> Iterator[Fact]:
    """Averages, cost and what went wrong; a fact without a name goes on with the one before."""
    yield from _averages(result)
    yield from _spending(result)
    yield from _troubles(result)
    yield from user_fault_facts(result)
    yield from explanation_facts(result)


def _averages(result: EvaluationResult) -> Iterator[Fact]:
    means = result.averages
    if not result.outcomes:
        return
    yield "reward", estimate(means.reward)
    highest = max((outcome.reward or 0.0 for outcome in result.outcomes), default=0.0)
    if round(highest, 6) > 1:
        yield "", f"up to {highest:g}: whatever is 1 or more counts as passed"
    yield from (("", f"{one_line(name)} {decimal(value)}") for name, value in means.metrics.items())
    turn = "" if means.turn_of_success is None else f", success in turn {means.turn_of_success:.1f}"
    yield "rollout", f"{means.steps:.1f} steps, {means.turns:.1f} turns{turn}"
    within = result.success_within_turns
    if within:
        yield "success", ", ".join(f"within {count(k, 'turn')} {within[k]:.2f}" for k in _some_of(within))
    spread = (f"{percent}% within {duration(value)}" for percent, value in means.seconds.items())
    yield "time", ", ".join(spread)
    if means.model_call_seconds is not None:
        yield "", f"{duration(means.model_call_seconds)} for a model call"
    if means.waiting is not None and means.waiting >= NOTABLE_WAITING:
        waited = duration(means.model_call_waited_seconds)
        yield (
            "waiting",
            f"{100 * means.waiting:.0f}% of the time: {waited} until limits let a model call through",
        )


def _some_of(within: Mapping[int, float]) -> list[int]:
    """The first turns, and the last one."""
    last = max(within)
    return [k for k in within if k <= FIRST_TURNS or k == last]


def _spending(result: EvaluationResult) -> Iterator[Fact]:
    asked = {role: usage for role, usage in result.usage.items() if usage.calls}
    total = f" (together {money(total_usage(asked.values()))})" if len(asked) > 1 else ""
    for role, usage in asked.items():
        cached = f" ({tokens(usage.cached_tokens)} cached)" if usage.cached_tokens else ""
        thought = f" ({tokens(usage.reasoning_tokens)} reasoning)" if usage.reasoning_tokens else ""
        read, written = tokens(usage.input_tokens), tokens(usage.output_tokens)
        last = total if role == next(reversed(asked)) else ""
        yield role, f"{money(usage)}, {count(usage.calls, 'model call')}{last}"
        yield "", f"{read} tokens in{cached}, {written} out{thought}"
        if usage.reused_calls:
            is_priced = usage.unpriced_calls < usage.calls
            saved = (
                f": {dollars(usage.reused_cost)} of it not paid again" if is_priced else ", not paid again"
            )
            yield "", f"{count(usage.reused_calls, 'answer')} from the cache{saved}"
    lost = result.broken_off
    if lost.rollouts:
        used = total_usage(lost.usage.values())
        calls = f"{count(used.calls, 'model call')} of {count(lost.rollouts, 'rollout')}"
        yield "broken off", f"{money(used)} on top, {calls} that came to no end"
    unpriced = sum(usage.unpriced_calls for usage in asked.values())
    if unpriced and result.configuration.get("max_cost") is not None:
        yield "beware", f"--max-cost does not see {count(unpriced, 'unpriced call')}; --max-tokens does"


def _troubles(result: EvaluationResult) -> Iterator[Fact]:
    if result.failures:
        yield "failures", shares(result.failures)
        for reasons in ENDED_EARLY:
            ended = (each for each in result.outcomes if each.failure and each.stop_reason in reasons)
            example = next(ended, None)
            if example is not None:
                yield "", _instance(example, one_line(example.stop_detail or example.trouble))
    broken = [each for each in result.outcomes if each.success and each.stop_reason == "agent_error"]
    if broken:
        yield "beware", f"{count(len(broken), 'rollout')} passed although the agent broke off"
        yield "", _instance(broken[0], one_line(broken[0].stop_detail or ""))
    if not result.unjudged:
        return
    counted = "counted as failures" if result.configuration["errors_as_failures"] else "left out of Pass^k"
    yield "not judged", f"{tallied(result.unjudged)} ({counted})"
    example = next(outcome for outcome in result.outcomes if not outcome.judged)
    yield "", _instance(example, example.trouble)
    if result.status not in ("budget", "running"):  # a larger one, told by the command line; or just wait
        yield "", f"tried again by: {_command(result, 'agent-eval', '--resume', result.eval_id)}"
    if REWARD_ERROR in result.unjudged:
        judging = _command(result, "rescore", result.eval_id, "--eval-id", f"{result.eval_id}-judged")
        yield "", f"with another reward: {judging}"


def _command(result: EvaluationResult, *words: str) -> str:
    """A command on the evaluation, as a person types it."""
    command = ["reward-kit", *words]
    output_dir = result.configuration.get("output_dir", DEFAULTS["output_dir"])
    if output_dir != DEFAULTS["output_dir"]:
        command += ["--output-dir", str(output_dir)]
    return shlex.join(command)


def _instance(outcome: RolloutOutcome, what: str) -> str:
    return f"for instance {outcome.row_id} #{outcome.index + 1}: {what}"
