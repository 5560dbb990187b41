"""Bundles without ``reward.py``, judged by the fields of their rows; and the checks that do it."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from command import run_command
from flight_bundle import GOLD, Bundle
from stored_rollouts import query
from stub_server import Answer, StubServer

from reward_kit.agent import EvaluationResult, TaskBundle, agent_eval, load_rollout, validate
from reward_kit.agent.base.types import ToolCall
from reward_kit.agent.base.worker_thread import in_thread, run_sync
from reward_kit.agent.rewards import all_of, calls_made, criteria_met, outputs_said, weighted_sum
from reward_kit.errors import BundleError, ModelSetupError

BOOK, PAY = GOLD
OTHER = {"name": "create_booking", "arguments": {"flight_id": 1, "passenger": "Bob"}}
PLAYERS = '''
import json

class Planned:
    """Makes the calls of the row's metadata; a booking is paid by its position among the calls."""

    async def respond(self, rollout):
        results = []
        for name, arguments in rollout.metadata["calls"]:
            if "of" in arguments:
                arguments = {"booking_id": json.loads(results[arguments["of"]])["booking_id"]}
            results.append(await rollout.call_tool(name, arguments))
        return rollout.metadata.get("says", "Done.")
'''


@pytest.fixture
def bundle(bundle: Bundle) -> Bundle:
    (bundle.folder / "reward.py").unlink()
    return bundle


def played(bundle: Bundle, calls: list[Any], says: str = "Done.", **fields: Any) -> EvaluationResult:
    """One rollout in which these calls are made; ``fields`` are the row's."""
    given = {"end_goal_sql": None, "n_rollouts": 1, "metadata": {"calls": calls, "says": says}, **fields}
    bundle.rows(given)
    return agent_eval(bundle.dataset, agent=bundle.player("Planned"), no_sim_user=True, retries=0)


def book(name: str) -> list[Any]:
    return ["create_booking", {"flight_id": 1, "passenger": name}]


CRITERIA = ["The agent is polite.", "The agent names the price."]
TWO = [BOOK, OTHER, {"name": "pay_booking", "arguments": {"booking_id": {"$result": [1, "booking_id"]}}}]


@pytest.mark.parametrize(
    ("calls", "fields", "score"),
    [
        ([book("Alice"), ["pay_booking", {"of": 0}]], {"actions": GOLD}, 1.0),
        ([book("Alice")], {"actions": GOLD}, 0.0),
        ([book("Bob"), book("Alice"), ["pay_booking", {"of": 0}]], {"actions": TWO}, 1.0),
        ([book("Bob"), book("Alice"), ["pay_booking", {"of": 1}]], {"actions": TWO}, 0.0),
        ([], {"actions": [], "outputs": ["done"]}, 1.0),
        ([], {"actions": [], "outputs": ["1,000"]}, 0.0),
        ([], {"actions": [], "outputs": ["1"], "end_goal_sql": "SELECT 1"}, 1.0),  # the goal alone decides
        ([book("Al")], {"required_calls": ["create_booking"]}, 1.0),
        ([book("Al")], {"required_calls": [BOOK]}, 0.0),
        ([book("Al")], {"forbidden_calls": ["pay_booking"]}, 1.0),
        ([book("Al")], {"forbidden_calls": [{"name": "create_booking"}], "end_goal_sql": "SELECT 1"}, 0.0),
    ],
)
def test_the_row_says_when_its_task_is_solved(bundle: Bundle, calls: Any, fields: Any, score: float) -> None:
    assert played(bundle, calls, **fields).score == score


PAID = "SELECT count(*) > 0 FROM bookings WHERE status = 'paid'"


@pytest.mark.parametrize(
    ("score_by", "calls", "says", "parts"),
    [
        (["data"], [book("Alice"), ["pay_booking", {"of": 0}]], "No.", {"data": 1.0}),
        (["data"], [book("Alice")], "It costs 42.", {"data": 0.0}),
        (["checks"], [book("Al"), book("Bo"), ["pay_booking", {"of": 1}]], "No.", {"checks": 1.0}),
        (["outputs"], [], "It costs 42.", {"outputs": 1.0}),
        (["outputs", "checks"], [], "It costs 42.", {"outputs": 1.0, "checks": 0.0}),
        (["calls"], [book("Al"), book("Alice"), ["pay_booking", {"of": 0}]], "No.", {"calls": 1.0}),
        (["calls"], [book("Alice")], "No.", {"calls": 0.0}),
    ],
)
def test_only_the_parts_of_score_by_count(
    bundle: Bundle, score_by: list[str], calls: Any, says: str, parts: dict[str, float]
) -> None:
    row = {"actions": GOLD, "checks": [PAID], "outputs": ["42"], "criteria": CRITERIA, "score_by": score_by}
    result = played(bundle, calls, says, **row)
    assert result.score == min(parts.values())
    (outcome,) = result.outcomes
    assert outcome.metrics == parts
    if "outputs" not in score_by:
        assert outcome.failure != "missing_output"


def test_a_wrong_change_is_named_where_checks_alone_count(bundle: Bundle) -> None:
    (outcome,) = played(bundle, [book("Bob")], actions=GOLD, checks=[PAID], score_by=["checks"]).outcomes
    assert outcome.failure == "wrong_arguments"


def test_score_by_multiplies_what_the_judge_finds(bundle: Bundle, judge: StubServer) -> None:
    judge.script("gpt-4o-mini", [verdicts(True, False)])
    result = played(bundle, [], criteria=CRITERIA, outputs=["done"], score_by=["criteria", "outputs"])
    (outcome,) = result.outcomes
    assert (outcome.reward, outcome.metrics) == (0.5, {"criteria": 0.5, "outputs": 1.0})


def test_calls_of_score_by_are_the_required_ones_if_the_row_names_some(bundle: Bundle) -> None:
    row = {"actions": GOLD, "score_by": ["calls"], "forbidden_calls": ["pay_booking"]}
    assert played(bundle, [], **row).score == 1.0
    assert played(bundle, [book("Alice"), ["pay_booking", {"of": 0}]], **row).score == 0.0
    assert played(bundle, [], **row, required_calls=["create_booking"]).score == 0.0


@pytest.mark.parametrize(
    ("fields", "faults"),
    [
        ({"score_by": ["date"]}, ["'score_by[0]': got \"date\" (a string), expected one of data, checks"]),
        ({"score_by": []}, ["'score_by': got [] (a list), expected a list of at least one of data"]),
        ({"score_by": ["data"]}, ["'score_by': names 'data', but the row has no actions"]),
        (
            {"score_by": ["calls", "criteria"]},
            ["'calls', but the row has no required_calls or forbidden_calls or actions", "no criteria"],
        ),
    ],
)
@pytest.mark.parametrize("named", [{}, {"reward": "reward_kit.agent.rewards:evaluate"}])
def test_score_by_names_parts_that_the_row_has(
    bundle: Bundle, fields: Any, faults: list[str], named: Any
) -> None:
    bundle.rows({"end_goal_sql": None, **fields, **named})
    with pytest.raises(BundleError) as raised:
        TaskBundle.load(bundle.dataset)
    assert all(fault in str(raised.value) for fault in faults), str(raised.value)


def test_validate_names_the_fields_that_score_by_leaves_out(bundle: Bundle) -> None:
    row = {"actions": GOLD, "checks": [PAID], "criteria": CRITERIA, "not_compared": ["bookings.id"]}
    bundle.rows({"end_goal_sql": "SELECT 1", **row, "outputs": ["42"], "score_by": ["checks", "criteria"]})
    with TaskBundle.load(bundle.dataset) as loaded:
        report = validate(loaded, deep=True)
    assert not report.errors
    idle = [finding.text for finding in report.findings if finding.kind == "no-effect"]
    assert [text.split("'")[1] for text in idle] == ["end_goal_sql", "not_compared", "outputs"]
    assert idle[0].endswith('has no effect: "score_by" is checks, criteria')
    kinds = {finding.kind for finding in report.findings}
    assert not kinds & {"ignored-outputs", "lenient-reward"}, "what is not scored may be otherwise"


def test_free_text_is_not_compared_if_the_row_says_so(bundle: Bundle) -> None:
    fields = {"actions": [BOOK], "not_compared": ["bookings.passenger"]}
    assert played(bundle, [book("Alice Miller")], **fields).score == 1.0
    result = played(bundle, [book("Alice Miller"), book("Al")], **fields)
    (failed,) = result.outcomes
    assert (result.score, failed.failure) == (0.0, "unintended_action")
    with result.record(failed) as record:
        assert len(record.failure["rows"]) == 1, "the name is no difference"
    bundle.rows({**fields, "end_goal_sql": None, "not_compared": ["bookings.pasenger"]})
    checked = run_command("validate", bundle.folder)
    assert checked.code != 0
    assert "'bookings.pasenger', which is no table or column" in checked.out + checked.err


def test_a_rollout_that_ran_out_of_steps_fails_whatever_the_data_are(bundle: Bundle) -> None:
    result = played(bundle, [book("Al"), book("Bo")], end_goal_sql="SELECT 1", max_steps=2)
    assert (result.score, result.outcomes[0].stop_reason) == (0.0, "max_steps")


@pytest.mark.parametrize(
    ("output", "text", "said"),
    [
        ("40", "It costs $40.", True),
        ("40", "It costs 40.00 dollars", True),
        ("40", "**40**, or 50", True),
        ("1240", "$1,240.00", True),
        ("1,240.5", "1240.50", True),
        ("-40", "It is -40 degrees", True),
        ("06:30", "At 06:30.", True),
        ("Lem", "stanislaw LEM's book", True),
        ("San Francisco, CA", "in San\nFrancisco, CA.", True),
        ("40", "价格是40元", True),
        ("东京", "我住在东京都", True),
        ("", "anything", True),
        ("40", "Your appointment is at 09:40.", False),
        ("40", "Be there from 40:30 on", False),
        ("40", "The fee is 140.00", False),
        ("40", "40.5", False),
        ("40", "-40", False),
        ("40", "30\u201340, \u221240, 2025\u201140, A-40", False),
        ("40", "order_40, 40_b", False),
        ("40", "It is _40_ degrees", True),
        ("12A", "Your seat\u201412A\u2014is booked.", True),
        ("-40", "It is \u221240.", True),
        ("40", "2025-05-40", False),
        ("40", "room A40, on the 40th floor", False),
        ("240", "$1,240", False),
        ("007", "agent 7", False),
        ("Lem", "a problem", False),
        ("#W12", "order #W123", False),
        ("5%", "15%", False),
    ],
)
def test_an_output_is_no_part_of_a_word_or_number(output: str, text: str, said: bool) -> None:
    message = {"role": "assistant", "content": text}
    assert outputs_said([output], [message]).score == float(said)


def test_the_rule_of_tau_bench_finds_outputs_anywhere() -> None:
    messages = [{"role": "assistant", "content": "At 09:40 for $1,240."}]
    assert outputs_said(["40", "240", "1240"], messages, anywhere=True).score == 1.0
    assert outputs_said(["1,240"], messages, anywhere=True).score == 0.0


def test_the_default_reward_can_be_named_beside_a_reward_py(bundle: Bundle) -> None:
    bundle.write("reward.py", "def evaluate(messages, **kwargs):\n    return {'score': 0.0}\n")
    named = {"reward": "reward_kit.agent.rewards:evaluate", "actions": GOLD}
    assert played(bundle, [book("Alice"), ["pay_booking", {"of": 0}]], **named).score == 1.0


@pytest.mark.parametrize(
    ("fields", "faults"),
    [
        ({}, ["'end_goal_sql': is missing, and there is no flight_task/reward.py", "criteria would do"]),
        ({"required_calls": "pay"}, ["'required_calls': got \"pay\" (a string), expected a list of tool"]),
        ({"required_calls": [{"tool": "pay"}]}, ["'required_calls[0]': got", "the name of a tool or an"]),
        ({"criteria": [" "]}, ["'criteria[0]'", "expected a sentence"]),
    ],
)
def test_a_fault_of_these_fields_says_what_is_expected(bundle: Bundle, fields: Any, faults: Any) -> None:
    bundle.rows({"end_goal_sql": None, **fields})
    with pytest.raises(BundleError) as raised:
        TaskBundle.load(bundle.dataset)
    assert all(fault in str(raised.value) for fault in faults), str(raised.value)


def test_a_call_of_a_tool_that_does_not_exist_is_a_warning(bundle: Bundle) -> None:
    bundle.rows({"required_calls": ["pay_bookings"]})
    with TaskBundle.load(bundle.dataset) as loaded:
        (warning,) = loaded.warnings
    assert "field 'required_calls': there is no tool 'pay_bookings'" in warning


def test_a_weighted_sum_needs_a_weight_for_each_check() -> None:
    checks = {"said": outputs_said(["x"], []), "calls": calls_made([])}
    assert weighted_sum(checks, {"said": 3, "calls": 1}).score == 0.25
    assert all_of(checks).reason == "never said: 'x'"
    for weights in ({"said": 1}, {"said": -1, "calls": 2}, {"said": 0, "calls": 0}):
        with pytest.raises(ValueError, match="do not fit the checks said, calls"):
            weighted_sum(checks, weights)


# --- a model as judge


def verdicts(*met: bool) -> str:
    listed = [{"criterion": number, "reason": "It says so.", "met": one} for number, one in enumerate(met, 1)]
    return f"Here it is: {json.dumps({'verdicts': listed})}"


@pytest.fixture
def judge(stub_llm: StubServer, monkeypatch: pytest.MonkeyPatch) -> StubServer:
    monkeypatch.setenv("OPENAI_BASE_URL", stub_llm.url)
    monkeypatch.setenv("MODEL_JUDGE", "openai/gpt-4o-mini")
    return stub_llm


@pytest.mark.parametrize("workers", [None, 1])
def test_a_judge_is_asked_counted_and_recorded(bundle: Bundle, judge: StubServer, workers: Any) -> None:
    judge.fail("gpt-4o-mini", Answer(status=500), times=1)
    judge.script("gpt-4o-mini", [verdicts(True, False)])
    options = {"n_rollouts": 2, "no_sim_user": True, "eval_id": "judged", "workers": workers}
    bundle.rows({"end_goal_sql": None, "criteria": CRITERIA, "metadata": {"calls": [book("Al")]}})
    result = agent_eval(bundle.dataset, agent=bundle.player("Planned"), **options)
    assert result.score == 0.0
    assert result.usage["judge"].calls == 2
    assert result.usage["judge"].cost > 0
    (stored, _) = query(Path("runs/evals/judged.db"), "SELECT json FROM traces")
    metric = json.loads(stored["json"])["result"]["metrics"]["criteria"]
    assert metric["score"] == 0.5
    assert metric["reason"].startswith("judge openai/gpt-4o-mini, prompt ")
    assert "1 of 2 criteria met; not met: 'The agent names the price.' (It says so.)" in metric["reason"]
    asked = judge.requests[-1]["messages"][-1]["content"]
    assert "2. The agent names the price." in asked
    assert "agent calls: create_booking" in asked


def test_a_judge_may_be_asked_in_several_event_loops(judge: StubServer) -> None:
    judge.script("gpt-4o-mini", lambda *_: Answer(verdicts(True), delay=0.1))

    def ask() -> float:
        return criteria_met(["It is short."], [{"role": "user", "content": "Hi."}]).score

    async def many() -> list[float]:
        return await asyncio.gather(*[in_thread(ask) for _ in range(20)])

    async def holding_up_its_loop() -> list[float]:
        return run_sync(many())

    assert run_sync(many()) == run_sync(holding_up_its_loop()) == [1.0] * 20


@pytest.mark.parametrize(
    ("answers", "score", "error"),
    [
        (["No.", verdicts(True, True)], 1.0, None),
        (['{"verdicts_of": 2}', verdicts(True, True)], 1.0, None),
        ([verdicts(True)], None, 'last because the answer holds no object with the list "verdicts" of 2'),
    ],
)
def test_an_unusable_answer_is_asked_for_again(
    bundle: Bundle, judge: StubServer, answers: list[str], score: float | None, error: str | None
) -> None:
    judge.script("gpt-4o-mini", answers)
    result = played(bundle, [], criteria=CRITERIA)
    (outcome,) = result.outcomes
    assert outcome.reward == score
    assert (error or "") in (outcome.error or "")
    assert result.usage["judge"].calls == 2


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, 'Name one in the environment (MODEL_JUDGE), or in the row ("judge_model").'),
        ({"judge_model": "anthropic/claude"}, "ANTHROPIC_API_KEY is not set"),
    ],
)
def test_a_judge_that_cannot_be_asked_ends_the_run_before_it_begins(
    bundle: Bundle, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any], fault: str
) -> None:
    for name in ("MODEL_JUDGE", "ANTHROPIC_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises((BundleError, ModelSetupError)) as raised:
        played(bundle, [], criteria=CRITERIA, **fields)
    assert fault in str(raised.value)
    with TaskBundle.load(bundle.dataset) as loaded:  # a check asks no model
        assert validate(loaded).ok


ORDERS = """CREATE TABLE objects (id TEXT PRIMARY KEY, json TEXT, amount);
INSERT INTO objects VALUES ('A', '{}', 0), ('B', '{}', 0);"""
REFUND = '''
import json

from reward_kit.agent import ToolRegistry

R = ToolRegistry("orders")

@R.tool
def refund(order: str, payment: dict, db) -> str:
    """Refund an order."""
    values = [json.dumps(payment), payment["amount"], order]
    db.execute("UPDATE objects SET json = ?, amount = ? WHERE id = ?", values)
    return "ok"
'''
EXACT = """
from reward_kit.agent.base.types import ToolCall
from reward_kit.agent.rewards import all_of, database_equal

EXACT = True

def evaluate(messages, *, db, gold_db, **kwargs):
    return all_of({"database": database_equal(db, gold_db, exact=EXACT)})
"""


def test_an_amount_may_be_spelled_in_another_way_unless_the_reward_is_exact(bundle: Bundle) -> None:
    bundle.write("tools.py", REFUND)
    bundle.write("seed.sql", ORDERS)
    gold = {"name": "refund", "arguments": {"order": "A", "payment": {"amount": 12, "method": "card"}}}
    row = {"actions": [gold], "required_calls": [gold]}

    def refund(amount: Any, order: str = "A") -> list[Any]:
        return ["refund", {"order": order, "payment": {"method": "card", "amount": amount}}]

    def failure(*calls: Any) -> Any:
        result = played(bundle, list(calls), **row)
        assert result.score == 0.0
        failure = load_rollout(f"{result.eval_id} flight.booking.001#1").failure
        assert failure is not None
        return failure["kind"], {(one["key"]["id"], one["column"]) for one in failure["rows"]}

    assert played(bundle, [refund(12.0)], **row).score == 1.0
    assert played(bundle, [refund(12.5)], **row).score == 0.0
    assert failure(refund(12.0), refund(3, "B")) == ("unintended_action", {("B", "json"), ("B", "amount")})
    bundle.write("reward.py", EXACT)
    assert failure(refund(12.0)) == ("other", {("A", "json"), ("A", "amount")})


def test_a_required_call_is_compared_by_value() -> None:
    given = {"amount": {"value": 12.0, "final": True}}
    call = ToolCall(0, "c", 1, 1, "refund", given, "ok", "ok", changes=[], started=0.0, seconds=0.0)
    for amount, score in (({"final": True, "value": 12}, 1.0), ({"final": 1, "value": 12}, 0.0)):
        wanted = {"name": "refund", "arguments": {"amount": amount}}
        assert calls_made([call], required=[wanted]).score == score
    padded = {"name": "refund", "arguments": {**given, "note": None}}
    assert calls_made([call], required=[padded]).score == 1.0
