"""Faults of simulated users: what is found, what is let pass, and that nothing raises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_kit.agent.calls import ToolCall
from reward_kit.agent.history import Line
from reward_kit.agent.user_faults import USER_FAULT_KINDS, UserFault, find_user_faults, lines_of
from reward_kit.agent.users.literals import Known, literals

ROOT = Path(__file__).parents[2]
INSTRUCTION = (
    "You are Ann Lee, ann_lee_4711, zip code 19122. Return order #W1234567 to credit_card_9876543 "
    "by May 20, if it was more than $150."
)
OPENING = "Hi, I have a question about an order of mine."
ASKS = "Certainly. What is your zip code?"


def tool_call(**arguments: Any) -> ToolCall:
    return ToolCall(0, "c", 1, 1, "find", arguments, "ok", "ok", [], 0.0, 0.0)


def faults_of(*texts: str, missing: bool = True, calls: Any = (), **more: Any) -> list[UserFault]:
    """Faults where user and agent speak in turns, the user first."""
    lines = [Line(("user", "agent")[place % 2], text) for place, text in enumerate(texts)]
    stopped = "###STOP###" in texts[-1]
    options = {"stop_reason": "user_stop" if stopped else "max_steps", "instruction": INSTRUCTION, **more}
    return find_user_faults(lines=lines, tool_calls=calls, expected=["row"] if missing else [], **options)


def kinds(*texts: str, **more: Any) -> list[str]:
    return [fault.kind for fault in faults_of(*texts, **more)]


def only(*texts: str, **more: Any) -> UserFault:
    (fault,) = faults_of(*texts, **more)
    return fault


# -- leaving early


def test_leaving_without_a_word_is_a_fault() -> None:
    assert only("###STOP###") == UserFault(
        "stopped_early",
        0,
        "left before the agent had said a word, and what it came for was not done",
        decisive=True,
    )


@pytest.mark.parametrize(
    "agent",
    [
        ASKS,
        "Hello! How can I help you today?",
        "I found your order. Shall I go ahead and return it?",
        "Please confirm with yes.",
        "One moment, let me check that.",
        "I cannot look up your order without your zip code. Could you tell me what it is?",
    ],
)
def test_leaving_instead_of_answering_is_a_fault(agent: str) -> None:
    fault = only(OPENING, agent, "###STOP###")
    assert (fault.kind, fault.turn, fault.decisive) == ("stopped_early", 1, True)


@pytest.mark.parametrize(
    "agent",
    [
        "I cannot return this order. Is there anything else I can help with?",
        "Unfortunately this is not possible. Do you want to keep it?",
        "Your return has been requested.",
        "I have transferred you to a human agent.",
        "",
    ],
)
def test_an_agent_that_refuses_or_claims_success_has_failed_by_itself(agent: str) -> None:
    assert kinds(OPENING, agent, "###STOP###") == []


@pytest.mark.parametrize(
    "asked",
    [
        "The return is requested. Is there anything else I can help you with?",
        "The return is requested. If you have any more questions, please let me know!",
        "The return is requested. Please tell me if you need help with something else.",
    ],
)
def test_after_the_agent_asked_for_more_a_user_may_leave(asked: str) -> None:
    assert kinds(OPENING, ASKS, "It is 19122.", asked, "###STOP###", calls=[tool_call()]) == []


def test_where_nothing_is_missing_a_user_may_leave_at_any_time() -> None:
    assert kinds(OPENING, ASKS, "###STOP###", missing=False) == []


def test_a_request_in_the_line_that_ends_it_is_a_fault() -> None:
    assert kinds(OPENING, "Done.", "I'd also like to cancel the other one. ###STOP###") == [
        "stopped_early",
        "stop_token_in_text",
    ]


def test_the_stop_token_in_the_midst_of_a_text_is_told_and_explains_nothing() -> None:
    for line in ["The lamp ###STOP### is broken.", "###STOP### Thank you!", "The lamp is broken. ###STOP###"]:
        fault = only(OPENING, "Done.", line)
        assert (fault.kind, fault.decisive) == ("stop_token_in_text", False)


def test_a_farewell_before_the_stop_token_is_a_courtesy() -> None:
    for line in ["Thanks, that is all I need. ###STOP###", "I really appreciate it. Good-bye!\n###STOP###"]:
        assert kinds(OPENING, "Done.", line) == []


def test_a_rollout_that_was_ended_otherwise_was_not_left_early() -> None:
    assert kinds(OPENING, ASKS, "###STOP###", stop_reason="max_steps") == []


# -- literals


@pytest.mark.parametrize(
    "line",
    [
        "My zip code is 19123.",
        "It is order #W7654321.",
        "It is order W7654321.",
        "My user id is ann_lee_4712.",
        "To credit_card_1111111, please.",
        "Hi, my name is John Smith.",
    ],
)
def test_another_literal_in_the_same_role_contradicts_the_instruction(line: str) -> None:
    fault = only(OPENING, ASKS, line)
    assert (fault.kind, fault.turn, fault.decisive) == ("contradicts_instruction", 1, True)
    assert "its instruction says" in fault.detail


def test_a_made_up_literal_counts_once_the_agent_used_it() -> None:
    line = "My email is ann@example.com."
    assert only(OPENING, ASKS, line) == UserFault(
        "invented_detail",
        1,
        "said 'ann@example.com', which neither its instruction nor the agent has mentioned",
        decisive=False,
    )
    assert only(OPENING, ASKS, line, calls=[tool_call(email="ann@example.com")]).decisive


@pytest.mark.parametrize("line", ["Was it $99.50?", "It arrived on June 3rd.", "It arrived on 2024-06-03."])
def test_a_made_up_amount_or_day_is_told_and_explains_nothing(line: str) -> None:
    fault = only(OPENING, ASKS, line, calls=[tool_call(text=line)])
    assert (fault.kind, fault.decisive) == ("invented_detail", False)


@pytest.mark.parametrize(
    "line",
    [
        "It is 19122, order #W1234567.",
        "Order W 1234567, that is 1234567.",
        "I am ANN_LEE_4711.",
        "My name is Ann Lee. My name is Ms Lee. Well, my name's Ann, and my name is on the parcel.",
        "Ann Lee 4711, on credit card 9876543.",
        "It was over 150 dollars, $150.00, and it is for the 20th of May or 2024-05-20.",
        "I ordered 2 lamps, 27 inch, 144Hz, 1080p, 2000mAh at 10am, size 42 in 2 weeks.",
        "The agent's 5550123 is right, and $99.99 too.",
    ],
)
def test_what_the_user_was_told_or_has_heard_is_not_made_up(line: str) -> None:
    agent = "We have item 5550123 for $99.99, with 1500 pieces."
    assert kinds(OPENING, agent, line) == []


def test_what_the_agent_says_later_was_not_known_before() -> None:
    assert kinds("It is item 5550123.", "Yes, 5550123.", "Item 5550123.") == ["invented_detail"]


def test_the_rows_own_lines_are_nobodys_fault() -> None:
    lines = [("agent", "Welcome"), ("user", "How can I help you? Zip 19123."), ("agent", ASKS)]
    answer = [*lines, ("user", "It is 19123.")]
    options: dict[str, Any] = {"instruction": INSTRUCTION, "tool_calls": [], "stop_reason": "max_steps"}
    assert find_user_faults(lines=answer, given=2, **options) == []
    assert [
        fault.turn for fault in find_user_faults(lines=[*lines, ("user", "19124")], given=2, **options)
    ] == [1]


def test_turns_are_counted_from_the_end_of_the_rows_lines() -> None:
    lines = [("agent", "Welcome"), ("user", OPENING), ("agent", ASKS), ("user", "How can I help you?")]
    (fault,) = find_user_faults(
        lines=lines, given=2, instruction=None, tool_calls=[], stop_reason="max_steps"
    )
    assert (fault.kind, fault.turn) == ("speaks_as_agent", 1)


def test_an_amount_in_words_is_the_same_in_signs() -> None:
    assert kinds(OPENING, "It was 99 dollars.", "So it was $99.00, or $99?") == []


def test_without_an_instruction_literals_are_not_checked() -> None:
    assert kinds("My zip is 99999.", instruction=None) == []


# -- manners


@pytest.mark.parametrize(
    "line",
    [
        "How can I help you today?",
        "Hello! How may I assist you?",
        "I'd be happy to help you with that.",
        "Thank you for contacting our shop.",
        "I apologize for the inconvenience.",
        "I have successfully cancelled your order.",
        "I\u2019ve processed your return.",
        "Your order #W1234567 has been cancelled successfully.",
        "Could you please provide your order number?",
        "Let me look up your account.",
        "Agent: what is your zip code?",
        '{"name": "cancel_order", "arguments": {"order_id": "#W1234567"}}',
        'I call it.\nAction: {"name": "cancel_order"}',
        "<tool_call>cancel</tool_call>",
        "cancel_order(order_id='#W1234567')",
    ],
)
def test_a_line_of_the_agents_in_the_users_mouth_is_a_fault(line: str) -> None:
    fault = only(OPENING, ASKS, line)
    assert (fault.kind, fault.decisive) == ("speaks_as_agent", True)


def test_taking_leave_as_the_agent_would_explains_no_failure() -> None:
    fault = faults_of(OPENING, "Done.", "Is there anything else I can help with? ###STOP###")[-2]
    assert (fault.kind, fault.decisive) == ("speaks_as_agent", False)


def test_the_same_line_three_times_is_a_fault() -> None:
    line = "I want to have my lamp returned."
    assert kinds(line, ASKS, f"{line} ", "Which order?") == []
    fault = only(line, ASKS, f"{line} ", "Which order?", line.upper(), "I see.", line)
    assert (fault.kind, fault.turn, fault.decisive) == ("repeats_itself", 2, True)


def test_two_lines_in_turns_are_a_loop() -> None:
    texts = ["I want to return my lamp.", "Ok", "Actually, I want to exchange it.", "Ok"] * 3
    assert kinds(*texts) == ["repeats_itself"] * 2


@pytest.mark.parametrize(
    "line",
    [
        "Yes",
        "Yes, please go ahead with that.",
        "I don't remember my email address.",
        "Alice, that is all I know.",
        "No, thank you very much.",
    ],
)
def test_an_answer_may_be_given_again(line: str) -> None:
    assert kinds(OPENING, ASKS, line, ASKS, line, ASKS, line, ASKS, line) == []


def test_an_answer_with_a_literal_explains_no_failure_however_often_it_is_given() -> None:
    line = "My zip code is 19122."
    assert not only(OPENING, ASKS, line, ASKS, line, ASKS, line).decisive


@pytest.mark.parametrize(
    "line",
    [
        "Thought: they want my name.\nAnn.",
        "**Thought:** hm",
        "<think>hm</think> Ann.",
        "My instructions do not say that.",
    ],
)
def test_a_thought_in_a_line_is_told(line: str) -> None:
    fault = only(OPENING, ASKS, line)
    assert (fault.kind, fault.decisive) == ("thought_aloud", False)


@pytest.mark.parametrize("line", ["###STOP###", " ###STOP###\n", "**###STOP###**", "###STOP###."])
def test_the_stop_token_by_itself_is_as_it_should_be(line: str) -> None:
    assert kinds(OPENING, "Done.", line) == []


# -- what people say


@pytest.mark.parametrize(
    "line",
    [
        "Hello, could you help me with a return?",
        "Can you tell me what I paid for it?",
        "I have already returned the other one.",
        "I've updated my address in my profile, by the way.",
        "Has my order been cancelled already?",
        "My order has been delivered, but it is the wrong color.",
        "I'd like you to confirm the total before you go on.",
        "Sorry for the confusion, I meant the desk lamp.",
        "I apologize, I mixed up the two orders.",
        "Let me check... yes, that is the right one.",
        "Sure, here is my name: Ann Lee.",
        "My name is Mrs. Lee.",
        "My name is Dr Ann Lee.",
        "Would you please tell me the price of each?",
        "I am happy to wait.",
        "On second thought, keep the lamp.",
        "Thanks for your help!",
        "You can use the credit card that I paid with.",
    ],
)
def test_what_customers_say_is_no_fault(line: str) -> None:
    assert kinds(OPENING, ASKS, line) == []


def rows() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ROOT / "tau_retail_task" / "task.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("row", rows(), ids=lambda row: row["id"])
def test_a_user_that_says_what_its_instruction_says_has_no_fault(row: dict[str, Any]) -> None:
    instruction = row["sim_user_prompt"]
    sentences = [sentence for sentence in instruction.split(". ") if sentence]
    own = [f"It is {said.text}, as I said, {said.text.upper()}." for said in literals(instruction)]
    texts = ["Hi, I need some help with an order."]
    for line in [*own, *sentences]:
        texts += ["I see. What else can you tell me?", line]
    texts += ["All of it is done.", "###STOP###"]
    assert faults_of(*texts, instruction=instruction, calls=[tool_call(x=instruction)]) == []


@pytest.mark.parametrize("row", rows()[::5], ids=lambda row: row["id"])
def test_a_slip_in_a_literal_of_the_instruction_is_seen(row: dict[str, Any]) -> None:
    instruction = row["sim_user_prompt"]
    for said in literals(instruction):
        if said.kind in {"id", "number"}:
            wrong = said.text[:-1] + str((int(said.text[-1]) + 5) % 10)
            assert kinds(OPENING, ASKS, f"It is {wrong}.", instruction=instruction) == [
                "contradicts_instruction"
            ]


# -- anything at all

PIECES = st.sampled_from(
    [
        "###STOP###",
        "#W12345",
        "$1,234.50",
        "May 20",
        "Thought:",
        "{",
        '"name": "x", ',
        "a@b.co",
        "?",
        "\n",
        "19122",
        "1_2-3",
    ]
)
TEXTS = st.lists(PIECES | st.text(max_size=8), max_size=8).map("".join)


@given(
    lines=st.lists(st.tuples(st.sampled_from(["user", "agent"]), TEXTS), max_size=8),
    instruction=st.none() | TEXTS,
    arguments=TEXTS,
    stop_reason=st.sampled_from(["user_stop", "max_steps", None]),
    missing=st.booleans(),
    given_lines=st.integers(0, 9),
)
def test_nothing_that_is_said_raises(
    lines: list[tuple[str, str]],
    instruction: str | None,
    arguments: str,
    stop_reason: str | None,
    missing: bool,
    given_lines: int,
) -> None:
    faults = find_user_faults(
        lines=lines,
        instruction=instruction,
        tool_calls=[tool_call(text=arguments)],
        stop_reason=stop_reason,
        expected=["row"] if missing else (),
        given=given_lines,
    )
    assert {fault.kind for fault in faults} <= set(USER_FAULT_KINDS)
    assert [fault.turn for fault in faults] == sorted(fault.turn for fault in faults)
    assert json.dumps([fault.to_json() for fault in faults])


@given(TEXTS)
def test_a_text_says_nothing_beyond_itself(text: str) -> None:
    known = Known([text])
    assert all(said in known for said in literals(text))


@pytest.mark.parametrize(
    "piece", ["a", "a ", "\n", "?", "* ", "1,", "a_", "_1", "@", "your ", '{"name":', "a.b@", "Thought", "("]
)
@pytest.mark.timeout(20)
def test_long_texts_are_read_in_time_that_grows_with_their_length(piece: str) -> None:
    assert isinstance(kinds(OPENING, piece * 30_000, piece * 30_000), list)


def test_the_lines_of_a_row_are_counted_without_tool_calls() -> None:
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    messages = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "looking", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "a", "content": "ok"},
        {"role": "assistant", "content": "Hello"},
    ]
    assert lines_of(messages) == [Line("user", "Hi"), Line("agent", "Hello")]
