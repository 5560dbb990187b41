"""Faults of answers that come from the set-up of a model's server: found, repaired, and told."""

import json
import os
from typing import Any

import pytest
from command import run_command
from flight_bundle import Bundle
from small_task import wants
from stub_server import Answer, StubServer, call

from reward_kit.agent.base.types import Completion
from reward_kit.agent.models.answer_parts import without_faults

TOOLS = [{"type": "function", "function": {"name": name}} for name in ("buy", "v1.sell")]
BUY = {"item": 1}


@pytest.mark.parametrize(
    "said",
    [
        'Sure.\n<tool_call>\n{"name": "buy", "arguments": {"item": 1}}\n</tool_call>',
        '[TOOL_CALLS][{"name": "buy", "arguments": {"item": 1}}]',
        "<function=buy>{}</function>",
        "<|tool_calls_section_begin|><|tool_call_begin|>functions.buy:0",
        "<\uff5ctool\u2581calls\u2581begin\uff5c>",
        '<|python_tag|>{"name": "buy", "parameters": {}}',
        '{"type": "function", "name": "buy", "parameters": {"item": "1"}}',
        '```json\n{"name" : "buy", "arguments": {}}\n```',
        "<think>Buy it.</think><tool_call>",
    ],
)
def test_a_tool_call_in_the_text_is_a_fault(said: str) -> None:
    completion = Completion({"role": "assistant", "content": said})
    assert without_faults(completion, TOOLS) == (completion, "calls_as_text")
    assert without_faults(completion, []) == (completion, None)  # no tool was offered: it is asked for text
    with_calls = Completion({**wants(("buy", BUY)), "content": said})
    assert without_faults(with_calls, TOOLS) == (with_calls, None)


@pytest.mark.parametrize(
    "said",
    [
        "I call it a day.",
        "<think>I could write <tool_call></think>It is done.",
        'Your order: {"name": "Ann", "arguments": "none"}',
        "The function is buy(item=1).",
        None,
    ],
)
def test_ordinary_text_has_no_fault(said: str | None) -> None:
    completion = Completion({"role": "assistant", "content": said})
    assert without_faults(completion, TOOLS) == (completion, None)


@pytest.mark.parametrize(
    ("name", "arguments", "meant", "fault"),
    [
        ("buy", BUY, ("buy", BUY), None),
        ("v1.sell", BUY, ("v1.sell", BUY), None),
        ("functions.buy", BUY, ("buy", BUY), "prefixed_name"),
        ("default_api:buy", BUY, ("buy", BUY), "prefixed_name"),
        ("functions.buy:0", BUY, ("buy", BUY), "prefixed_name"),
        ("functions.rent", BUY, ("functions.rent", BUY), None),
        ("buy.all", BUY, ("buy.all", BUY), None),
        ("buy", json.dumps(json.dumps(BUY)), ("buy", BUY), "encoded_twice"),
        ("functions.buy", json.dumps(json.dumps(BUY)), ("buy", BUY), "encoded_twice"),
        ("buy", '"[1]"', ("buy", '"[1]"'), None),
        ("buy", '"{broken"', ("buy", '"{broken"'), None),
    ],
)
def test_a_call_is_made_as_it_was_meant(name: str, arguments: Any, meant: Any, fault: str | None) -> None:
    given = Completion(wants((name, arguments), content="Let me."), finish_reason="tool_calls")
    before = json.dumps(given.message)
    assert without_faults(given, TOOLS) == (
        Completion(wants(meant, content="Let me."), finish_reason="tool_calls"),
        fault,
    )
    assert json.dumps(given.message) == before


def test_what_is_no_call_stays_as_it_is() -> None:
    given = Completion(
        {"tool_calls": ["x", {"function": None}, {"function": {"name": 1, "arguments": None}}]}
    )
    assert without_faults(given, TOOLS) == (given, None)


ROWS = [
    {"id": name, "n_rollouts": 2, "system_prompt": name, "sim_user_prompt": None}
    for name in ("text", "twice", "prefix", "cut", "good")
]
BOOK = {"flight_id": 1, "passenger": "Alice"}


def answer(request: dict[str, Any], place: int) -> Answer:
    """Of a model that books and pays, behind the server that the system prompt names."""
    served = request["messages"][0]["content"]
    if place > 1:
        return Answer(content="Paid.", finish_reason="length" if served == "cut" else None)
    name, arguments = "create_booking", dict(BOOK)
    if place:
        booked = json.loads(request["messages"][-1]["content"])
        name, arguments = "pay_booking", {"booking_id": booked["booking_id"]}
    if served == "text":
        return Answer(content=f"<tool_call>{json.dumps({'name': name, 'arguments': arguments})}</tool_call>")
    text = json.dumps(arguments)
    return call(
        f"functions.{name}" if served == "prefix" else name, json.dumps(text) if served == "twice" else text
    )


@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["in process", "workers"])
def test_the_report_tells_what_is_wrong_with_the_server(
    stub_llm: StubServer, bundle: Bundle, workers: tuple[str, ...]
) -> None:
    stub_llm.script("m", answer)
    options = ("--model", "openai/m", "--eval-id", "e", *workers)
    ran = run_command("agent-eval", "-d", "flight_task", *options, env={**os.environ})
    whole = run_command("show", "e", env={**os.environ}).out
    passed = {row.split()[0]: row.split()[1] for row in whole.splitlines() if "/2 " in row}
    assert passed == {"text": "0/2", "twice": "2/2", "prefix": "2/2", "cut": "2/2", "good": "2/2"}
    assert "2 answers cut at the token limit: raise it (--model-arg max_tokens=N" in " ".join(whole.split())
    assert "warning 2 of 10 rollouts had tool calls written as text: start" in " ".join(ran.out.split())
    told = " ".join(whole.split())
    assert (
        "2 of 10 rollouts had tool calls written as text: start the server with its tool-call parser" in told
    )
    assert "2 of 10 rollouts had tool arguments encoded twice" in told
    assert "2 of 10 rollouts had tool names with a prefix" in told
    assert told.count("of 10 rollouts had") == 3
