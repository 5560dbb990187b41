"""Reading actions and replies from answers in plain text."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from thorough import often

from reward_kit.agent.players.agents.text_agent import written
from reward_kit.agent.players.agents.text_protocol import (
    TextCall,
    TextReply,
    UnusableAnswerError,
    read_answer,
)

TOOLS = ["get_order", "cancel", "create_user", "get_json"]
GET = '{"name": "get_order", "arguments": {"id": "#W1"}}'


def called(text: str) -> tuple[str, Any]:
    """Name and arguments of the call in ``text``."""
    answer = read_answer(text, TOOLS)
    assert isinstance(answer, TextCall)
    return answer.name, json.loads(answer.arguments)


def said(text: str) -> str:
    """The reply in ``text``."""
    answer = read_answer(text, TOOLS)
    assert isinstance(answer, TextReply)
    return answer.said


@pytest.mark.parametrize(
    "text",
    [
        f"Action: {GET}",
        f"Thought: I look. Action: {GET}",
        f"**Thought:** hm\n**Action:** `{GET}`",
        f"### Action:\n```json\n{GET}\n```\nNow I wait.",
        f"I will do this: {GET} and wait.",
        GET,
        "Action: {'name': 'get_order', 'arguments': {'id': '#W1',},}",
        'Action: {name: "get_order", arguments: {id: "#W1"}}',
        'Action: {"name": "get_order", "arguments": "{\\"id\\": \\"#W1\\"}"}',
        'Action: {"name": "get_order", "id": "#W1"}',
        'Action: get_order\nAction Input: {"id": "#W1"}\nObservation:',
        'Action: get_order {"id": "#W1"}',
        'Action: get_order({"id": "#W1"})',
        f"Action: {GET}\nThought: and then\nAction: {{'name': 'cancel', 'arg",
    ],
)
def test_an_action_is_read_in_whatever_form_it_comes(text: str) -> None:
    assert called(text) == ("get_order", {"id": "#W1"})


def test_a_tools_own_argument_called_name_is_not_the_tool() -> None:
    assert called('Action: create_user\n{"name": "Bob"}') == ("create_user", {"name": "Bob"})
    assert called("Action: create_user\nAction Input: {'name': 'Bob'}") == ("create_user", {"name": "Bob"})


def test_of_several_actions_the_last_one_counts() -> None:
    text = f'Action: {GET}\nThought: No, better not.\nAction: {{"name": "cancel", "arguments": {{}}}}'
    assert called(text) == ("cancel", {})


@pytest.mark.parametrize("label", ["API output:", "**Observation 1:**", "User:"])
def test_what_follows_a_made_up_result_is_cut_off(label: str) -> None:
    text = f'Thought: a\nAction: {GET}\n{label} {{"status": "ok"}}\nThought: b\nAction: {{"name": "cancel"}}'
    answer = read_answer(text, TOOLS)
    assert isinstance(answer, TextCall)
    assert answer.name == "get_order"
    assert answer.text == f"Thought: a\nAction: {GET}"


@pytest.mark.parametrize(
    "action",
    [
        '{"name": "respond", "arguments": {"content": "Hello"}}',
        '{"name": "Respond", "arguments": {"text": "Hello"}}',
        '{"name": "respond", "arguments": {"message": "Hello", "tone": "kind"}}',
        '{"name": "respond", "arguments": "Hello"}',
        '{"name": "respond", "arguments": "{\\"content\\": \\"Hello\\"}"}',
        '{"name": "respond", "arguments": {"content": [{"type": "text", "text": "Hello"}]}}',
        '{"name": "respond", "content": "Hello"}',
        'respond\nAction Input: {"content": "Hello"}',
        '{"name": "respond", "arguments": {"content": "<think>secret</think>Hello"}}',
        '{"name": "respond", "arguments": {"content": "Hello"}}\nAPI output: The user is glad.',
    ],
)
def test_a_reply_is_found_under_whatever_name_it_has(action: str) -> None:
    assert said(f"Thought: secret\nAction:\n{action}") == "Hello"


def test_quotes_line_breaks_and_labels_inside_of_a_reply_belong_to_it() -> None:
    content = 'He said "hi", it\'s {fine}\nAction: {"name": "cancel"}\nUser: no\n```x```'
    action = json.dumps({"name": "respond", "arguments": {"content": content}})
    assert said(f"Action: {action}") == content
    assert said(
        "Action: {'name': 'respond', 'arguments': {'content': 'it's \"fine\"\nisn\\'t it\\u0021'}}"
    ) == ("it's \"fine\"\nisn't it!")


@pytest.mark.parametrize(
    ("text", "expected", "thought"),
    [
        ("Hello, {curly} friend!", "Hello, {curly} friend!", ""),
        ("Hello!\nThought: secret", "Hello!", "secret"),
        ("Final Answer: Hello!", "Hello!", ""),
        ("Thought: secret\nand more\nResponse: Hello!", "Hello!", "secret\nand more"),
        ("<think>secret</think>Hello!", "Hello!", "secret"),
        ("Hello! <THINK>secret", "Hello!", "secret"),
        ('Here you are: {"name": "Alice"}', 'Here you are: {"name": "Alice"}', ""),
    ],
)
def test_text_without_any_action_is_said_without_its_thoughts(text: str, expected: str, thought: str) -> None:
    answer = read_answer(text, TOOLS)
    assert isinstance(answer, TextReply)
    assert (answer.said, answer.thought) == (expected, thought)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "empty"),
        ("Thought: secret\n\nwith a second paragraph", "only a thought"),
        ("Action: do something", "no JSON object"),
        ('Action: {"name": "", "arguments": {}}', 'no "name"'),
        ('Action: [{"name": "get_order"}]', "a list"),
        ('Action: {"name": "get_order", "arguments": {"id": "#W1"', "not closed"),
        ('Action: {"name": "get_order" "arguments": {}}', "a comma is missing"),
        ('Action: {"name": "get_order", arguments {}}', "a colon is missing"),
        ('Action: {"name": "respond"}', "could be said"),
        ('Action: {"name": "respond", "arguments": {"content": "Thought: secret"}}', "could be said"),
        ('Action: {"name": "respond", "arguments": "{\\"content\\": \\"Hel"}', "could be said"),
        ('Action: {"name": "cancel", "arguments": {"a": ' + "[" * 5000, "nested too deeply"),
    ],
)
def test_what_cannot_be_used_is_told_to_the_model(text: str, fault: str) -> None:
    with pytest.raises(UnusableAnswerError, match=fault):
        read_answer(text, TOOLS)


PIECES = [
    *"{}[]\"':,\\\n \ud800\x00",
    *("Thought:", "Action:", "Action Input:", "API output:", "\nUser:", "\nResponse:", "respond", TOOLS[0]),
    *("```json\n", "```", "<think>", "</think>", "()", '"name":', '"arguments":', '"content":', "name"),
    *("respond", "get_order", "None", "true", "NaN", "1e999", "\\u12"),
    *(GET, '{"name": "respond", "arguments": {"content": "Hi"}}', "9" * 5000, "**", "#", "-"),
]


@settings(max_examples=often(400))
@given(st.one_of(st.text(), st.lists(st.sampled_from(PIECES), max_size=40).map("".join)))
@example("{" * 100_000)
@example('Action: {"' * 20_000)
@example("Action: {" + " " * 100_000)
@example("<think>" * 50_000)
def test_any_text_is_a_call_a_reply_or_unusable(text: str) -> None:
    try:
        answer = read_answer(text, TOOLS)
    except UnusableAnswerError:
        return
    answer.text.encode("utf-8", "surrogatepass")
    if isinstance(answer, TextReply):
        assert answer.said.strip()
        assert "<think>" not in answer.said.lower()
    else:
        assert answer.name.strip()
        answer.arguments.encode()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=often(200))
@given(st.dictionaries(st.text(max_size=8), json_values, max_size=4))
def test_arguments_arrive_as_they_were_written(arguments: dict[str, Any]) -> None:
    text = written("I think.", "cancel", json.dumps(arguments))
    if "<" not in text:
        assert called(text) == ("cancel", json.loads(json.dumps(arguments)))
