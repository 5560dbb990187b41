"""Trajectories of tau-bench, read in each of the forms that its agents write."""

from __future__ import annotations

import json
from typing import Any

from tau_bench_file import native, text

from reward_kit.agent.tau_bench.conversation import Conversation, conversation_of

ROW = {
    "actions": [
        {"name": "get_order_details", "arguments": {"order_id": "#W1"}},
        {"name": "cancel_pending_order", "arguments": {"order_id": "#W1", "reason": "no longer needed"}},
    ]
}
RESULTS = ['{"order_id": "#W1"}', "Error: order not found"]


def calls_of(conversation: Conversation) -> list[tuple[str, Any]]:
    return [
        (call["function"]["name"], call["function"]["arguments"])
        for step in conversation.steps
        for call in step.calls
    ]


def replies_of(conversation: Conversation) -> list[Any]:
    return [step.message["content"] for step in conversation.steps if not step.message.get("tool_calls")]


def assistant(content: str | None, *names: str) -> dict[str, Any]:
    calls = [
        {"id": name, "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names
    ]
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def tool(content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": "x", "name": "x", "content": content}


def test_native_calls_and_text_actions_are_the_same_conversation() -> None:
    by_tools = conversation_of(native(ROW, RESULTS))
    by_react = conversation_of(text(ROW, RESULTS))
    by_act = conversation_of(text(ROW, RESULTS, thought=""))
    wanted = [(action["name"], action["arguments"]) for action in ROW["actions"]]
    assert [(name, json.loads(arguments)) for name, arguments in calls_of(by_tools)] == wanted
    assert calls_of(by_react) == calls_of(by_act) == wanted
    for conversation in (by_tools, by_react, by_act):
        assert [step.observed for step in conversation.steps] == [(RESULTS[0],), (RESULTS[1],), ()]
        assert replies_of(conversation) == ["Done."]
        assert conversation.lines == ["Hi, I need help.", "###STOP###"]
    assert by_react.steps[0].message["content"] == "Thought:\nHm."


def test_an_answer_that_is_no_action_was_said_as_it_stands_behind_the_last_action() -> None:
    traj = text(ROW, RESULTS)
    traj[2:2] = [
        {"role": "assistant", "content": "Thought:\nI ask.\nAction:\nWhat is your zip code?"},
        {"role": "user", "content": "19122"},
        {"role": "assistant", "content": "No action at all"},
        {"role": "user", "content": "Go on."},
    ]
    found = conversation_of(traj)
    assert replies_of(found) == ["What is your zip code?", "No action at all", "Done."]
    assert found.lines == ["Hi, I need help.", "19122", "Go on.", "###STOP###"]


def test_of_several_calls_those_with_a_result_were_run() -> None:
    found = conversation_of([assistant("Let me see", "first", "second"), tool("one"), assistant("Well.")])
    assert [name for name, _ in calls_of(found)] == ["first"]
    assert len(found.steps[0].message["tool_calls"]) == 2
    both = conversation_of([assistant(None, "first", "second"), tool("one"), tool("two"), assistant("Well.")])
    assert [name for name, _ in calls_of(both)] == ["first", "second"]


def test_calls_that_the_user_answered_were_never_run() -> None:
    found = conversation_of([assistant("One moment.", "look_up"), {"role": "user", "content": "Yes?"}])
    assert (calls_of(found), replies_of(found)) == ([], ["One moment."])
