"""The class and detail of a failure, from what was expected and what was done; differing rows."""

import asyncio
import json
from dataclasses import asdict, replace
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from thorough import often

from reward_kit.agent.base.types import StopReason, ToolCall
from reward_kit.agent.database import Database
from reward_kit.agent.scoring.failures.classify import FAILURE_KINDS, Failure, classify_failure
from reward_kit.agent.scoring.failures.first_fault import ExpectedCall
from reward_kit.agent.scoring.failures.row_differences import RowDifference, row_differences, row_line
from reward_kit.agent.scoring.user_faults import UserFault

CANCEL = ExpectedCall("cancel_order", {"order_id": "#W1", "reason": "no longer needed"}, writes=True)
LOOK = ExpectedCall("get_order", {"order_id": "#W1"}, writes=False)
REFUND = ExpectedCall("refund", {"order_id": "#W1"}, writes=True)
BOOK = ExpectedCall("book", {"seat": 1}, writes=True)
PAY = ExpectedCall("pay", {"booking_id": {"$result": [0, "id"]}}, writes=True)


def made(name: str, arguments: Any, status: str = "ok", writes: bool = True, content: str = "") -> ToolCall:
    changes = [{"table": "orders", "op": "update"}] if writes and status == "ok" else []
    return ToolCall(0, "c1", 1, 1, name, arguments, content, status, changes, started=0.0, seconds=0.0)


def differing(table: str, key: Any, column: str | None, expected: Any, got: Any) -> RowDifference:
    return RowDifference(table=table, key=key, column=column, expected=expected, got=got)


STATUS = differing("orders", {"id": "#W1"}, "status", "cancelled", "pending")
DONE = made(CANCEL.name, dict(CANCEL.arguments))
THIRD = ExpectedCall("cancel_order", {"order_id": "#W3", "reason": "no longer needed"}, writes=True)
SECOND = made("cancel_order", {"order_id": "#W2", "reason": "no longer needed"})
REFUSED = made("cancel_order", {"order_id": "#W1"}, status="refused")
LATE = made(CANCEL.name, dict(CANCEL.arguments), status="refused", content="Error: too late")
RETURNED = made("return_order", {})
BOTH = [BOOK, PAY]
GIVEN = made("refund", dict(REFUND.arguments))


def booked(seat: int) -> ToolCall:
    return made("book", {"seat": seat}, content='{"id": "AB12"}')


def paid(booking: str) -> ToolCall:
    return made("pay", {"booking_id": booking})


def failed(calls: list[ToolCall], *expected: ExpectedCall, **more: Any) -> Failure:
    given: dict[str, Any] = {"stop_reason": "agent_done", "differences": [STATUS], **more}
    numbered = [replace(call, index=index) for index, call in enumerate(calls)]
    return classify_failure(tool_calls=numbered, expected=expected, **given)


def test_some_stop_reasons_decide() -> None:
    for reason in ("user_error", "infrastructure_error", "agent_error", "max_steps"):
        failure = failed([], stop_reason=reason, stop_detail="because")
        assert (failure.kind, failure.detail) == (reason, "because")


@pytest.mark.parametrize(
    ("calls", "expected", "kind", "detail"),
    [
        ([SECOND], [CANCEL], "wrong_arguments", 'cancel_order: order_id: expected "#W1", got "#W2"'),
        ([REFUSED], [CANCEL], "wrong_arguments", 'cancel_order: reason is missing, expected "no longer'),
        ([RETURNED], [REFUND], "wrong_tool", 'expected refund({"order_id": "#W1"}), got return_order({})'),
        ([DONE, made("refund", {})], [CANCEL], "unintended_action", "nobody asked for refund({})"),
        ([DONE], [LOOK, CANCEL, REFUND], "partially_completed", "1 of 2 changes made; missing refund("),
        ([LATE], [CANCEL], "partially_completed", "cancel_order was refused: Error: too late"),
        ([LATE, SECOND], [CANCEL, THIRD], "partially_completed", "cancel_order was refused: Error: too late"),
        ([GIVEN, DONE], [CANCEL, REFUND], "other", "all expected calls were made, but refund before cancel"),
        ([booked(1), paid("ZZ")], BOTH, "wrong_arguments", 'pay: booking_id: expected "AB12", got "ZZ"'),
        ([booked(2), paid("AB12")], BOTH, "wrong_arguments", "book: seat: expected 1, got 2"),  # its own
    ],
)
def test_the_first_wrong_call_decides(calls: Any, expected: Any, kind: str, detail: str) -> None:
    failure = failed(calls, *expected)
    assert failure.kind == kind
    assert failure.detail.startswith(detail)


def test_corrected_changes_and_changes_by_another_call_are_no_fault() -> None:
    detour = made("cancel_order", {"order_id": "#W5", "reason": "oops"})
    detour.changes = [{"table": "orders", "op": "update", "key": {"id": "#W5"}}]
    refund = ExpectedCall("refund", {}, writes=True, changes=[{"table": "refunds", "key": {"id": 1}}])
    missing = differing("refunds", {"id": 1}, None, {"order_id": "#W1"}, None)
    failure = failed([detour], refund, differences=[missing])
    assert (failure.kind, failure.call, failure.rows) == ("partially_completed", None, [missing])
    cancel = ExpectedCall("cancel", {}, writes=True, changes=[{"table": "orders", "key": {"id": "#W1"}}])
    both = made("cancel_all", {})
    both.changes = [{"table": "orders", "op": "update", "key": {"id": name}} for name in ("#W1", "#W2")]
    other = differing("orders", {"id": "#W2"}, "status", "pending", "cancelled")
    failure = failed([both], cancel, differences=[other])
    assert (failure.kind, failure.expected) == ("unintended_action", None)
    failure = failed([], cancel, refund, differences=[missing])  # of orders the data are right
    assert failure.detail == "0 of 2 changes made; missing refund({})"


@pytest.mark.parametrize(
    ("given", "kind", "detail"),
    [
        ({"unsaid": ["12"]}, "missing_output", "never said: '12'"),
        ({"differences": None}, "other", "the row has no gold actions to compare with"),
        ({}, "other", "data and outputs are as expected, but the reward is not; never called: transfer"),
        ({"gold_fault": "actions[0]: x"}, "other", "the expected data are not known: actions[0]: x"),
    ],
)
def test_without_wrong_data(given: dict[str, Any], kind: str, detail: str) -> None:
    transfer = ExpectedCall("transfer", {}, writes=False)
    looked = made("get_order", {}, writes=False)
    failure = failed([looked], LOOK, transfer, transfer, **{"differences": [], **given})
    assert (failure.kind, failure.detail) == (kind, detail)


def test_a_lack_of_time_explains_missing_calls_but_not_wrong_ones() -> None:
    failure = failed([], CANCEL, stop_reason="timeout", stop_detail="not over after 5 s")
    assert (failure.kind, failure.detail) == ("other", "not over after 5 s")
    assert failed([SECOND], CANCEL, stop_reason="budget").kind == "wrong_arguments"


def test_a_decisive_fault_of_the_user_gives_the_class_and_the_rest_is_kept() -> None:
    fault = UserFault("stopped_early", 2, "left", decisive=True)
    failure = failed([], CANCEL, user_fault=fault, steps=4, turns=2)
    assert (failure.kind, failure.detail) == ("user_error", "stopped_early (turn 2): left")
    assert failure.expected is not None
    assert (failure.step, failure.turn) == (4, 2)


_CALLS = st.lists(
    st.builds(
        made,
        st.sampled_from(["cancel_order", "refund", "get_order", "hand_over"]),
        st.fixed_dictionaries({"order_id": st.sampled_from(["#W1", "#W2"])}) | st.just("{torn"),
        status=st.sampled_from(["ok", "refused", "failed", "invalid_arguments", "unknown_tool"]),
        writes=st.booleans(),
    ),
    max_size=6,
)


@given(_CALLS, _CALLS, st.sampled_from(get_args(StopReason)), st.booleans())
def test_every_failure_has_a_class_and_a_place(calls: Any, gold: Any, stop_reason: str, judged: bool) -> None:
    expected = [
        ExpectedCall(call.name, call.arguments, bool(call.changes), call.changes)
        for call in gold
        if isinstance(call.arguments, dict)
    ]
    differences = [differing("orders", {"id": 1}, "a", 1, 2)] if judged else None
    failure = failed(calls, *expected, stop_reason=stop_reason, differences=differences, steps=7, turns=3)
    assert failure.kind in FAILURE_KINDS
    assert failure.detail
    json.dumps(asdict(failure))
    if failure.call is None:
        assert (failure.step, failure.turn, failure.made) == (7, 3, None)
    else:
        assert failure.made is not None
        assert failure.made["name"] == calls[failure.call].name


SEED = """
CREATE TABLE orders(id TEXT PRIMARY KEY, status TEXT, total REAL);
CREATE TABLE notes(text TEXT, stamp BLOB);
INSERT INTO orders VALUES ('#W1', 'pending', 60), ('#W2', 'pending', 1.5), ('#W3', 'done', NULL);
INSERT INTO notes VALUES ('a', x'00'), ('a', x'00'), ('b', NULL);
"""


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with Database.seed(tmp_path_factory.mktemp("rows") / "base.db", SEED) as database:
        yield database


def lines_of(base: Database, actual: list[str], expected: list[str]) -> list[str]:
    async def differences() -> list[RowDifference]:
        with base.fork() as got, base.fork() as wanted:
            for fork, statements in ((got, actual), (wanted, expected)):
                for statement in statements:
                    await fork.execute(statement)
            found = row_differences(got.changes(), wanted.changes())
            assert bool(found) == (not got.equals(wanted))
            json.dumps(found)
            return found

    return sorted(map(row_line, asyncio.run(differences())))


def test_differing_rows_have_a_line_each(base: Database) -> None:
    actual = "UPDATE orders SET total=60.5 WHERE id='#W1'"
    expected = "UPDATE orders SET status='cancelled' WHERE id='#W1'"
    assert lines_of(base, [actual], [expected]) == [
        'orders #W1 status: expected "cancelled", got "pending"',
        "orders #W1 total: expected 60.0, got 60.5",
    ]
    actual, expected = "DELETE FROM notes WHERE text='b'", "INSERT INTO notes VALUES ('c', x'01')"
    assert lines_of(base, [actual], [expected]) == [
        'notes: missing row (text="b", stamp=null)',
        'notes: missing row (text="c", stamp={"$blob": "01"})',
    ]


_STATEMENTS = st.lists(
    st.sampled_from(
        [
            "UPDATE orders SET status='x' WHERE id='#W1'",
            "UPDATE orders SET status='pending' WHERE id='#W1'",
            "UPDATE orders SET total=60 WHERE id='#W2'",
            "DELETE FROM orders WHERE id='#W2'",
            "INSERT OR REPLACE INTO orders VALUES ('#W2', 'again', 2)",
            "INSERT OR REPLACE INTO orders VALUES ('#W9', 'new', NULL)",
            "DELETE FROM notes WHERE text='a'",
            "INSERT INTO notes VALUES ('a', x'00')",
            "UPDATE notes SET stamp=1 WHERE text='b'",
        ]
    ),
    max_size=4,
)


@given(actual=_STATEMENTS, expected=_STATEMENTS)
@settings(max_examples=often(60))
def test_there_are_differences_exactly_if_states_differ(base: Database, actual: Any, expected: Any) -> None:
    lines_of(base, actual, expected)


def test_a_wrong_call_stands_for_the_expected_one_that_it_is_closest_to() -> None:
    expected = [ExpectedCall("add", {"item": item, "n": item}, writes=True) for item in (1, 2, 3)]
    calls = [made("add", {"item": 3, "n": 9}), made("add", {"item": 1, "n": 1})]
    assert failed(calls, *expected).detail == "add: n: expected 3, got 9"
