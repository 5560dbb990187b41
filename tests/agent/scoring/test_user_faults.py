"""Faults of simulated users: what is found, and what real users say and is not flagged."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reward_kit.agent.base.types import ToolCall
from reward_kit.agent.scoring.user_faults import USER_FAULT_KINDS, UserFault, find_user_faults

ROOT = Path(__file__).parents[3]
INSTRUCTION = (
    "You are Ann Lee, ann_lee_4711, zip code 19122. Return order #W1234567 to credit_card_9876543 "
    "by May 20, if it was more than $150."
)
OPENING = "Hi, I have a question about an order of mine."
ASKS = "Certainly. What is your zip code?"


def tool_call(**arguments: Any) -> ToolCall:
    return ToolCall(0, "c", 1, 1, "find", arguments, "ok", "ok", [], 0.0, 0.0)


def faults_of(*texts: str, missing: bool = True, calls: Any = (), **more: Any) -> list[UserFault]:
    """Faults if user and agent speak in turns, the user first."""
    lines = [(("user", "agent")[place % 2], text) for place, text in enumerate(texts)]
    stopped = "###STOP###" in texts[-1]
    options = {"stop_reason": "user_stop" if stopped else "max_steps", "instruction": INSTRUCTION, **more}
    return find_user_faults(lines=lines, tool_calls=calls, missing=missing, **options)


def kinds(*texts: str, **more: Any) -> list[str]:
    return [fault.kind for fault in faults_of(*texts, **more)]


def only(*texts: str, **more: Any) -> tuple[str, int, bool]:
    (fault,) = faults_of(*texts, **more)
    return fault.kind, fault.turn, fault.decisive


@pytest.mark.parametrize(
    "agent",
    [
        ASKS,
        "I found your order. Shall I go ahead and return it?",
        "I cannot look up your order without your zip code. Could you tell me what it is?",
    ],
)
def test_stopping_instead_of_answering_is_a_fault(agent: str) -> None:
    assert only(OPENING, agent, "###STOP###") == ("stopped_early", 1, True)
    assert kinds(OPENING, agent, "###STOP###", missing=False) == []
    assert kinds(OPENING, agent, "###STOP###", stop_reason="max_steps") == []


def test_stopping_without_a_word_or_with_a_request_is_a_fault() -> None:
    assert only("###STOP###") == ("stopped_early", 0, True)
    request = "I'd also like to cancel the other one. ###STOP###"
    assert kinds(OPENING, "Done.", request) == ["stopped_early", "stop_token_in_text"]


@pytest.mark.parametrize(
    "agent",
    [
        "I cannot return this order. Is there anything else I can help with?",
        "Your return has been requested.",
        "I have transferred you to a human agent.",
        "",
    ],
)
def test_an_agent_that_refuses_or_claims_success_has_failed_by_itself(agent: str) -> None:
    assert kinds(OPENING, agent, "###STOP###") == []


def test_a_user_may_stop_after_an_offer_of_more_help() -> None:
    for offer in ("Is there anything else I can help you with?", "Please ask if you need help with more!"):
        texts = [OPENING, ASKS, "It is 19122.", f"The return is requested. {offer}", "###STOP###"]
        assert kinds(*texts, calls=[tool_call()]) == []


def test_the_stop_token_in_a_text_is_reported_unless_it_follows_a_goodbye() -> None:
    for line in ["The lamp ###STOP### is broken.", "###STOP### Thank you!", "The lamp is broken. ###STOP###"]:
        assert only(OPENING, "Done.", line) == ("stop_token_in_text", 1, False)
    for line in ["Thanks, that is all I need. ###STOP###", "Good-bye!\n###STOP###", "**###STOP###**"]:
        assert kinds(OPENING, "Done.", line) == []


@pytest.mark.parametrize("line", ["### STOP ###", "STOP", "**STOP.**", "Thanks! ###stop###", "# Stop #"])
def test_a_stop_token_nearly_right_is_a_fault(line: str) -> None:
    assert only(OPENING, "Done.", line, "Anything else?") == ("stop_token_misspelt", 1, False)
    assert kinds(OPENING, "Done.", line, stop_reason="user_stop") == []  # it is the token of the bundle


@pytest.mark.parametrize("line", ["Stop.", "Please stop it.", "It does not STOP at JFK."])
def test_a_line_about_stopping_is_no_stop_token(line: str) -> None:
    assert kinds(OPENING, "Done.", line, "Anything else?") == []


@pytest.mark.parametrize("line", ["My zip code is 19123.", "It is order W7654321.", "My id is ann_lee_4712."])
def test_another_id_of_the_same_form_contradicts_the_instruction(line: str) -> None:
    assert only(OPENING, ASKS, line) == ("contradicts_instruction", 1, True)
    assert "its instruction says" in faults_of(OPENING, ASKS, line)[0].detail


def test_an_invented_detail_is_decisive_if_the_agent_used_it() -> None:
    line = "My email is ann@example.com."
    assert only(OPENING, ASKS, line) == ("invented_detail", 1, False)
    assert only(OPENING, ASKS, line, calls=[tool_call(email="ann@example.com")])[2]
    assert kinds(line, instruction=None) == []
    assert kinds(OPENING, ASKS, line, shown='{"email": "ann@example.com"}') == []  # its own tool said so
    assert kinds("It is item 5550123.", "Yes, 5550123.", "Item 5550123.") == ["invented_detail"]


@pytest.mark.parametrize(
    "line",
    [
        "It is 19122, order #W1234567, or W 1234567.",
        "I am ANN_LEE_4711, on credit card 9876543.",
        "It was over 150 dollars, $1500.00, and it is for the 20th of May or 2024-05-20.",
        "I ordered 2 lamps, 27 inch, 144Hz, 1080p, 2000mAh at 10am, size 42 in 2 weeks.",
        "The agent's 5550123 is right, and $99.99 too.",
        "Hello, could you help me with a return?",
        "I have already returned the other one.",
        "Let me check... yes, that is the right one.",
        "On second thought, keep the lamp.",
        "Thanks for your help!",
    ],
)
def test_known_details_dates_amounts_measures_and_ordinary_lines_are_not_flagged(line: str) -> None:
    assert kinds(OPENING, f"{ASKS} We have item 5550123 for $99.99, with 1500 pieces.", line) == []


def test_lines_of_the_row_are_not_checked_and_turns_count_from_their_end() -> None:
    lines = [("agent", "Welcome"), ("user", "How can I help you? Zip 19123."), ("agent", ASKS)]
    options: dict[str, Any] = {"instruction": INSTRUCTION, "tool_calls": [], "stop_reason": "max_steps"}
    assert find_user_faults(lines=[*lines, ("user", "It is 19123.")], given=2, **options) == []
    (fault,) = find_user_faults(lines=[*lines, ("user", "How can I help you?")], given=2, **options)
    assert (fault.kind, fault.turn) == ("speaks_as_agent", 1)


@pytest.mark.parametrize(
    "line",
    [
        "Hello! How may I assist you?",
        "I\u2019ve processed your return.",
        "Your order #W1234567 has been cancelled.",
        "Could you please provide your order number?",
        '{"name": "cancel_order", "arguments": {"order_id": "#W1234567"}}',
        "<tool_call>cancel</tool_call>",
        "cancel_order(order_id='#W1234567')",
    ],
)
def test_an_agents_line_from_the_user_is_a_fault(line: str) -> None:
    assert only(OPENING, ASKS, line) == ("speaks_as_agent", 1, True)


def test_the_line_that_ends_a_rollout_by_a_token_of_the_bundle_is_not_decisive() -> None:
    options: dict[str, Any] = {"instruction": INSTRUCTION, "tool_calls": []}
    for stop_reason, decisive in (("user_stop", False), ("max_steps", True)):
        lines = [("user", OPENING), ("agent", ASKS), ("user", "How can I help you? ##END##")]
        (fault,) = find_user_faults(lines=lines, stop_reason=stop_reason, **options)
        assert (fault.kind, fault.decisive) == ("speaks_as_agent", decisive)


def test_the_same_line_three_times_is_a_fault() -> None:
    line = "I want to have my lamp returned."
    assert kinds(line, ASKS, f"{line} ", "Which order?") == []
    repeated = [line, ASKS, f"{line} ", "Which order?", line.upper(), "I see.", line]
    assert only(*repeated) == ("repeats_itself", 2, True)
    detail = "My zip code is 19122."
    assert only(OPENING, ASKS, detail, ASKS, detail, ASKS, detail) == ("repeats_itself", 3, False)
    for answer in ("Yes", "Yes, please go ahead with that.", "I don't remember my email address."):
        assert kinds(OPENING, *[ASKS, answer] * 4) == []


@pytest.mark.parametrize(
    "line",
    ["Thought: they want my name.\nAnn.", "**Thought:** hm", "<think>hm</think> Ann.", "My instructions"],
)
def test_a_thought_in_a_line_is_reported(line: str) -> None:
    assert only(OPENING, ASKS, line) == ("thought_aloud", 1, False)


def test_sentences_of_real_instructions_are_not_flagged() -> None:
    for line in (ROOT / "tau_retail_task" / "task.jsonl").read_text().splitlines():
        instruction = json.loads(line)["sim_user_prompt"]
        texts = ["Hi, I need some help with an order."]
        for sentence in filter(None, instruction.split(". ")):
            texts += ["I see. What else can you tell me?", sentence]
        texts += ["All of it is done.", "###STOP###"]
        assert faults_of(*texts, instruction=instruction, calls=[tool_call(x=instruction)]) == []


_PIECES = ["###STOP###", "#W12345", "$1,234.50", "May 20", "Thought:", "{", '"name": "x", ', "a@b.co", "?"]
TEXTS = st.lists(st.sampled_from([*_PIECES, "\n", "19122", "1_2-3"]) | st.text(max_size=8), max_size=8)


@given(
    lines=st.lists(st.tuples(st.sampled_from(["user", "agent"]), TEXTS.map("".join)), max_size=8),
    instruction=st.none() | TEXTS.map("".join),
    stop_reason=st.sampled_from(["user_stop", "max_steps", None]),
    given_lines=st.integers(0, 9),
)
def test_no_conversation_raises(lines: Any, instruction: Any, stop_reason: Any, given_lines: int) -> None:
    options: Any = {"instruction": instruction, "stop_reason": stop_reason, "given": given_lines}
    faults = find_user_faults(lines=lines, tool_calls=[tool_call(text=str(lines))], missing=True, **options)
    assert {fault.kind for fault in faults} <= set(USER_FAULT_KINDS)
    assert [fault.turn for fault in faults] == sorted(fault.turn for fault in faults)


@pytest.mark.parametrize("piece", ["a ", "1,", "your ", '{"name":', "a.b@"])
@pytest.mark.timeout(20)
def test_the_time_for_long_texts_is_linear(piece: str) -> None:
    assert isinstance(kinds(OPENING, piece * 30_000, piece * 30_000), list)
