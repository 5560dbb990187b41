"""Why a rollout failed, from what was expected and what was done."""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_kit.agent.calls import ToolCall
from reward_kit.agent.failures import (
    FAILURE_KINDS,
    ExpectedCall,
    Failure,
    RowDifference,
    classify_failure,
    missing_outputs,
)
from reward_kit.agent.rollout import StopReason
from reward_kit.agent.user_faults import UserFault

CANCEL = ExpectedCall("cancel_order", {"order_id": "#W1", "reason": "no longer needed"}, writes=True)
LOOK = ExpectedCall("get_order", {"order_id": "#W1"}, writes=False)
REFUND = ExpectedCall("refund", {"order_id": "#W1"}, writes=True)
BOOK = ExpectedCall("book", {"seat": 1}, writes=True)
PAY = ExpectedCall("pay", {"booking_id": {"$result": [0, "id"]}}, writes=True)


def made(name: str, arguments: Any, *, status: str = "ok", writes: bool = True) -> ToolCall:
    changes = [{"table": "orders", "op": "update"}] if writes and status == "ok" else []
    return ToolCall(
        index=0, id="c1", step=1, turn=1, name=name, arguments=arguments, content="", status=status,
        changes=changes, started=0.0, seconds=0.0,
    )  # fmt: skip


def failed(calls: list[ToolCall], *expected: ExpectedCall, **more: Any) -> Failure:
    given: dict[str, Any] = {"stop_reason": "agent_done", "differences": ["orders #W1 status"], **more}
    return classify_failure(tool_calls=calls, expected=expected, **given)


def kind(calls: list[ToolCall], *expected: ExpectedCall, **more: Any) -> str:
    return failed(calls, *expected, **more).kind


@pytest.mark.parametrize("reason", ["user_error", "infrastructure_error", "agent_error", "max_steps"])
def test_some_stops_say_it_all(reason: str) -> None:
    failure = classify_failure(stop_reason=reason, stop_detail="because", differences=["a row differs"])
    assert (failure.kind, failure.detail) == (reason, "because")


def test_where_all_is_as_expected_the_calls_that_were_never_made_are_named() -> None:
    transfer = ExpectedCall("transfer", {}, writes=False)
    failure = classify_failure(
        stop_reason="agent_done",
        tool_calls=[made("get_order", {}, writes=False)],
        expected=[LOOK, transfer, transfer],
        differences=[],
    )
    assert (failure.kind, failure.detail) == (
        "other",
        "data and outputs are as expected, but the reward is not; never called: transfer",
    )


def test_the_right_tool_with_other_arguments() -> None:
    calls = [made("cancel_order", {"order_id": "#W2", "reason": "no longer needed"})]
    failure = classify_failure(
        stop_reason="agent_done", tool_calls=calls, expected=[CANCEL], differences=["orders #W1 status"]
    )
    assert failure.kind == "wrong_arguments"
    assert failure.detail == 'cancel_order: order_id: expected "#W1", got "#W2"'


@pytest.mark.parametrize(
    ("arguments", "detail"),
    [
        ({"order_id": "#W1"}, "reason is missing"),
        ({"order_id": "#W1", "reason": "no longer needed", "note": 1}, "note was not expected"),
        ("{not json", "no JSON object"),
    ],
)
def test_refused_calls_count_as_attempts(arguments: Any, detail: str) -> None:
    failure = classify_failure(
        stop_reason="agent_done",
        tool_calls=[made("cancel_order", arguments, status="invalid_arguments")],
        expected=[CANCEL],
        differences=["orders #W1 status"],
    )
    assert failure.kind == "wrong_arguments"
    assert detail in failure.detail


def test_another_tool_changed_rows_instead() -> None:
    assert kind([made("return_order", {"order_id": "#W1"})], CANCEL) == "wrong_tool"


def test_everything_done_and_something_more() -> None:
    calls = [made(CANCEL.name, dict(CANCEL.arguments)), made("refund", {"order_id": "#W9"})]
    assert kind(calls, CANCEL) == "unintended_action"


def test_the_same_change_made_twice_is_unintended() -> None:
    assert kind([made(CANCEL.name, dict(CANCEL.arguments))] * 2, CANCEL) == "unintended_action"


def test_only_a_part_was_done() -> None:
    calls = [made(CANCEL.name, dict(CANCEL.arguments))]
    failure = classify_failure(
        stop_reason="user_stop",
        tool_calls=calls,
        expected=[LOOK, CANCEL, REFUND],
        differences=["a row differs"],
    )
    assert failure.kind == "partially_completed"
    assert failure.detail.startswith("1 of 2 changes made; missing refund(")


def test_nothing_was_done() -> None:
    assert kind([], CANCEL) == "partially_completed"


def test_reading_other_rows_than_expected_is_no_fault() -> None:
    calls = [made("get_order", {"order_id": "#W7"}, writes=False)]
    assert kind(calls, LOOK, CANCEL) == "partially_completed"


def test_references_to_what_no_read_is_known_to_answer_match_any_value() -> None:
    find = ExpectedCall("find", {"seat": 1}, writes=False)
    calls = [made("pay", {"booking_id": "AB12"}), made("refund", {"order_id": "#W1"})]
    assert kind(calls, find, PAY) == "unintended_action"


def test_all_expected_calls_made_but_the_data_differs() -> None:
    failure = classify_failure(
        stop_reason="agent_done",
        tool_calls=[made(CANCEL.name, dict(CANCEL.arguments))],
        expected=[CANCEL],
        differences=["orders #W1 status: expected 'cancelled', got 'pending'"],
    )
    assert failure.kind == "other"
    assert "expected 'cancelled'" in failure.detail


def test_right_data_but_something_was_never_said() -> None:
    failure = classify_failure(
        stop_reason="user_stop", differences=[], outputs=["1093.34", "12"], said=["That is $1,093.34."]
    )
    assert failure.kind == "missing_output"
    assert failure.detail == "never said: '12'"


def test_nothing_known_of_what_was_expected() -> None:
    assert classify_failure(stop_reason="agent_done").kind == "other"
    assert (
        classify_failure(stop_reason="timeout", stop_detail="not over after 5 s").detail
        == "not over after 5 s"
    )
    assert classify_failure(stop_reason="agent_done", differences=[]).kind == "other"


def test_outputs_are_found_whatever_the_case_and_the_commas() -> None:
    assert missing_outputs(["Camera", "10"], ["the CAMERA", "costs $1,0"]) == []
    assert missing_outputs(["a b"], ["a", "b"]) == ["a b"]
    assert missing_outputs([], []) == []


def test_the_first_fault_gives_the_class() -> None:
    """The refund came before the wrong cancellation, so it is what went wrong first."""
    calls = [made("refund", {"order_id": "#W9"}), made("cancel_order", {"order_id": "#W2"})]
    failure = classify_failure(
        stop_reason="agent_done", tool_calls=calls, expected=[CANCEL], differences=["a row differs"]
    )
    assert (failure.kind, failure.detail) == (
        "unintended_action",
        'nobody asked for refund({"order_id": "#W9"})',
    )


def test_the_closest_attempt_stands_beside_the_expected_call() -> None:
    calls = [
        made("cancel_order", {"order_id": "#W8", "reason": "why not"}, status="refused"),
        made("cancel_order", {"order_id": "#W1", "reason": "because"}, status="refused"),
    ]
    failure = classify_failure(
        stop_reason="agent_done", tool_calls=calls, expected=[CANCEL], differences=["a row differs"]
    )
    assert failure.made is not None
    assert failure.made["arguments"] == calls[1].arguments
    assert failure.arguments == ({"argument": "reason", "expected": "no longer needed", "got": "because"},)


def test_a_call_that_changed_rows_stands_there_before_one_that_was_refused() -> None:
    calls = [
        made("cancel_order", {"order_id": "#W1", "reason": "because"}, status="refused"),
        made("cancel_order", {"order_id": "#W8", "reason": "why not"}),
    ]
    failure = classify_failure(
        stop_reason="agent_done", tool_calls=calls, expected=[CANCEL], differences=["a row differs"]
    )
    assert failure.made is not None
    assert failure.made["arguments"] == calls[1].arguments


def test_the_right_call_that_was_refused_is_told_with_its_answer() -> None:
    call = made(CANCEL.name, dict(CANCEL.arguments), status="refused")
    call.content = "Error: too late"
    failure = classify_failure(
        stop_reason="agent_done", tool_calls=[call], expected=[CANCEL], differences=["a row differs"]
    )
    assert (failure.kind, failure.detail) == (
        "partially_completed",
        "cancel_order was refused: Error: too late",
    )
    assert failure.arguments == ()


def test_changes_that_were_made_good_again_are_no_fault() -> None:
    detour = made("cancel_order", {"order_id": "#W5", "reason": "oops"})
    detour.changes = [{"table": "orders", "op": "update", "key": {"id": "#W5"}}]
    differences = [RowDifference("refunds", {"id": 1}, None, {"order_id": "#W1"}, None)]
    refund = ExpectedCall(
        "refund", {"order_id": "#W1"}, writes=True, changes=[{"table": "refunds", "key": {"id": 1}}]
    )
    failure = classify_failure(
        stop_reason="agent_done", tool_calls=[detour], expected=[refund], differences=differences
    )
    assert (failure.kind, failure.call) == ("partially_completed", None)
    assert failure.rows == (
        {"table": "refunds", "key": {"id": 1}, "column": None, "expected": {"order_id": "#W1"}, "got": None},
    )


def test_what_another_call_achieved_as_well_is_not_missing() -> None:
    cancel = ExpectedCall(
        CANCEL.name, CANCEL.arguments, writes=True, changes=[{"table": "orders", "key": {"id": "#W1"}}]
    )
    both = made("cancel_all", {})
    both.changes = [{"table": "orders", "op": "update", "key": {"id": name}} for name in ("#W1", "#W2")]
    failure = classify_failure(
        stop_reason="agent_done",
        tool_calls=[both],
        expected=[cancel],
        differences=[RowDifference("orders", {"id": "#W2"}, "status", "pending", "cancelled")],
    )
    assert (failure.kind, failure.expected) == ("unintended_action", None)


def test_all_done_in_another_order() -> None:
    calls = [made("refund", {"order_id": "#W1"}), made(CANCEL.name, dict(CANCEL.arguments))]
    failure = classify_failure(
        stop_reason="agent_done", tool_calls=calls, expected=[CANCEL, REFUND], differences=["a row differs"]
    )
    assert (failure.kind, failure.detail) == (
        "other",
        "all expected calls were made, but refund before cancel_order",
    )
    assert failure.made is not None


def test_references_are_held_against_what_the_call_before_answered() -> None:
    booked = made("book", {"seat": 1})
    booked.content = '{"id": "AB12"}'
    failure = failed([booked, made("pay", {"booking_id": "ZZ99"})], BOOK, PAY)
    assert failure.kind == "wrong_arguments"
    assert failure.arguments == ({"argument": "booking_id", "expected": "AB12", "got": "ZZ99"},)


def test_what_was_done_to_something_else_is_not_done_to_what_was_never_made() -> None:
    failure = failed([made("pay", {"booking_id": "ZZ99"})], BOOK, PAY)
    assert failure.kind == "wrong_arguments"
    assert failure.detail == 'pay: booking_id: expected {"$result": [0, "id"]}, got "ZZ99"'
    assert failure.arguments == (
        {"argument": "booking_id", "expected": {"$result": [0, "id"]}, "got": "ZZ99"},
    )


@pytest.mark.parametrize("writes", [True, False])
def test_what_was_made_with_other_arguments_is_what_is_gone_on_with(writes: bool) -> None:
    booked = made("book", {"seat": 2}, writes=writes)
    booked.content = '{"id": "AB12"}'
    failure = failed([booked, made("pay", {"booking_id": "AB12"})], BOOK, PAY)
    assert failure.detail == "book: seat: expected 1, got 2"


def test_an_attempt_that_can_be_read_is_nearer_than_one_that_cannot() -> None:
    wrong = made(CANCEL.name, {"order_id": "#W2", "reason": "bored"}, status="refused", writes=False)
    unreadable = made(CANCEL.name, '{"order_id": "#W1', status="invalid_arguments", writes=False)
    failure = failed([wrong, unreadable], CANCEL)
    assert failure.kind == "wrong_arguments"
    assert failure.made is not None
    assert failure.made["arguments"] == wrong.arguments


@pytest.mark.parametrize("reason", ["timeout", "budget"])
def test_time_or_money_ran_out(reason: str) -> None:
    """That is why something is missing, but not why something wrong was done."""
    assert kind([], CANCEL, stop_reason=reason) == "other"
    wrong = [made("cancel_order", {"order_id": "#W2", "reason": "no longer needed"})]
    assert kind(wrong, CANCEL, stop_reason=reason) == "wrong_arguments"


def test_a_decisive_fault_of_the_user_is_the_class_and_the_rest_is_still_told() -> None:
    fault = UserFault("stopped_early", 2, "left", decisive=True)
    failure = classify_failure(
        stop_reason="user_stop", expected=[CANCEL], differences=["a row differs"], user_fault=fault, steps=4,
        turns=2,
    )  # fmt: skip
    assert (failure.kind, failure.detail) == ("user_error", "stopped_early (turn 2): left")
    assert failure.expected is not None
    assert (failure.step, failure.turn) == (4, 2)


def test_many_differing_rows_are_counted() -> None:
    differences = [RowDifference("t", {"id": number}, "a", 1, 2) for number in range(25)]
    failure = classify_failure(stop_reason="agent_done", differences=differences)
    assert (len(failure.rows), failure.more_rows) == (20, 5)


def test_long_argument_lists_stay_short_in_the_line() -> None:
    wide = ExpectedCall("set", {f"a{number}": "x" * 500 for number in range(9)}, writes=True)
    failure = failed([made("set", {f"a{number}": "y" * 500 for number in range(9)})], wide)
    assert failure.detail.endswith("; and 6 more")
    assert len(failure.detail) < 1000
    assert len(failure.arguments) == 9


calls_of = st.lists(
    st.builds(
        made,
        st.sampled_from(["cancel_order", "refund", "get_order", "hand_over"]),
        st.fixed_dictionaries({"order_id": st.sampled_from(["#W1", "#W2"])}) | st.just("{torn"),
        status=st.sampled_from(["ok", "refused", "failed", "invalid_arguments", "unknown_tool"]),
        writes=st.booleans(),
    ),
    max_size=6,
)


@given(calls_of, calls_of, st.sampled_from(get_args(StopReason)), st.booleans())
@settings(deadline=None)
def test_every_failure_has_one_class_and_a_place_among_the_calls(
    calls: list[ToolCall], gold: list[ToolCall], stop_reason: str, judged: bool
) -> None:
    for index, call in enumerate(calls):
        call.index = index
    expected = [
        ExpectedCall(call.name, call.arguments, bool(call.changes), call.changes)
        for call in gold
        if isinstance(call.arguments, dict)
    ]
    failure = classify_failure(
        stop_reason=stop_reason,
        tool_calls=calls,
        expected=expected,
        differences=[RowDifference("orders", {"id": 1}, "a", 1, 2)] if judged else None,
        steps=7,
        turns=3,
    )
    assert failure.kind in FAILURE_KINDS
    assert failure.detail
    json.dumps(failure.to_json())
    if failure.call is None:
        assert (failure.step, failure.turn, failure.made) == (7, 3, None)
    else:
        assert failure.made is not None
        assert failure.made["name"] == calls[failure.call].name


@given(calls_of)
@settings(deadline=None)
def test_the_gold_calls_themselves_hold_no_wrong_call(calls: list[ToolCall]) -> None:
    calls = [call for call in calls if call.status != "ok" or isinstance(call.arguments, dict)]
    expected = [
        ExpectedCall(call.name, call.arguments, bool(call.changes))
        for call in calls
        if call.status == "ok" and isinstance(call.arguments, dict)
    ]
    failure = classify_failure(
        stop_reason="agent_done", tool_calls=calls, expected=expected, differences=["a row differs"]
    )
    assert (failure.kind, failure.detail) == ("other", "a row differs")
