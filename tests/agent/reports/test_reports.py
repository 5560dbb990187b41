"""The printed report, the progress, the transcript and the JSON report."""

from __future__ import annotations

import io
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle

from reward_kit.agent import EvaluationResult, agent_eval
from reward_kit.agent.after.explainer import Explanation, Explanations
from reward_kit.agent.base.types import Usage
from reward_kit.agent.evaluation.progress import (
    LiveProgress,
    PlainProgress,
    Tally,
    outcome_line,
    status_line,
)
from reward_kit.agent.rollout.outcome import Outcome, total_usage
from reward_kit.agent.scoring.metrics import RowResult, row_result
from reward_kit.agent.scoring.numbers import duration, money, tokens
from reward_kit.agent.store.transcript import transcript

PRICED = Usage(
    calls=9, input_tokens=12000, cached_tokens=3000, output_tokens=900, reasoning_tokens=100, cost=0.0123
)
UNPRICED = Usage(calls=4, input_tokens=2000, output_tokens=300, unpriced_calls=4)


def outcome(row_id: str = "row", index: int = 0, reward: float | None = 1.0, **more: Any) -> Outcome:
    given: dict[str, Any] = {
        **dict.fromkeys(("stop_detail", "error", "failure", "failure_detail")),
        "id": f"{row_id}{index}",
        "row_id": row_id,
        "index": index,
        "reward": reward,
        "final": True,
        "attempt": 0,
        "seed": 1,
        "steps": 8,
        "turns": 4,
        "started": 0.0,
        "seconds": 10.0,
        "stop_reason": "user_stop",
        "model_seconds": 6.5,
        "timed_calls": 13,
        "file": "x.json",
        "turn_of_success": 3 if reward == 1.0 else None,
        "usage": {"agent": PRICED, "user": UNPRICED},
        **more,
    }
    return Outcome(**given)


def failed(row_id: str = "row", index: int = 0, kind: str = "wrong_tool", **more: Any) -> Outcome:
    return outcome(row_id, index, 0.0, failure=kind, failure_detail="took another", **more)


def unjudged(row_id: str = "row", index: int = 0) -> Outcome:
    stop = "infrastructure_error"
    return outcome(row_id, index, None, stop_reason=stop, stop_detail="cannot connect [to] it", failure=stop)


def row(planned: int, *outcomes: Outcome) -> RowResult:
    return row_result(outcomes[0].row_id if outcomes else "row", planned, outcomes)


def result_of(*rows: RowResult, options: dict[str, Any] | None = None, **more: Any) -> EvaluationResult:
    configuration = {"agent": "tool-calling", "model": "openai/gpt-4o-mini", "errors_as_failures": False}
    usages = [one.usage for row in rows for one in row.outcomes]
    given: dict[str, Any] = {
        "eval_id": "e1",
        "status": "complete",
        "reason": None,
        "configuration": {**configuration, **(options or {})},
        "versions": {},
        "rows": rows,
        "usage": {role: total_usage(one.get(role, Usage()) for one in usages) for role in ("agent", "user")},
        "seconds": 83.4,
        "log_path": Path("runs/evals/e1.db"),
        **more,
    }
    return EvaluationResult(**given)


def printed(result: EvaluationResult, width: int = 80, *, whole: bool = True) -> str:
    text = result.report(width, whole=whole)
    assert [line for line in text.splitlines() if len(line) > width] == []
    return text


def words(result: EvaluationResult, width: int = 80, *, whole: bool = True) -> str:
    return " ".join(printed(result, width, whole=whole).split())


def mixed() -> EvaluationResult:
    return result_of(
        row(4, outcome("first"), outcome("first", 1), failed("first", 2), failed("first", 3)),
        row(4, *(outcome("second", n) for n in range(3)), unjudged("second", 3)),
    )


def test_columns_without_room_are_not_explained() -> None:
    kinds = ("wrong_arguments", "partially_completed", "unintended_action")
    result = result_of(row(3, *(failed("first", n, kind) for n, kind in enumerate(kinds))))
    lines = printed(result).splitlines()
    assert lines[2].split() == ["row", "passed", "what", "went", "wrong"]
    assert lines[4] == ""
    assert "(steps, time, cost: means of a row's rollouts)" in printed(result, 120)


def test_the_whole_report_has_rows_facts_both_intervals_and_commands() -> None:
    text = words(mixed())
    for part in (
        "tool-calling (openai/gpt-4o-mini): 5 of 7 judged rollouts passed, 2 rows, 1:23",
        "first 2/4 8.0 10.0 s $0.0123 + unpriced wrong_tool 2",
        "(steps, time, cost: means of a row's rollouts)",
        "second 3/3 8.0",
        "k Pass^k 95 % these tasks 95 % tasks like these rows Pass@k",
        "1 0.750 0.379-0.955 0.241-0.982 2 0.750",
        "4 0.000 0.000-0.909 - 1 1.000",
        "the mean of Pass^1 to Pass^4",
        "failures wrong_tool 2",
        "not judged infrastructure_error 1 (left out of Pass^k)",
        "for instance second #4: cannot connect [to] it",
        "retry: reward-kit agent-eval --resume e1",
        "agent $0.0984, 72 model calls",
        "96.0k tokens in (24.0k cached), 7.2k out (800 reasoning)",
        "user unpriced, 32 model calls (together $0.0984 + 32 unpriced calls)",
        "50% within 10.0 s",
        "success in turn 3.0",
        "within 1 turn 0.00, within 2 turns 0.00, all within 3",
        "| tool-calling (openai/gpt-4o-mini) | 0.750 |",
        'read it reward-kit show "e1 first#3"',
        "browse reward-kit view e1",
    ):
        assert part in text
    assert "--max-cost" not in text


def test_the_screen_at_the_end_has_the_worst_rows_the_scores_and_commands() -> None:
    text = words(mixed(), whole=False)
    for part in (
        "tool-calling (openai/gpt-4o-mini): 5 of 7 judged rollouts passed, 2 rows, 1:23",
        "failed passed first wrong step first#3 2/4 wrong_tool: took another",
        "second#4 3/3 not judged, infrastructure_error: cannot connect [to] it",
        "failures wrong_tool 2 (100%)",
        "not judged infrastructure_error 1 (left out of Pass^k)",
        "retry reward-kit agent-eval --resume e1",
        "cost $0.0984 + 32 unpriced calls (agent $0.0984, user unpriced), 104 model calls, 112.0k tokens in",
        "Pass^1 Pass^2 Pass^3 Pass^4 0.750",
        "95 % for tasks like these 0.241-0.982",
        "rows with enough rollouts 2 of 2 2 of 2 2 of 2 1 of 2",
        "| tool-calling (openai/gpt-4o-mini) | 0.750 |",
    ):
        assert part in text
    assert text.endswith('show "e1 first#3" all of it reward-kit show e1 browse reward-kit view e1')
    passed = printed(result_of(row(2, outcome(), outcome(index=1))), whole=False).splitlines()
    assert len(passed) < 18
    assert passed[-1] == "browse        reward-kit view e1"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_the_screen_is_never_longer_or_wider_than_a_terminal(width: int) -> None:
    rows = [row(1, failed(f"a.row.with.a.long.name.{number}", failure_step=3)) for number in range(60)]
    late = [row(2, outcome(f"late{n}", stop_reason="max_steps"), unjudged(f"late{n}", 1)) for n in range(9)]
    options = {"max_cost": 1.0, "agent": "an.agent.of.my:own" * 4, "output_dir": "elsewhere"}
    result = result_of(*rows, *late, row(1, outcome("odd", reward=2.0)), options=options)
    assert len(printed(result, width, whole=False).splitlines()) < 24
    printed(result, width)


def test_lines_of_the_screen_that_are_cut_say_so() -> None:
    explanations = Explanations("openai/judge", [], 1, "the model does not answer " * 9)
    result = result_of(row(2, failed(), outcome(index=1)), results={"explanations": explanations})
    lines = printed(result, whole=False).splitlines()
    (start,) = (number for number, line in enumerate(lines) if "1 missing: the model" in line)
    assert not lines[start].endswith("…")
    assert lines[start + 1].endswith(" …")
    assert "…" not in printed(result)
    assert result.report(5)  # of a window that is too narrow


_BROKE = {"stop_reason": "agent_error", "stop_detail": "agent.py:3: KeyError: \x1b[31m'x'\x1b[0m\a\nmore"}
_SLOW = {"stop_reason": "max_steps"}
_LATE = {"stop_reason": "timeout", "stop_detail": "not over after 3 s"}
_FAULTY = {"user_faults": ["stopped_early", "stopped_early"]}


WAITED = row(4, *(outcome(index=index, waited_seconds=float(index)) for index in range(4)))
BROKEN = row(2, outcome(), outcome("row", 1, None, error="reward.py:6: raised KeyError: 'x'"))


@pytest.mark.parametrize(
    ("one", "more", "text"),
    [
        (WAITED, {}, "waiting 15% of the time: limits delayed a model call by 0.12 s"),
        (row(1, failed("slow", 0, "other", **_LATE)), {}, "instance slow #1: not over after 3 s"),
        (
            row(1, failed("a", 0, "agent_error", **_BROKE)),
            {},
            "instance a #1: agent.py:3: KeyError: 'x' more",
        ),
        (row(2, outcome(**_BROKE)), {}, "warning 1 rollout passed although the agent failed"),
        (row(2, outcome(**_SLOW)), {}, "warning 1 rollout passed although they ran out of steps"),
        (row(2, outcome(**_LATE)), {}, "warning 1 rollout passed although they ran out of time or budget"),
        (row(1, failed("a", 0, "agent_error", **_BROKE)), {}, "1 of 1 rollout ended by the agent itself"),
        (
            row(2, outcome(reward=1.0), outcome("row", 1, reward=40.0)),
            {},
            "warning 1 reward above 1 or below 0; 1 or more counts as passed for instance row #2: 40",
        ),
        (row(2, outcome(reward=-1.0)), {}, "warning 1 reward above 1 or below 0;"),
        (BROKEN, {}, "judge with another reward: reward-kit rescore e1 --eval-id e1-judged"),
        (row(1, unjudged()), {}, "0 of 0 judged rollouts passed"),
        (row(2), {"status": "interrupted", "reason": "by a signal"}, "2 not run"),
        (row(1, outcome()), {"options": {"errors_as_failures": True}}, "1 of 1 rollout passed"),
        (
            row(1, outcome()),
            {"options": {"max_cost": 5.0}},
            "warning --max-cost does not count 4 unpriced calls",
        ),
        (row(1, failed(**_FAULTY)), {}, "the simulated user misbehaved in 1 of 1 rollout: stopped_early 1"),
    ],
)
def test_facts_are_shown_only_if_they_matter(one: RowResult, more: dict[str, Any], text: str) -> None:
    assert text in words(result_of(one, **more), 120)
    assert text not in words(result_of(row(1, outcome(user_faults=[]))), 120)


def test_hundreds_of_rows_are_folded() -> None:
    rows = [row(1, outcome(f"row{number:03}")) for number in range(400)]
    rows += [row(1, failed(f"bad{number}")) for number in range(60)]
    text = printed(result_of(*rows))
    assert "400 rows passed every rollout" in text
    assert all(f"bad{number} " in text for number in range(60))
    assert "row000" not in text


@pytest.mark.parametrize("width", [60, 200])
def test_long_names_fit_any_width(width: int) -> None:
    assert "wrong_tool" in printed(result_of(row(1, failed("a.very.long.row.id." * 5))), width)


def test_a_narrow_terminal_leaves_out_columns() -> None:
    result = result_of(row(2, failed("flight.1", kind="wrong_arguments"), outcome("flight.1", 1)))
    headings = [
        next(line.split() for line in printed(result, width).splitlines() if line.startswith("row "))
        for width in (200, 60)
    ]
    assert headings[0] == ["row", "passed", "steps", "time", "cost", "what", "went", "wrong"]
    assert headings[1] == ["row", "passed", "steps", "time", "what", "went", "wrong"]


def test_explanations_are_counted_with_their_cost() -> None:
    def explained(index: int, author: Any, fault: str | None) -> Explanation:
        said = ("It did [bold]this[/bold].", None) if author else (None, "no JSON")
        usage = Usage(calls=1, cost=0.01)
        return Explanation(f"a{index}", "a", index, "openai/judge", "v1", author, fault, *said, usage, 1.0)

    made = [explained(0, "agent", "wrong_tool"), explained(1, "user", "user_error"), explained(2, None, None)]
    rows = row(4, *(failed("a", number) for number in range(4)))
    result = result_of(rows, results={"explanations": Explanations("openai/judge", made, 1, "it is down")})
    text = words(result)
    for part in (
        "explanations 3 by openai/judge, $0.0300",
        "at fault: agent 1 (50%), user 1 (50%)",
        "agent: wrong_tool 1 (100%)",
        "1 failure not explained, the first: no JSON",
        "1 missing: it is down; reward-kit explain makes the rest",
        "judged agent, wrong_tool: It did [bold]this[/bold].",
    ):
        assert part in text
    assert result.complete
    asked = {**result.configuration, "explain": "openai/judge"}
    assert not replace(result, configuration=asked).complete


def tally_of(*outcomes: Outcome, planned: int = 10) -> Tally:
    tally = Tally(eval_id="e1", planned=planned)
    for one in outcomes:
        tally.add(one)
        for usage in one.usage.values():
            tally.usage.add(usage)
    return tally


def test_the_status_line_counts() -> None:
    tally = tally_of(outcome("a"), failed("a", 1), outcome("b"), unjudged("b", 1))
    line = status_line(tally)
    assert line.startswith("4/10  Pass^1 0.750  1 not judged  $0.0492 + 16 unpriced calls  60.8k tokens  ")
    assert line.endswith("left")
    assert status_line(Tally(eval_id="e", planned=3)) == "0/3  Pass^1 -"
    repeated = tally_of(outcome(reward=None, final=False, stop_reason="user_error"), outcome())
    assert (repeated.done, repeated.unjudged, repeated.pass_1, repeated.usage.calls) == (1, 0, 1.0, 26)


def test_plain_progress_writes_few_lines_and_every_unjudged_rollout() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream)
    tally = Tally(eval_id="e1", planned=1000)
    progress.started(tally)
    for number in range(1000):
        one = unjudged("a", number) if number == 500 else outcome("a", number)
        tally.add(one)
        progress.ended(one, tally)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "evaluation e1: 1000 rollouts"
    assert "a #501 not judged (infrastructure_error): cannot connect [to] it" in lines
    assert lines[-1].startswith("1000/1000  Pass^1 1.000")
    assert len(lines) < 30


def test_answers_of_slow_models_are_told_before_the_first_rollout_is_over() -> None:
    stream = io.StringIO()
    progress = PlainProgress(stream)
    tally = Tally(eval_id="e1", planned=40)
    progress.started(tally)
    for seconds, answers in ((0, 1), (3, 2), (5, 3), (70, 4), (75, 5)):
        tally.started = time.monotonic() - seconds
        tally.usage = Usage(calls=answers, input_tokens=100, cost=0.5)
        progress.answered(tally)
    assert [line.split("  ")[1] for line in stream.getvalue().splitlines()[1:]] == [
        "none over yet, 2 answers",
        "none over yet, 4 answers",
    ]


def test_the_status_is_as_long_as_the_line_allows() -> None:
    tally = tally_of(outcome("a"), failed("a", 1), unjudged("b", 1))
    for width in (120, 60, 46):
        assert len(status_line(tally, width)) <= width
        assert status_line(tally, width).endswith(" left")


def test_live_progress_shows_the_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    progress = LiveProgress(stream)
    tally = Tally(eval_id="e1", planned=2)
    progress.started(tally)
    for one in (outcome("a"), unjudged("a", 1)):
        tally.add(one)
        progress.ended(one, tally)
    progress.closed(tally)
    assert "2/2  Pass^1 1.000" in stream.getvalue()
    assert "cannot connect [to] it" in stream.getvalue()


def test_one_rollout_in_a_line() -> None:
    assert outcome_line(outcome("a")) == "a #1 passed"
    assert outcome_line(failed("a", 1)) == "a #2 failed (wrong_tool, reward 0): took another"
    again = outcome("a", 2, None, final=False, stop_reason="user_error", stop_detail="said nothing")
    assert outcome_line(again) == "a #3 not judged (user_error), will be retried: said nothing"
    hostile = "\x1b]0;title\x07\x1b[2Jboom\r\n\t\x00" + "x" * 9999
    line = outcome_line(outcome("a", 0, None, error=hostile))
    assert line.startswith("a #1 not judged (reward_error): boom xxx")
    assert line.isprintable()
    assert len(line) < 350


def test_money_says_what_is_unpriced() -> None:
    half = Usage(calls=2, unpriced_calls=1, cost=0.5)
    usages = [
        Usage(),
        Usage(calls=1, cost=0.00004),
        Usage(calls=2, cost=12.345),
        replace(half, unpriced_calls=2),
    ]
    assert [money(usage) for usage in usages] == ["-", "<$0.0001", "$12.35", "unpriced"]
    assert money(half) == "$0.5000 + 1 unpriced call"


def test_tokens_and_durations_are_short() -> None:
    numbers = [999, 1000, 12_345, 999_949, 999_950, 4_500_000]
    assert list(map(tokens, numbers)) == ["999", "1.0k", "12.3k", "999.9k", "1.0M", "4.5M"]
    seconds = (None, 9.994, 12.34, 245, 3723)
    assert list(map(duration, seconds)) == ["-", "9.99 s", "12.3 s", "4:05", "1:02:03"]


def test_a_transcript_tells_the_rollout_in_order(bundle: Bundle) -> None:
    bundle.rows({"actions": GOLD, "n_rollouts": 2})
    result = agent_eval(bundle.dataset, agent="gold")
    text = transcript(result.record(result.outcomes[0]))
    order = [f"{result.eval_id} flight.booking.001#1: passed, reward 1", "USER", "CALL create_booking"]
    order += ["TOOL create_booking (ok", "* bookings #", "inserted (id=", "status: 'reserved' -> 'paid'"]
    order += ["ASSISTANT", "reason: Task completed success", "stopped: agent_done", "agent: gold", "id: "]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)
