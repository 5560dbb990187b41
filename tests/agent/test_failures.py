"""Why a rollout failed, from what was expected and what was done."""

from __future__ import annotations

from typing import Any

import pytest

from reward_kit.agent.calls import ToolCall
from reward_kit.agent.failures import ExpectedCall, classify_failure, missing_outputs

CANCEL = ExpectedCall("cancel_order", {"order_id": "#W1", "reason": "no longer needed"}, writes=True)
LOOK = ExpectedCall("get_order", {"order_id": "#W1"}, writes=False)
REFUND = ExpectedCall("refund", {"order_id": "#W1"}, writes=True)


def made(name: str, arguments: Any, *, status: str = "ok", writes: bool = True) -> ToolCall:
    changes = [{"table": "orders", "op": "update"}] if writes and status == "ok" else []
    return ToolCall(
        index=0, id="c1", step=1, turn=1, name=name, arguments=arguments, content="", status=status,
        changes=changes, started=0.0, seconds=0.0,
    )  # fmt: skip


def kind(calls: list[ToolCall], *expected: ExpectedCall, **more: Any) -> str:
    given: dict[str, Any] = {"stop_reason": "agent_done", "differences": ["orders #W1 status"], **more}
    return classify_failure(tool_calls=calls, expected=expected, **given).kind


@pytest.mark.parametrize("reason", ["user_error", "infrastructure_error", "agent_error", "max_steps"])
def test_some_stops_say_it_all(reason: str) -> None:
    failure = classify_failure(stop_reason=reason, stop_detail="because", differences=["a row differs"])
    assert (failure.kind, failure.detail) == (reason, "because")


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


def test_references_in_gold_arguments_match_any_value() -> None:
    pay = ExpectedCall("pay", {"booking_id": {"$result": [0, "id"]}}, writes=True)
    assert (
        kind([made("pay", {"booking_id": "AB12"}), made("refund", {"order_id": "#W1"})], pay)
        == "unintended_action"
    )


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
