"""What a person gets to see: the report, the progress, the leaderboard, one rollout."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from flight_bundle import GOLD, Bundle, flight_bundle

from reward_kit.agent import agent_eval, load_rollout
from reward_kit.agent.averages import averages_of
from reward_kit.agent.calls import ModelCall
from reward_kit.agent.completion import Usage
from reward_kit.agent.explain import Explanation, Explanations
from reward_kit.agent.outcome import RolloutOutcome
from reward_kit.agent.reports.console import print_report, scores_line
from reward_kit.agent.reports.json_report import report_parts
from reward_kit.agent.reports.leaderboard import leaderboard
from reward_kit.agent.reports.progress import LiveProgress, PlainProgress, outcome_line, status_line
from reward_kit.agent.reports.spans import spans_of
from reward_kit.agent.reports.transcript import transcript
from reward_kit.agent.reports.wording import dollars, duration, from_here, money, tokens
from reward_kit.agent.results import EvaluationResult, RowResult, passes_of, row_result, usage_of
from reward_kit.agent.tally import Tally

PRICED = Usage(
    calls=9, input_tokens=12000, cached_tokens=3000, output_tokens=900, reasoning_tokens=100, cost=0.0123
)
UNPRICED = Usage(calls=4, input_tokens=2000, output_tokens=300, unpriced_calls=4)


def outcome(row_id: str = "row", index: int = 0, reward: float | None = 1.0, **more: Any) -> RolloutOutcome:
    given: dict[str, Any] = {
        "id": f"{row_id}{index}",
        "row_id": row_id,
        "index": index,
        "attempt": 0,
        "final": True,
        "seed": 1,
        "reward": reward,
        "stop_reason": "user_stop",
        "stop_detail": None,
        "error": None,
        "failure": None,
        "failure_detail": None,
        "steps": 8,
        "turns": 4,
        "turn_of_success": 3 if reward == 1.0 else None,
        "started": 0.0,
        "seconds": 10.0,
        "model_seconds": 6.5,
        "file": "x.json",
        "usage": {"agent": PRICED, "user": UNPRICED},
        **more,
    }
    return RolloutOutcome(**given)


def failed(row_id: str, index: int, kind: str = "wrong_tool") -> RolloutOutcome:
    return outcome(row_id, index, 0.0, failure=kind, failure_detail="took another")


def unjudged(row_id: str, index: int) -> RolloutOutcome:
    return outcome(
        row_id,
        index,
        None,
        stop_reason="infrastructure_error",
        stop_detail="cannot connect [to] it",
        failure="infrastructure_error",
    )


def result_of(*rows: RowResult, **more: Any) -> EvaluationResult:
    given: dict[str, Any] = {
        "eval_id": "e1",
        "status": "complete",
        "reason": None,
        "configuration": {
            "agent": "tool-calling",
            "model": "openai/gpt-4o-mini",
            "errors_as_failures": False,
        },
        "versions": {},
        "rows": rows,
        "passes": passes_of(rows, seed=1),
        "averages": averages_of(rows, seed=1),
        "usage": usage_of([one for row in rows for one in row.outcomes]),
        "seconds": 83.4,
        "folder": Path("runs"),
        **more,
    }
    return EvaluationResult(**given)


def shown(result: EvaluationResult, width: int = 80) -> str:
    from rich.console import Console

    stream = io.StringIO()
    print_report(result, Console(file=stream, width=width, markup=False, highlight=False))
    text = stream.getvalue()
    paths = ("results ", "log ", "rollouts ")
    assert all(len(line) <= width for line in text.splitlines() if not line.startswith(paths))
    return text


def test_the_report_tells_rows_scores_troubles_and_files() -> None:
    text = shown(
        result_of(
            row_result(
                "first", 4, [outcome("first", 0), outcome("first", 1), *(failed("first", n) for n in (2, 3))]
            ),
            row_result("second", 4, [*(outcome("second", n) for n in range(3)), unjudged("second", 3)]),
        )
    )
    flat = " ".join(text.split())
    assert "tool-calling (openai/gpt-4o-mini): 5 of 7 judged rollouts passed, 2 rows, 1:23" in flat
    assert "first 2/4 0.50 8.0 10.0 s $0.0123 + unpriced wrong_tool 2" in flat
    assert "[reward, steps, time, cost: means of a row's rollouts]" in flat
    assert "second 3/3 1.00" in flat
    assert "1 0.750 [0.500, 1.000] 0.750 [0.500, 1.000]" in flat
    assert "k=4: 1 row with fewer judged rollouts left out" in flat
    assert "failures wrong_tool 2" in flat
    assert "not judged infrastructure_error 1 (left out of Pass^k)" in flat
    assert "for instance second #4: cannot connect [to] it" in flat
    assert "agent $0.0984, 72 model calls" in flat
    assert "96.0k tokens in (24.0k cached), 7.2k out (800 reasoning)" in flat
    assert "user unpriced, 32 model calls (together $0.0984 + 32 unpriced calls)" in flat
    assert "--max-cost" not in flat
    assert "50% within 10.0 s" in flat
    assert "success in turn 3.0" in flat
    assert "results runs/evals/e1.json" in flat
    assert "| tool-calling (openai/gpt-4o-mini) | 0.750 |" in flat


def test_rows_with_more_rollouts_do_not_seem_to_cost_more() -> None:
    priced = {"usage": {"agent": PRICED}}
    rows = [
        row_result("a", 1, [outcome("a", **priced)]),
        row_result("b", 4, [outcome("b", n, **priced) for n in range(4)]),
    ]
    flat = " ".join(shown(result_of(*rows)).split())
    assert "a 1/1 1.00 8.0 10.0 s $0.0123 b 4/4 1.00 8.0 10.0 s $0.0123 [reward, " in flat
    assert "agent $0.0615, 45 model calls" in flat
    assert "means of a row" not in shown(result_of(rows[0]))


def test_the_report_tells_of_waiting_where_it_was_a_notable_part() -> None:
    waited = [outcome(index=index, waited_seconds=float(index)) for index in range(4)]
    result = result_of(row_result("row", 4, waited))
    assert result.averages.waiting == pytest.approx(0.15)
    told = " ".join(shown(result).split())
    assert "waiting 15% of the time: 0.12 s until limits let a model call through" in told
    assert result.to_json()["averages"]["waiting"] == pytest.approx(0.15)
    assert result.to_json()["rows"][0]["waited_seconds"] == 1.5
    hardly = [outcome(waited_seconds=0.4)]
    assert "waiting" not in shown(result_of(row_result("row", 1, hardly)))


def test_calls_that_waited_side_by_side_waited_no_longer_than_their_rollout_took() -> None:
    waited = [outcome(waited_seconds=30.0), outcome(index=1)]
    assert averages_of([row_result("row", 2, waited)], seed=1).waiting == pytest.approx(0.5)


def test_the_report_gives_an_example_of_each_early_end_and_no_trailing_blanks() -> None:
    late = failed("slow", 0, "other")
    late.stop_reason, late.stop_detail = "timeout", "not over after 3 s"
    broke = failed("broken", 0, "agent_error")
    broke.stop_reason, broke.stop_detail = "agent_error", "agent.py:3: KeyError: \x1b[31m'x'\x1b[0m\a\nmore"
    text = shown(result_of(row_result("slow", 1, [late]), row_result("broken", 1, [broke])))
    assert "for instance slow #1: not over after 3 s" in text
    assert "for instance broken #1: agent.py:3: KeyError: 'x' more" in text
    assert [line for line in text.splitlines() if line != line.rstrip()] == []


def test_a_pass_of_an_agent_that_broke_off_is_pointed_out() -> None:
    """Most likely the row asks for nothing, or its gold actions do not work."""
    broke = outcome("empty", 0, stop_reason="agent_error", stop_detail="agent.py:3: KeyError: 'x'")
    text = shown(result_of(row_result("empty", 2, [broke, outcome("empty", 1)])))
    assert "beware" in text
    assert "1 rollout passed although the agent broke off" in text
    assert "for instance empty #1: agent.py:3: KeyError: 'x'" in text
    assert "beware" not in shown(result_of(row_result("only", 1, [outcome("only", 0)])))


def test_rewards_above_one_are_pointed_out() -> None:
    text = " ".join(
        shown(result_of(row_result("a", 2, [outcome("a", 0, 40.0), outcome("a", 1, 0.0)]))).split()
    )
    assert "up to 40: whatever is 1 or more counts as passed" in text
    assert "counts as passed" not in shown(result_of(row_result("a", 1, [outcome("a", 0, 1.0000001)])))


def test_the_score_is_named_where_it_is_another_number_than_pass_1() -> None:
    rows = [row_result("a", 3, [outcome("a", 0), outcome("a", 1), failed("a", 2)])]
    assert "score: the mean of Pass^1 to Pass^3" in shown(result_of(*rows))
    assert "score: the mean" not in shown(result_of(row_result("a", 1, [outcome("a", 0)])))


def test_answers_from_the_cache_without_a_price_are_not_called_free() -> None:
    reused = replace(UNPRICED, reused_calls=4)
    text = shown(result_of(row_result("a", 1, [outcome("a", 0, usage={"agent": reused})])))
    assert "4 answers from the cache, not paid again" in text
    assert "$" not in text


def test_rollouts_whose_reward_failed_can_be_judged_by_another() -> None:
    broken = outcome("a", 1, None, error="reward.py:6: raised KeyError: 'x'")
    text = shown(result_of(row_result("a", 2, [outcome("a", 0), broken])), width=100)
    assert "tried again by: reward-kit agent-eval --resume e1" in text
    assert "with another reward: reward-kit rescore e1 --eval-id e1-judged" in text
    assert "rescore" not in shown(result_of(row_result("a", 1, [unjudged("a", 0)])))


def test_foreign_text_reaches_the_terminal_tamed_and_short() -> None:
    trouble = outcome_line(outcome("a", 0, None, error="\x1b]0;title\x07\x1b[2Jboom\r\n\t\x00" + "x" * 9999))
    assert trouble.startswith("a #1 not judged (reward_error): boom xxx")
    assert trouble.endswith("x...")
    assert trouble.isprintable()
    assert len(trouble) < 350


def test_hundreds_of_rows_stay_readable() -> None:
    rows = [row_result(f"row{number:03}", 1, [outcome(f"row{number:03}")]) for number in range(400)]
    rows += [row_result(f"bad{number}", 1, [failed(f"bad{number}", 0)]) for number in range(60)]
    text = shown(result_of(*rows))
    assert len(text.splitlines()) < 80
    assert "400 rows passed every rollout" in text
    assert "and 20 more rows with rollouts that did not pass" in text
    assert "bad0" in text
    assert "row000" not in text


def test_nothing_judged_is_no_crash_and_no_score() -> None:
    text = shown(result_of(row_result("only", 1, [unjudged("only", 0)])))
    assert "0 of 0 judged rollouts passed" in text
    assert "| tool-calling (openai/gpt-4o-mini) |      - |" in text
    assert "not run" in shown(
        result_of(row_result("only", 2, []), status="interrupted", reason="by a signal")
    )


def test_rollouts_without_a_judgement_that_count_as_failed_are_not_called_judged() -> None:
    result = result_of(row_result("only", 1, [outcome("only")]))
    result.configuration["errors_as_failures"] = True
    assert "1 of 1 rollout passed" in shown(result)


def test_an_unfinished_evaluation_says_so() -> None:
    result = result_of(
        row_result("only", 4, [outcome("only")]), status="budget", reason="0.30 of 0.20 USD are spent"
    )
    assert "(budget: 0.30 of 0.20 USD are spent)" in " ".join(shown(result).split())


def test_a_row_that_failed_and_is_not_finished_says_both() -> None:
    row = row_result("only", 4, [failed("only", 0)])
    text = shown(result_of(row, status="interrupted", reason="by a signal"))
    assert "wrong_tool 1, 3 not run" in " ".join(text.split())


def test_a_limit_of_cost_that_cannot_see_all_calls_is_pointed_out() -> None:
    result = result_of(row_result("only", 1, [outcome("only")]))
    result.configuration["max_cost"] = 5.0
    told = "beware --max-cost does not see 4 unpriced calls; --max-tokens does"
    assert told in " ".join(shown(result).split())


@pytest.mark.parametrize("width", [60, 80, 200])
def test_long_names_fit_any_width(width: int) -> None:
    name = "a.very.long.row.id." * 5
    assert "wrong_tool" in shown(result_of(row_result(name, 1, [failed(name, 0)])), width)


def test_the_leaderboard_puts_the_best_first() -> None:
    worse = result_of(row_result("row", 1, [failed("row", 0)]), configuration={"agent": "a|b", "model": None})
    better = result_of(row_result("row", 2, [outcome("row", 0), outcome("row", 1)]))
    assert leaderboard([worse, better]).splitlines() == [
        "| Strategy | Pass^1 | Pass^2 | Pass^3 | Pass^4 |",
        "| --- | ---: | ---: | ---: | ---: |",
        "| tool-calling (openai/gpt-4o-mini) | 1.000 | 1.000 | - | - |",
        "| a\\|b | 0.000 | - | - | - |",
    ]
    assert (
        scores_line(better)
        == "tool-calling (openai/gpt-4o-mini)  Pass^1 1.000  Pass^2 1.000  Pass^3 -  Pass^4 -"
    )


def tally_of(*outcomes: RolloutOutcome, planned: int = 10) -> Tally:
    tally = Tally(eval_id="e1", planned=planned)
    for one in outcomes:
        tally.add(one)
    return tally


def test_the_status_line_counts_as_it_goes() -> None:
    tally = tally_of(outcome("a", 0), failed("a", 1), outcome("b", 0), unjudged("b", 1))
    assert tally.pass_1 == pytest.approx((0.5 + 1.0) / 2)
    line = status_line(tally)
    assert line.startswith("4/10  Pass^1 0.750  1 not judged  $0.0492 + 16 unpriced calls  60.8k tokens  ")
    assert line.endswith("left")
    assert status_line(Tally(eval_id="e", planned=3)) == "0/3  Pass^1 -"


def test_repeated_attempts_count_for_their_cost_only() -> None:
    tally = tally_of(outcome("a", 0, None, final=False, stop_reason="user_error"), outcome("a", 0))
    assert (tally.done, tally.unjudged, tally.pass_1, tally.usage.calls) == (1, 0, 1.0, 26)


def test_plain_progress_writes_few_lines_and_every_trouble() -> None:
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


def test_live_progress_shows_the_last_state(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    progress = LiveProgress(stream)
    tally = Tally(eval_id="e1", planned=2)
    progress.started(tally)
    for one in (outcome("a", 0), unjudged("a", 1)):
        tally.add(one)
        progress.ended(one, tally)
    progress.closed(tally)
    assert "2/2  Pass^1 1.000" in stream.getvalue()
    assert "cannot connect [to] it" in stream.getvalue()


def test_one_rollout_in_a_line() -> None:
    assert outcome_line(outcome("a", 0)) == "a #1 passed"
    assert outcome_line(failed("a", 1)) == "a #2 failed (wrong_tool, reward 0): took another"
    again = outcome("a", 2, None, final=False, stop_reason="user_error", stop_detail="said nothing")
    assert outcome_line(again) == "a #3 not judged (user_error), will be tried again: said nothing"


@pytest.mark.parametrize(
    ("usage", "words"),
    [
        (Usage(), "-"),
        (Usage(calls=1, cost=0.00004), "<$0.0001"),
        (Usage(calls=2, cost=12.345), "$12.35"),
        (Usage(calls=2, unpriced_calls=2), "unpriced"),
        (Usage(calls=2, unpriced_calls=1, cost=0.5), "$0.5000 + 1 unpriced call"),
    ],
)
def test_money(usage: Usage, words: str) -> None:
    assert money(usage) == words


def test_numbers_in_words() -> None:
    assert [tokens(number) for number in (0, 999, 1000, 12_345, 999_949, 999_950, 4_500_000)] == [
        "0",
        "999",
        "1.0k",
        "12.3k",
        "999.9k",
        "1.0M",
        "4.5M",
    ]
    assert [duration(seconds) for seconds in (None, 0.004, 9.994, 12.34, 59.96, 245, 3723)] == [
        "-",
        "0.00 s",
        "9.99 s",
        "12.3 s",
        "60.0 s",
        "4:05",
        "1:02:03",
    ]
    assert dollars(0.12345) == "$0.1235"


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bundle:
    monkeypatch.chdir(tmp_path)
    made = flight_bundle(tmp_path)
    made.rows({"actions": GOLD, "n_rollouts": 2})
    return made


def test_a_rollout_as_a_person_reads_it(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, agent="gold")
    text = transcript(load_rollout(result.folder / result.outcomes[0].file))
    order = [
        "row flight.booking.001, number 1",
        "USER",
        "CALL create_booking",
        "TOOL create_booking (ok",
        "* insert bookings",
        "CALL pay_booking",
        "* update bookings",
        "ASSISTANT",
        "stopped: agent_done",
        "reward 1: Task completed successfully",
    ]
    positions = [text.index(part) for part in order]
    assert positions == sorted(positions)


def test_a_rollout_whose_model_calls_waited_says_for_how_long(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, agent="gold", n_rollouts=1)
    record = load_rollout(result.folder / result.outcomes[0].file)
    record.seconds = 95.0
    call = ModelCall("agent", 1, 1, "stub/one", "stop", Usage(calls=1), 0.0, 11.0, waited=40.5)
    record.model_calls = [call, replace(call, waited=41.0)]
    assert "took 1:35, of which its model calls waited 1:22 for limits\n" in transcript(record)
    spans = [span for span in spans_of(record, contents=False) if span.name.startswith("chat")]
    assert [(span.started, span.ended) for span in spans] == [
        (40_500_000_000, 51_500_000_000),
        (41_000_000_000, 52_000_000_000),
    ]
    record.model_calls = [replace(call, waited=0.5)]
    assert "took 1:35\n" in transcript(record)


def test_the_json_report_is_one_valid_document_even_with_a_damaged_trajectory(bundle: Bundle) -> None:
    result = agent_eval(bundle.dataset, agent="gold")
    (result.folder / result.outcomes[1].file).write_text("{torn")
    report = json.loads(b"".join(report_parts(result)))
    first, second = report["rows"][0]["rollouts"]
    assert first["trajectory"]["id"] == first["id"]
    assert second["trajectory"] is None
    assert report["score"] == 1.0


def test_the_report_shows_a_failure_of_each_class_with_what_was_expected(bundle: Bundle) -> None:
    (Path("wrong_agent.py")).write_text(
        "class Wrong:\n"
        "    async def respond(self, rollout):\n"
        "        if rollout.index:\n"
        "            return 'No.'\n"
        "        await rollout.call_tool('create_booking', {'flight_id': 9, 'passenger': 'Alice'})\n"
        "        return 'Booked.'\n"
    )
    bundle.rows({"actions": GOLD, "n_rollouts": 3})
    result = agent_eval(bundle.dataset, agent="wrong_agent:Wrong", no_sim_user=True)
    text = shown(result, 200)
    for part in (
        "failures  partially_completed 2 (67%), wrong_arguments 1 (33%)",
        "flight.booking.001 #1: wrong_arguments in step 1: create_booking: flight_id: expected 1, got 9",
        'expected    create_booking({"flight_id": 1, "passenger": "Alice"})',
        'made        create_booking({"flight_id": 9, "passenger": "Alice"})',
        "flight.booking.001 #2: partially_completed in step 1: 0 of 2 changes made",
        f"file        {from_here(result.folder / result.outcomes[0].file)}",
    ):
        assert part in text
    assert "data        bookings #" in text
    log = transcript(load_rollout(result.folder / result.outcomes[0].file))
    assert "first wrong step: 1, in turn 1" in log
    assert 'made: create_booking({"flight_id": 9, "passenger": "Alice"})' in log
    plain = json.loads(result.results_path.read_text())
    assert plain["failure_breakdown"]["wrong_arguments"] == {
        "count": 1,
        "percent": pytest.approx(100 / 3),
    }
    for outcome_of_one in result.outcomes:
        (result.folder / outcome_of_one.file).unlink()
    assert "flight.booking.001 #1: wrong_arguments in step 1" in shown(result, 200)


def test_faults_of_users_and_success_within_turns_have_their_lines() -> None:
    faulty = outcome("a", 1, 0.0, failure="user_error", user_faults=["stopped_early", "stopped_early"])
    rows = [row_result("a", 2, [outcome("a", 0, user_faults=[]), faulty])]
    text = shown(result_of(*rows))
    assert "the simulated user misbehaved in 1 of 2 rollouts" in text
    assert "stopped_early 1" in text
    assert "within 1 turn 0.00, within 2 turns 0.00, within 3 turns 0.50" in text
    assert result_of(*rows).success_within_turns == {1: 0.0, 2: 0.0, 3: 0.5}
    assert "misbehaved" not in shown(result_of(row_result("a", 1, [outcome("a", 0, user_faults=[])])))


def test_tools_that_raised_are_named_with_the_first_time() -> None:
    def faults(calls: int, first: str) -> Any:
        return {"look": {"calls": calls, "first": first}}

    outcomes = [
        outcome("a", 0),
        outcome("a", 1, 0.0, tool_faults=faults(2, "tools.py:14: KeyError: 'x'"), file="a/roll_1.json"),
        outcome("a", 2, tool_faults={**faults(1, "tools.py:9: late"), "book": {"calls": 9, "first": "b"}}),
    ]
    text = shown(result_of(row_result("a", 3, outcomes)), 300)
    first, second = (line for line in text.splitlines() if line.startswith("tools with faults: "))
    assert first.startswith("tools with faults: book (9 calls in 1 rollout), first b in row a, ")
    assert "look (3 calls in 2 rollouts), first tools.py:14: KeyError: 'x' in row a, " in second
    assert second.endswith("a/roll_1.json")
    assert "raised" not in shown(result_of(row_result("a", 1, [outcome("a", 0)])))


def test_of_many_tools_that_raised_the_worst_are_named() -> None:
    faults = {f"tool{number}": {"calls": number, "first": "b"} for number in range(1, 6)}
    text = shown(result_of(row_result("a", 1, [outcome("a", 0, tool_faults=faults)])), 300)
    assert "tool5" in text
    assert "tool2" not in text
    assert "  and 2 more tools" in text


def test_explanations_are_summed_up_with_their_own_cost() -> None:
    def explained(index: int, author: str | None, fault: str | None) -> Explanation:
        return Explanation(
            rollout=f"a{index}",
            row_id="a",
            index=index,
            model="openai/judge",
            prompt="v1",
            author=author,  # type: ignore[arg-type]  # a text in tests
            fault=fault,
            sentence="It did [bold]this[/bold]." if author else None,
            problem=None if author else "no JSON",
            usage=Usage(calls=1, cost=0.01),
            seconds=1.0,
        )

    made = [explained(0, "agent", "wrong_tool"), explained(1, "user", "user_error"), explained(2, None, None)]
    explanations = Explanations("openai/judge", made, 1, "the provider is down", Path("x"))
    result = result_of(
        row_result("a", 4, [failed("a", number) for number in range(4)]), explanations=explanations
    )
    flat = " ".join(shown(result).split())
    assert "explanations 3 by openai/judge, $0.0300" in flat
    assert "at fault: agent 1 (50%), user 1 (50%)" in flat
    assert "agent: wrong_tool 1 (100%)" in flat
    assert "1 failure not explained, the first: no JSON" in flat
    assert "1 missing: the provider is down; --resume e1 makes the rest" in flat
    assert "judged agent, wrong_tool: It did [bold]this[/bold]." in flat
    assert not result.complete
    assert result.to_json()["explanations"]["authors"]["user"]["percent"] == 50.0


def test_explanations_that_a_budget_has_kept_back_need_a_larger_one() -> None:
    explanations = Explanations("openai/judge", [], 1, "1.5 of 1 USD are spent (--max-cost)", Path("x"))
    result = result_of(row_result("a", 1, [failed("a", 0)]), explanations=explanations)
    flat = " ".join(shown(result).split())
    assert "(--max-cost); --resume e1 --max-cost USD makes the rest" in flat


@pytest.mark.parametrize("width", [60, 80])
def test_a_row_says_what_went_wrong_in_whole_words(width: int) -> None:
    rows = [row_result("flight.booking.001", 1, [failed("flight.booking.001", 0, "wrong_arguments")])]
    lines = shown(result_of(*rows), width).splitlines()
    (line,) = [line for line in lines if line.startswith("flight.booking.001 ")]
    assert "wrong_arguments" in line.split()
